// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/data/files/csv_row.h"

namespace cohort::data {
namespace {

constexpr std::size_t kCountedAtOnce = 16 << 10;
constexpr std::int64_t kHeaderReadBytes = 16 << 10;
constexpr std::size_t kNameShownMax = 80;

}  // namespace

std::optional<std::uint64_t> CsvPlaces::line_at(std::uint64_t offset) {
  try {
    count_to(offset);
  } catch (const Error&) {
    stream_.reset();
    return std::nullopt;
  }
  return offset_ == offset ? std::optional(line_) : std::nullopt;
}

void CsvPlaces::count_to(std::uint64_t offset) {
  if (!stream_ || offset < offset_) {
    stream_ = open_stream(file_.path, file_.compression, "csv");
    offset_ = 0;
    line_ = 1;
    is_behind_return_ = false;
  }
  std::array<char, kCountedAtOnce> buffer;
  while (offset_ < offset) {
    const std::size_t wanted = std::min<std::uint64_t>(buffer.size(), offset - offset_);
    const std::size_t got = stream_->read(std::span(buffer).first(wanted));
    if (got == 0) return;
    for (const char c : std::span(buffer).first(got)) {
      if (c == '\r' || (c == '\n' && !is_behind_return_)) ++line_;
      is_behind_return_ = c == '\r';
    }
    offset_ += got;
  }
}

std::string CsvPlaces::column_name(std::size_t number) {
  if (!names_) names_ = read_names();
  return number < names_->size() ? (*names_)[number].substr(0, kNameShownMax) : "";
}

std::vector<std::string> CsvPlaces::read_names() const {
  std::vector<std::string> names;
  try {
    CsvFile first_row = file_;
    first_row.has_header = false;
    CsvScanner scanner(std::move(first_row), kHeaderReadBytes);
    CsvFields fields;
    std::string_view row;
    if (!scanner.next(row)) return names;
    fields.parse(row, file_.delimiter);
    for (std::size_t i = 0; i < fields.size(); ++i) names.emplace_back(fields[i]);
  } catch (const Error&) {
    // The caller's error then contains no column name.
  }
  return names;
}

}  // namespace cohort::data
