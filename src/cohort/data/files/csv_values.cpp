// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/csv_values.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/files/csv_number.h"

namespace cohort::data {
namespace {

// At most this many rows are preallocated for a batch, even if it is larger.
constexpr std::int64_t kFirstRowsMax = 4096;

constexpr std::size_t kFieldShownMax = 80;  // bytes of a text that a message shows
constexpr std::string_view kCounted = " (columns are counted from 0)";

template <class... Parts>
[[noreturn]] void fail_in_column(std::size_t column, bool is_number, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw CsvFieldError(column, is_number, text.str());
}

// Writes numbers directly into the batch, so no tensor is created for a field or a row. Used from
// one stage.
class CsvBatch final : public ValueBatch {
 public:
  explicit CsvBatch(const CsvRowReader& rows) : rows_(rows), columns_(rows.columns().size()) {}

  void begin(std::int64_t count_max) override {
    count_max_ = count_max;
    size_ = capacity_ = 0;
    for (Column& column : columns_) {
      column.bytes.reserve(column.bytes_before);
      column.bytes.clear();
      column.ends.clear();
    }
    grow();
  }

  void add(std::string_view row) override {
    rows_.cut(row, texts_);
    if (size_ == capacity_) grow();
    for (std::size_t i = 0; i < columns_.size(); ++i) put(rows_.columns()[i], columns_[i]);
    ++size_;
  }

  Fields take() override {
    Fields batch;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      Column& column = columns_[i];
      if (is_string(i)) {
        column.bytes_before = column.bytes.size() + column.bytes.size() / 16;
        batch.push_back(StringTensor({size_}, std::move(column.bytes), std::move(column.ends)));
        column.bytes = {};
        column.ends = {};
      } else if (size_ < capacity_) {
        // Copies a short batch to memory of its own size, since it may be kept or sent.
        batch.push_back(column.numbers.narrow(0, 0, size_).clone());
      } else {
        batch.push_back(std::move(column.numbers));
      }
      column.numbers = at::Tensor();
      column.data = nullptr;
    }
    return batch;
  }

 private:
  struct Column {
    at::Tensor numbers;
    std::byte* data = nullptr;  // of `numbers`
    std::size_t item_bytes = 0;
    std::string bytes;  // of the strings, whose ends are in `ends`
    std::vector<std::uint64_t> ends;
    std::size_t bytes_before = 0;  // the size of the last batch, as an estimate for this one
  };

  bool is_string(std::size_t i) const { return rows_.columns()[i].dtype() == kString; }

  void put(const CsvColumnReader& reader, Column& column) {
    const std::string_view text = texts_[reader.number()];
    if (reader.dtype() != kString) {
      reader.read_number(text, column.data + static_cast<std::size_t>(size_) * column.item_bytes);
      return;
    }
    column.bytes += reader.read_string(text);
    column.ends.push_back(column.bytes.size());
  }

  void grow() {
    capacity_ =
        std::min(count_max_, capacity_ == 0 ? std::min(count_max_, kFirstRowsMax) : 2 * capacity_);
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      Column& column = columns_[i];
      if (is_string(i)) {
        column.ends.reserve(static_cast<std::size_t>(capacity_));
        continue;
      }
      at::Tensor grown = at::empty({capacity_}, rows_.columns()[i].dtype());
      column.item_bytes = grown.itemsize();
      auto* data = static_cast<std::byte*>(grown.data_ptr());
      if (size_ > 0) {
        std::memcpy(data, column.data, static_cast<std::size_t>(size_) * column.item_bytes);
      }
      column.numbers = std::move(grown);
      column.data = data;
    }
  }

  const CsvRowReader& rows_;
  CsvFields texts_;
  std::vector<Column> columns_;
  std::int64_t count_max_ = 0;
  std::int64_t size_ = 0;
  std::int64_t capacity_ = 0;
};

}  // namespace

CsvColumnReader::CsvColumnReader(const CsvColumn& column, std::size_t number,
                                 const std::string& na_value)
    : dtype_(column.dtype),
      number_(number),
      na_value_(na_value),
      has_default_(column.default_value.has_value()) {
  if (!has_default_) return;
  const Nest& given = *column.default_value;
  if (given.kind() == Nest::Kind::integer) default_integer_ = given.integer();
  if (given.kind() == Nest::Kind::text) default_text_ = given.text();
  has_real_default_ = given.kind() == Nest::Kind::real;
  if (has_real_default_) default_real_ = given.real();
}

void CsvColumnReader::fail_without_default(std::string_view text) const {
  fail_in_column(number_, false, "[data.csv] expected a value in column ", number_,
                 ", which is required, got '", text, "'", kCounted, "; give the column a default");
}

template <class T>
void CsvColumnReader::read(std::string_view text, std::byte* to) const {
  T value{};
  if (is_missing(text)) {
    value = has_real_default_ ? static_cast<T>(default_real_) : static_cast<T>(default_integer_);
  } else if (!parse_number(text, value)) {
    fail_in_column(
        number_, true, "[data.csv] expected ", dtype_name(dtype_), " in column ", number_,
        ", got '", text.substr(0, kFieldShownMax), text.size() > kFieldShownMax ? "…'" : "'",
        kCounted, "; give the column another dtype, or a default and .na_value for missing values");
  }
  std::memcpy(to, &value, sizeof(T));
}

void CsvColumnReader::read_number(std::string_view text, std::byte* to) const {
  switch (dtype_) {
    case at::ScalarType::Int:
      return read<std::int32_t>(text, to);
    case at::ScalarType::Long:
      return read<std::int64_t>(text, to);
    case at::ScalarType::Float:
      return read<float>(text, to);
    default:
      return read<double>(text, to);
  }
}

at::Tensor CsvColumnReader::scalar(std::string_view text) const {
  if (dtype_ == kString) return StringTensor(std::string(read_string(text)));
  // Does not use the dispatcher, which takes longer than parsing the number.
  const at::Tensor tensor = at::detail::empty_cpu(at::IntArrayRef(), dtype_);
  read_number(text, static_cast<std::byte*>(tensor.data_ptr()));
  return tensor;
}

CsvRowReader::CsvRowReader(const CsvOptions& options)
    : takes_all_(options.select_columns.empty()), delimiter_(options.delimiter) {
  for (std::size_t i = 0; i < options.columns.size(); ++i) {
    const auto number = takes_all_ ? i : static_cast<std::size_t>(options.select_columns[i]);
    columns_.emplace_back(options.columns[i], number, options.na_value);
  }
}

void CsvRowReader::cut(std::string_view row, CsvFields& texts) const {
  texts.parse(row, delimiter_);
  const std::size_t wanted = columns_.back().number() + 1;
  // A blank line may be a missing value of the only column.
  COHORT_CHECK(!row.empty() || (wanted == 1 && columns_[0].has_default()),
               ErrorCode::invalid_argument, "[data.csv] expected ", takes_all_ ? "" : "at least ",
               wanted, wanted == 1 ? " field" : " fields",
               " in a row, got a blank line; remove it from the file, or skip it with "
               "ignore_errors()");
  if (takes_all_) {
    COHORT_CHECK(texts.size() == columns_.size(), ErrorCode::invalid_argument,
                 "[data.csv] expected ", columns_.size(), " fields in a row, got ", texts.size(),
                 "; describe every column of the file in .columns, or choose some with "
                 ".select_columns; the .delimiter is '",
                 delimiter_, "'");
    return;
  }
  COHORT_CHECK(wanted <= texts.size(), ErrorCode::invalid_argument, "[data.csv] expected at least ",
               wanted, " fields in a row, got ", texts.size(), "; the .delimiter is '", delimiter_,
               "'");
}

void CsvRowReader::read(std::string_view row, Fields& fields) const {
  thread_local CsvFields texts;  // its memory is reused for the next row
  cut(row, texts);
  Fields made;
  made.reserve(columns_.size());
  for (const CsvColumnReader& column : columns_) {
    made.push_back(column.scalar(texts[column.number()]));
  }
  fields = std::move(made);
}

std::unique_ptr<ValueBatch> CsvRowReader::start_batch() const {
  return std::make_unique<CsvBatch>(*this);
}

}  // namespace cohort::data
