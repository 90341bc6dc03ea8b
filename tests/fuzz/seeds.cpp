// SPDX-License-Identifier: Apache-2.0
// fuzz_seeds DIRECTORY: writes the initial inputs of each target into DIRECTORY/TARGET. Run it
// again after a format changes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/split.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "cohort/checkpoint_files/folder_writer.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/dataset.h"
#include "cohort/data/example.h"
#include "cohort/data/record_io.h"
#include "cohort/function/trace.h"
#include "tests/fuzz/pipelines.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

namespace fs = std::filesystem;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The folder of one target. Used once.
class Seeds {
 public:
  Seeds(const fs::path& root, const std::string& target) : folder_(root / target) {
    fs::create_directories(folder_);
  }
  void add(std::string_view content) {
    std::ofstream file(folder_ / ("seed-" + std::to_string(count_++)), std::ios::binary);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
  }

 private:
  fs::path folder_;
  int count_ = 0;
};

std::string record_file(Compression compression) {
  const ScratchFile file("seed_records");
  RecordWriter writer(file.path(), compression);
  for (const char* record : {"", "a", "some more bytes"}) writer.write(record);
  writer.close();
  return content_of(file.path());
}

void add_records(Seeds seeds) {
  for (const auto compression : {Compression::none, Compression::zlib, Compression::gzip}) {
    const char choice = static_cast<char>(compression);
    seeds.add(choice + record_file(compression));
    seeds.add(static_cast<char>(choice | 0x40) + record_file(Compression::none));
    seeds.add(static_cast<char>(choice | 0xC0) + record_file(Compression::none));
  }
}

void add_record_indexes(Seeds seeds) {
  const ScratchFile file("seed_indexed");
  const ScratchFile index("seed_indexed.index");
  RecordWriter writer(file.path());
  for (const std::size_t size : {0, 1, 2, 5000, 3}) writer.write(std::string(size, 'x'));
  writer.close();
  write_record_index(file.path());
  const std::string bytes = content_of(index.path());
  seeds.add('\0' + bytes);
  seeds.add('\1' + bytes.substr(0, bytes.size() - 4));
}

void add_examples(Seeds seeds) {
  const Features features{
      {"i", Int64List{-1, 0, 300}}, {"f", FloatList{0.5F, -2}}, {"b", BytesList{"x", "", "yz"}}};
  seeds.add(Example{features}.serialize());
  seeds.add(Example{{{"i", Int64List{1}}, {"f", Feature()}, {"b", BytesList()}}}.serialize());
  seeds.add(SequenceExample{.context = features,
                            .feature_lists = {{"w", {BytesList{"a"}, Int64List{2}, Feature()}}}}
                .serialize());
}

void add_rows(Seeds seeds) {
  const std::string rows = "1,-2,3.5,4e300,plain\r\n,,,,\"a \"\"b\"\", c\"\n 7 ,8,nan,inf,NA\n";
  for (const int choice : {0, 1, 2, 8, 16, 32, 48, 64}) {
    seeds.add(static_cast<char>(choice) + rows);
  }
  seeds.add("\x04one;two\n1;2;3;4;5");
}

void add_idx(Seeds seeds) {
  const std::string array("\0\0\x08\x02\0\0\0\2\0\0\0\2abcd", 16);
  const std::string labels("\0\0\x08\x01\0\0\0\2ab", 10);
  seeds.add(std::string(2, '\0') + array);
  seeds.add("\2\1" + array + labels);
  seeds.add(std::string(2, '\0') + std::string("\0\0\x0d\x01\0\0\0\1abcd", 12));
}

void add_pipelines(Seeds seeds) {
  const auto twice = [](at::Tensor x) { return x * 2; };
  const Dataset range = Dataset::range(10);
  const Dataset names = Dataset::from_tensor_slices(StringTensor({2}, {"a", "b"}));
  for (const Dataset& dataset :
       {range.shard(2, 0).shuffle(3, {.seed = 1}).repeat(2).batch(4).prefetch(2),
        range.map(twice).filter([](at::Tensor x) { return x > 3; }),
        range.take(3).concatenate(range.skip(8)).enumerate(),
        Dataset::zip({range, range.unique()}).cache().assert_cardinality(10),
        range.batch(2).unbatch().padded_batch(3).rebatch({1, 2}).ignore_errors(),
        Dataset::tf_record(names).parse_example({{"x", {.sizes = {2}}}}), Dataset::text_line(names),
        Dataset::fixed_length_record(names, {.record_bytes = 3}),
        Dataset::csv(StringTensor("a"),
                     {.columns = {{.default_value = Nest(1.5)}}, .header = true}),
        Dataset::from_tensors(Nest::map({{"x", at::ones({2})}, {"y", StringTensor("s")}})),
        range.batch(4).rebatch_split(2)}) {
    seeds.add(text_of(dataset.serialize()));
  }
}

Bytes traced(const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& body) {
  const std::vector<at::Tensor> first{at::arange(4, at::kFloat).view({2, 2})};
  const std::vector<at::Tensor> second{at::ones({2, 2})};
  return function::trace(first, second, body, {}).bytes;
}

void add_programs(Seeds seeds) {
  using Tensors = std::vector<at::Tensor>;
  seeds.add(text_of(traced([](const Tensors& x) { return Tensors{x[0] + 1}; })));
  seeds.add(text_of(traced([](const Tensors& x) {
    const Tensors parts = at::split(at::relu(at::mm(x[0], at::ones({2, 2}))), 1);
    return Tensors{at::cat(parts, 1), parts[0].sum()};
  })));
  seeds.add(text_of(traced([](const Tensors& x) {
    return Tensors{at::bernoulli(x[0], 0.5), x[0] > 1};
  })));
}

void add_positions(Seeds seeds) {
  for (std::size_t i = 0; i < pipelines().size(); ++i) {
    Iterator iterator =
        pipelines()[i].iterator({.seed = 1, .iteration = 0, .data_dirs = std::nullopt});
    for (int drawn = 0; drawn < 3; ++drawn) {
      seeds.add(static_cast<char>(i) + text_of(iterator.save()));
      iterator.try_next();
    }
  }
}

void add_checkpoints(Seeds seeds) {
  const fs::path folder = fs::temp_directory_path() / "cohort_fuzz_seed_checkpoint";
  checkpoint::FolderWriter writer(folder.string(), 4096);
  writer.write("w", at::ones({2, 3}));
  writer.write("w@sgd/momentum_buffer", at::ones({2, 3}));
  writer.write("@state-0", at::ones({2}));
  writer.commit({.variables = {{.name = "w",
                                .spec = {at::kFloat, {{2, 3}}},
                                .slots = {{"sgd", "sgd", {"w@sgd/momentum_buffer"}}}}},
                 .states = {{"optimizer", "sgd", "sgd", "w", "@state-0"}},
                 .values = {{"epoch", "3"}}});
  const std::string manifest = content_of((folder / "manifest.json").string());
  const std::string tensors = content_of((folder / "float32.safetensors").string());
  const std::string size{static_cast<char>(manifest.size() & 255U),
                         static_cast<char>(manifest.size() >> 8U)};
  for (const char choice : {'\0', '\1'}) seeds.add(choice + size + manifest + tensors);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace cohort::fuzz

int main(int argc, char** argv) {
  using namespace cohort::fuzz;
  if (argc != 2) {
    std::fputs("usage: fuzz_seeds DIRECTORY\n", stderr);
    return 64;
  }
  const fs::path root = argv[1];
  add_records({root, "record"});
  add_record_indexes({root, "record_index"});
  add_examples({root, "example"});
  add_rows({root, "csv"});
  add_idx({root, "idx"});
  add_pipelines({root, "pipeline"});
  add_programs({root, "program"});
  add_positions({root, "position"});
  add_checkpoints({root, "checkpoint"});
  return 0;
}
