// SPDX-License-Identifier: Apache-2.0
// Rows of CSV files and their fields (RFC 4180). Does not use LibTorch.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/data/internal/files/buffered_reader.h"
#include "cohort/data/internal/files/csv_places.h"
#include "cohort/data/internal/files/file_scanner.h"

namespace cohort::data {

// Finds the next occurrence of a character in a text that arrives in pieces. Looks at each byte
// only once, whatever the number of pieces. Used from one scan.
class NextCharacter {
 public:
  explicit NextCharacter(char character) : character_(character) {}

  // The position of the first occurrence in `text`; npos if there is none. `offset` is that of the
  // text in the file, and must not be less than in the last call.
  std::size_t find_in(std::string_view text, std::uint64_t offset);
  void restart() { *this = NextCharacter(character_); }

 private:
  char character_;
  bool is_found_ = false;
  std::uint64_t at_ = 0;  // where it was found, or the end of the searched part of the file
};

// A field that is not a value of its column, whose number in the row is `column`.
class CsvFieldError final : public Error {
 public:
  CsvFieldError(std::size_t column, bool is_number, std::string message)
      : Error(ErrorCode::invalid_argument, std::move(message)),
        column_(column),
        is_number_(is_number) {}

  std::size_t column() const { return column_; }
  // Whether the column requires a number and the text is not one.
  bool is_number() const { return is_number_; }

 private:
  std::size_t column_;
  bool is_number_;
};

// Rows end in "\n", "\r\n" or "\r"; inside quotes these are text. The last row may end with the
// file. A UTF-8 byte order mark at the start is not part of the first row. Used from one thread at
// a time.
class CsvScanner final : public FileScanner {
 public:
  // Opens the file. If a header is expected, the first row must exist.
  CsvScanner(CsvFile file, std::int64_t buffer_bytes);

  bool next(std::string_view& row) override;
  std::uint64_t offset() const override { return reader_.offset(); }
  void seek(std::uint64_t offset) override;
  // Adds the line in which the row starts, and the number and the name of the column.
  Error located(const Error& error, const std::string& path) override;

 private:
  bool next_row(std::string_view& row);
  void pass_byte_order_mark();
  // The end of the row at the front of `seen`, if it is simple to find: at "\n" or "\r" without a
  // quote before it; npos otherwise.
  std::size_t plain_end(std::string_view seen);

  BufferedReader reader_;
  NextCharacter newline_{'\n'};
  NextCharacter return_{'\r'};
  NextCharacter quote_{'"'};
  CsvFile file_;
  CsvPlaces places_;
  std::uint64_t row_begin_ = 0;  // of the last row
};

// Splits a row into fields. Quoted fields lose their quotes. Used only from one reader.
class CsvFields {
 public:
  // Throws invalid_argument for quotes in the wrong place.
  void parse(std::string_view row, char delimiter);
  std::size_t size() const { return fields_.size(); }
  // Valid until the next parse, and while the row is valid.
  std::string_view operator[](std::size_t i) const { return fields_[i]; }

 private:
  // Splits a row without quotes.
  void cut_at(std::string_view row, char delimiter);
  std::string_view unescaped(std::string_view quoted);

  std::vector<std::string_view> fields_;
  std::deque<std::string> texts_;  // the values of fields with quotes inside
};

// Ignores blanks around the number. Returns false if the text is not a number or is out of range.
bool parse_number(std::string_view text, std::int32_t& value);
bool parse_number(std::string_view text, std::int64_t& value);
bool parse_number(std::string_view text, float& value);
bool parse_number(std::string_view text, double& value);

}  // namespace cohort::data
