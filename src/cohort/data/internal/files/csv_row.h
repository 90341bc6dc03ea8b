// SPDX-License-Identifier: Apache-2.0
// Rows of CSV files and their fields (RFC 4180). Free of LibTorch.
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

// Finds the next of a character in a text that is passed over piece by piece, and looks at each
// byte once however many pieces there are. Used from one scan.
class NextCharacter {
 public:
  explicit NextCharacter(char character) : character_(character) {}

  // Where the first one in `text` is, npos without one. `offset`: of the text in the file, at least
  // that of the call before.
  std::size_t find_in(std::string_view text, std::uint64_t offset);
  void restart() { *this = NextCharacter(character_); }

 private:
  char character_;
  bool is_found_ = false;
  std::uint64_t at_ = 0;  // where it was found, or how far the file was searched
};

// A field that is no value of its column. `column`: its number in the row.
class CsvFieldError final : public Error {
 public:
  CsvFieldError(std::size_t column, bool is_number, std::string message)
      : Error(ErrorCode::invalid_argument, std::move(message)),
        column_(column),
        is_number_(is_number) {}

  std::size_t column() const { return column_; }
  // Whether the column wants a number and got another text.
  bool is_number() const { return is_number_; }

 private:
  std::size_t column_;
  bool is_number_;
};

// Rows end in "\n", "\r\n" or "\r"; inside quotes these are text. The last may end with the file. A
// byte order mark of UTF-8 in front is no part of the first row. Used from one thread at a time.
class CsvScanner final : public FileScanner {
 public:
  // Opens the file. A header is one row, which must be there.
  CsvScanner(CsvFile file, std::int64_t buffer_bytes);

  bool next(std::string_view& row) override;
  std::uint64_t offset() const override { return reader_.offset(); }
  void seek(std::uint64_t offset) override;
  // With the line in which the row begins, and the number and the name of the column.
  Error located(const Error& error, const std::string& path) override;

 private:
  bool next_row(std::string_view& row);
  void pass_byte_order_mark();
  // Where the row at the front of `seen` ends, if that is plain to see: in "\n" or "\r" without a
  // quote before; npos otherwise.
  std::size_t plain_end(std::string_view seen);

  BufferedReader reader_;
  NextCharacter newline_{'\n'};
  NextCharacter return_{'\r'};
  NextCharacter quote_{'"'};
  CsvFile file_;
  CsvPlaces places_;
  std::uint64_t row_begin_ = 0;  // of the last row
};

// Cuts a row. A quoted field comes without its quotes. Used only from one reader.
class CsvFields {
 public:
  // invalid_argument where quotes stand in the wrong place.
  void parse(std::string_view row, char delimiter);
  std::size_t size() const { return fields_.size(); }
  // Valid until the next parse, and as long as the row.
  std::string_view operator[](std::size_t i) const { return fields_[i]; }

 private:
  // A row without quotes.
  void cut_at(std::string_view row, char delimiter);
  std::string_view unescaped(std::string_view quoted);

  std::vector<std::string_view> fields_;
  std::deque<std::string> texts_;  // of fields with quotes inside
};

// Blanks around a number do not count. False where it is none or out of range.
bool parse_number(std::string_view text, std::int32_t& value);
bool parse_number(std::string_view text, std::int64_t& value);
bool parse_number(std::string_view text, float& value);
bool parse_number(std::string_view text, double& value);

}  // namespace cohort::data
