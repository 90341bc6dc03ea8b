// SPDX-License-Identifier: Apache-2.0
// The rows of a CSV file as elements and as batches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/data/files/csv_row.h"
#include "cohort/data/files/file_reader.h"

namespace cohort::data {

// Converts the texts of one column. Thread-safe.
class CsvColumnReader {
 public:
  // `number` is that of the column in a row.
  CsvColumnReader(const CsvColumn& column, std::size_t number, const std::string& na_value);

  std::size_t number() const { return number_; }
  at::ScalarType dtype() const { return dtype_; }
  bool has_default() const { return has_default_; }
  // Both throw invalid_argument for a text that is not a value of the column.
  void read_number(std::string_view text, std::byte* to) const;
  std::string_view read_string(std::string_view text) const {
    return is_missing(text) ? std::string_view(default_text_) : text;
  }
  at::Tensor scalar(std::string_view text) const;

 private:
  // Throws if the value is missing and the column has no default.
  bool is_missing(std::string_view text) const {
    if (!text.empty() && text != na_value_) return false;
    if (!has_default_) fail_without_default(text);
    return true;
  }
  [[noreturn]] void fail_without_default(std::string_view text) const;
  template <class T>
  void read(std::string_view text, std::byte* to) const;

  at::ScalarType dtype_;
  std::size_t number_;
  std::string na_value_;
  bool has_default_;
  bool has_real_default_ = false;
  std::int64_t default_integer_ = 0;
  double default_real_ = 0;
  std::string default_text_;
};

// Thread-safe.
class CsvRowReader {
 public:
  explicit CsvRowReader(const CsvOptions& options);

  // Throws invalid_argument for a row that does not have these columns.
  void read(std::string_view row, Fields& fields) const;
  // The batch uses this reader, which must outlive it.
  std::unique_ptr<ValueBatch> start_batch() const;

  const std::vector<CsvColumnReader>& columns() const { return columns_; }
  // Splits the row into texts, one for each column.
  void cut(std::string_view row, CsvFields& texts) const;

 private:
  std::vector<CsvColumnReader> columns_;
  bool takes_all_;
  char delimiter_;
};

}  // namespace cohort::data
