// SPDX-License-Identifier: Apache-2.0
// Time per element of whole pipelines (items per second in the output).
#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cohort/data/dataset.h"

namespace cohort {
namespace {

constexpr std::int64_t kImages = 60'000;
constexpr std::int64_t kPixels = 28 * 28;

// Files with MNIST's sizes and other pixels, removed at exit.
class IdxPair {
 public:
  IdxPair() {
    write(files_.images, "\x08\x03", {kImages, 28, 28}, kImages * kPixels);
    write(files_.labels, "\x08\x01", {kImages}, kImages);
  }
  ~IdxPair() {
    std::filesystem::remove(files_.images);
    std::filesystem::remove(files_.labels);
  }
  const IdxFiles& files() const { return files_; }

 private:
  static void write(const std::string& path, const char* type, std::vector<std::int64_t> sizes,
                    std::int64_t count) {
    std::ofstream file(path, std::ios::binary);
    file.write("\0\0", 2).write(type, 2);
    for (const std::int64_t size : sizes) {
      for (int shift = 24; shift >= 0; shift -= 8) file.put(static_cast<char>(size >> shift));
    }
    const at::Tensor values = at::randint(256, {count}, at::kByte);
    file.write(static_cast<const char*>(values.data_ptr()), count);
  }

  std::string prefix_ =
      (std::filesystem::temp_directory_path() / ("bench_idx_" + std::to_string(::getpid())))
          .string();
  IdxFiles files_{.images = prefix_ + "_images", .labels = prefix_ + "_labels"};
};

const IdxFiles& idx_files() {
  static const IdxPair pair;
  return pair.files();
}

void draw(benchmark::State& state, const Dataset& dataset, std::int64_t batch_size) {
  std::unique_ptr<data::ElementSource> source =
      dataset.source({.seed = 1, .data_dirs = std::nullopt});
  Fields fields;
  source->next(fields);  // fills the shuffle buffer
  for (auto _ : state) {
    source->next(fields);
    benchmark::DoNotOptimize(fields.data());
  }
  state.SetItemsProcessed(state.iterations() * batch_size);
}

void idx_shuffle_batch(benchmark::State& state) {
  draw(state, Dataset::idx(idx_files()).shuffle(10'000).repeat().batch(state.range(0)),
       state.range(0));
}
BENCHMARK(idx_shuffle_batch)->Arg(64)->Arg(128);

void idx_shard_shuffle_batch_prefetch(benchmark::State& state) {
  draw(state, Dataset::idx(idx_files()).shard(2, 0).shuffle(10'000).repeat().batch(64).prefetch(2),
       64);
}
BENCHMARK(idx_shard_shuffle_batch_prefetch)->UseRealTime();

void idx_batch_map(benchmark::State& state) {
  const auto scale = [](at::Tensor x, at::Tensor y) {
    return std::make_tuple(x.view({-1, kPixels}).to(at::kFloat) / 255.0, y.to(at::kLong));
  };
  draw(state, Dataset::idx(idx_files()).shuffle(10'000).repeat().batch(64).map(scale), 64);
}
BENCHMARK(idx_batch_map);

void range_batch(benchmark::State& state) {
  draw(state, Dataset::range(10'000'000).repeat().batch(128), 128);
}
BENCHMARK(range_batch);

void range_batch_map(benchmark::State& state) {
  draw(state,
       Dataset::range(10'000'000).repeat().batch(128).map([](at::Tensor x) { return x + 1; }), 128);
}
BENCHMARK(range_batch_map);

// map before batch: measures the cost of one tensor per element.
void range_map_batch(benchmark::State& state) {
  draw(state,
       Dataset::range(10'000'000).map([](at::Tensor x) { return x + 1; }).repeat().batch(128), 128);
}
BENCHMARK(range_map_batch);

// The same with a function of numbers.
void range_typed_map_batch(benchmark::State& state) {
  draw(state,
       Dataset::range(10'000'000).map([](std::int64_t x) { return x + 1; }).repeat().batch(128),
       128);
}
BENCHMARK(range_typed_map_batch);

void vectors_shuffle_batch_prefetch(benchmark::State& state) {
  const at::Tensor vectors = at::rand({1 << 18, 64});
  draw(state, Dataset::from_tensor_slices(vectors).shuffle(1 << 16).repeat().batch(128).prefetch(2),
       128);
}
BENCHMARK(vectors_shuffle_batch_prefetch)->UseRealTime();

// A CSV file whose rows are two numbers and a word; also read as plain lines.
class RowFile {
 public:
  RowFile() {
    std::ofstream file(path_);
    for (int i = 0; i < 100'000; ++i) file << i << ',' << i % 977 << ".25,word" << i % 13 << '\n';
  }
  ~RowFile() { std::filesystem::remove(path_); }
  StringTensor path() const { return StringTensor(path_); }

 private:
  std::string path_ =
      (std::filesystem::temp_directory_path() / ("bench_rows_" + std::to_string(::getpid())))
          .string();
};

Dataset csv_rows() {
  static const RowFile file;
  return Dataset::csv(
             file.path(),
             {.columns = {{.dtype = at::kLong}, {.dtype = at::kFloat}, {.dtype = kString}}})
      .repeat();
}

void csv_elements(benchmark::State& state) { draw(state, csv_rows(), 1); }
BENCHMARK(csv_elements);

void csv_batch(benchmark::State& state) { draw(state, csv_rows().batch(128), 128); }
BENCHMARK(csv_batch);

void text_line_batch(benchmark::State& state) {
  static const RowFile file;
  draw(state, Dataset::text_line(file.path()).repeat().batch(128), 128);
}
BENCHMARK(text_line_batch);

}  // namespace
}  // namespace cohort
