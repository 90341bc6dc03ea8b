// SPDX-License-Identifier: Apache-2.0
// Reads a CSV file in the page cache: rows of an integer, 8 numbers and a word, in batches and one
// by one. Compared to reading the lines of the same file, and to tf.data.
#include <ATen/core/TensorBody.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "bench/python_peer.h"
#include "bench/report.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/dataset.h"

namespace cohort::bench {
namespace {

constexpr std::int64_t kBatch = 128;
constexpr int kNumbers = 8;

// A temporary file; the destructor removes it.
class CsvFile {
 public:
  explicit CsvFile(std::int64_t rows)
      : rows_(rows),
        path_((std::filesystem::temp_directory_path() / ("bench_csv_" + std::to_string(::getpid())))
                  .string()) {
    std::mt19937_64 draw(1);
    std::ofstream file(path_);
    file << "id";
    for (int i = 0; i < kNumbers; ++i) file << ",x" << i;
    file << ",word\n";
    for (std::int64_t row = 0; row < rows; ++row) {
      file << row;
      for (int i = 0; i < kNumbers; ++i) {
        // Six digits, like measured values.
        char text[16];
        std::snprintf(text, sizeof text, ",%.4f",
                      static_cast<double>(draw() % 2'000'000) / 1e4 - 100);
        file << text;
      }
      file << ",w" << draw() % 1'000 << "\n";
    }
  }
  ~CsvFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  CsvFile(const CsvFile&) = delete;
  CsvFile& operator=(const CsvFile&) = delete;

  std::int64_t rows() const { return rows_; }
  const std::string& path() const { return path_; }
  Dataset csv() const {
    CsvOptions options{.columns = {{.dtype = at::kLong}}, .header = true};
    for (int i = 0; i < kNumbers; ++i) options.columns.push_back({.dtype = at::kFloat});
    options.columns.push_back({.dtype = kString});
    return Dataset::csv(StringTensor(path_), options);
  }
  Dataset lines() const { return Dataset::text_line(StringTensor(path_)); }

 private:
  std::int64_t rows_;
  std::string path_;
};

// Draws all elements in one pass, as fields, and counts them.
std::int64_t draw_all(const Dataset& dataset) {
  const std::unique_ptr<data::ElementSource> source = dataset.source({});
  std::int64_t count = 0;
  for (Fields fields; source->next(fields);) ++count;
  return count;
}

// The sum of each column's numbers, or of the lengths of its strings.
std::vector<double> sums_of(const Dataset& dataset) {
  std::vector<double> sums(kNumbers + 2);
  const std::unique_ptr<data::ElementSource> source = dataset.source({});
  for (Fields fields; source->next(fields);) {
    for (std::size_t column = 0; column < sums.size(); ++column) {
      const at::Tensor& values = fields.at(column);
      if (!StringTensor::is(values)) {
        sums[column] += values.to(at::kDouble).sum().item<double>();
        continue;
      }
      const StringTensor strings = StringTensor::of(values);
      for (std::int64_t i = 0; i < strings.numel(); ++i) {
        sums[column] += static_cast<double>(strings[i].size());
      }
    }
  }
  return sums;
}

void check(const CsvFile& file, PythonPeer* peer) {
  const std::vector<double> batched = sums_of(file.csv().batch(kBatch));
  const std::vector<double> single = sums_of(file.csv());
  for (std::size_t column = 0; column < batched.size(); ++column) {
    const auto is_close = [&](double other) {
      return std::abs(batched[column] - other) <= 1e-7 * std::max(1.0, std::abs(batched[column]));
    };
    require(is_close(single[column]), "column of elements");
    if (peer == nullptr) continue;
    const double theirs = peer->measure("sum " + std::to_string(column) + " " + file.path());
    require(is_close(theirs), "column of tf.data");
  }
}

Contender ours(const std::string& name, const CsvFile& file, const Dataset& dataset) {
  return {name, [&file, dataset] {
            return 1e9 * seconds_of([&] { draw_all(dataset); }) / static_cast<double>(file.rows());
          }};
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  using namespace cohort::bench;
  const Bench bench(argc, argv);
  const auto peer = PythonPeer::start(PythonPeer::tensorflow(), COHORT_PEERS "/tf_data_csv.py");
  const CsvFile file(100'000);
  check(file, peer.get());
  const std::string size = std::to_string(kBatch);
  std::vector<Contender> batches{
      ours("text_line, batches of " + size, file, file.lines().batch(kBatch)),
      ours("csv, batches of " + size, file, file.csv().batch(kBatch))};
  add_peer(batches, peer.get(), "tf.data's CsvDataset, batches of " + size,
           "csv " + size + " " + file.path());
  add_peer(batches, peer.get(), "tf.data's TextLineDataset, batches of " + size,
           "lines " + size + " " + file.path());
  bench.compare("CSV rows of 10 columns in batches", {.unit = "ns/row"}, batches);
  bench.compare(
      "CSV rows of 10 columns one by one", {.unit = "ns/row"},
      {ours("text_line, elements", file, file.lines()), ours("csv, elements", file, file.csv())});
  return 0;
}
