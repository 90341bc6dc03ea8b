// SPDX-License-Identifier: Apache-2.0
// Finds the lines of CSV rows for messages. Does not use LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/data/dataset_options.h"
#include "cohort/data/files/file_stream.h"

namespace cohort::data {

// A value type.
struct CsvFile {
  std::string path;
  Compression compression = Compression::none;
  char delimiter = ',';
  bool has_header = false;
  // Whether a blank line is a row also at the end of the file: a missing value of the only column.
  bool has_blank_rows = false;
  std::size_t row_bytes_max = 16 << 20;
};

// Reads the file again when it is asked, so that no lines are counted while rows are valid. Used
// from one scan.
class CsvPlaces {
 public:
  explicit CsvPlaces(CsvFile file) : file_(std::move(file)) {}

  // The line, counted from 1, in which the row at this byte starts. A row may have several lines.
  // Returns nullopt if the file cannot be read any more.
  std::optional<std::uint64_t> line_at(std::uint64_t offset);
  // The name of a column in the first row; "" if it has no such column or cannot be read.
  std::string column_name(std::size_t number);

 private:
  void count_to(std::uint64_t offset);
  std::vector<std::string> read_names() const;

  CsvFile file_;
  // The position of the last call, from which the next call continues, so that all errors of a file
  // need one pass.
  std::unique_ptr<FileStream> stream_;
  std::uint64_t offset_ = 0;
  std::uint64_t line_ = 1;
  bool is_behind_return_ = false;
  std::optional<std::vector<std::string>> names_;
};

}  // namespace cohort::data
