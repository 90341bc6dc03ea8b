// SPDX-License-Identifier: Apache-2.0
// Rows of CSV files and their fields (RFC 4180). Does not use LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/data/dataset_options.h"
#include "cohort/data/files/file_scanner.h"
#include "cohort/data/files/file_stream.h"

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

class RowWalk;  // csv_row.cpp

// Rows end in "\n", "\r\n" or "\r"; inside quotes these are text. The last row may end with the
// file, and blank lines at its end are no rows. A UTF-8 byte order mark at the start is not part of
// the first row. A row that is too long, or whose quotes are in the wrong place, is one error, and
// reading continues after the line in which the open quote stands
// (docs/decisions/0093-a-quote-costs-its-line.md). Used from one thread at a time.
class CsvScanner final : public FileScanner {
 public:
  // Opens the file. If a header is expected, the first row must exist.
  CsvScanner(CsvFile file, std::int64_t buffer_bytes);

  bool next(std::string_view& row) override;
  bool goes_on() const override { return goes_on_; }
  void seek(std::uint64_t offset) override;
  // Adds the lines of the row, and the number and the name of the column.
  Error located(const Error& error, const std::string& path) override;

 private:
  bool next_row(std::string_view& row);
  // The end of the row at the front of the reader; npos if the file ends with it.
  std::size_t find_end(std::string_view& seen, RowWalk& walk);
  void check_row(std::string_view seen, std::size_t end, const RowWalk& walk);
  // Whether nothing but line ends follows.
  bool is_at_blank_end();
  // Continues after the line that contains the byte at `index` of what follows.
  void pass_line(std::size_t index);
  // The place of the byte at `index` of the row for a message: "line 3" or "byte 12".
  std::string place_in_row(std::string_view seen, std::size_t index);
  // The place of the last row: "line 3", "lines 3 to 5" or "".
  std::string lines_of_row();
  void pass_byte_order_mark();
  // The end of the row at the front of `seen`, if it is simple to find: at "\n" or "\r" without a
  // quote before it; npos otherwise.
  std::size_t plain_end(std::string_view seen);

  NextCharacter newline_{'\n'};
  NextCharacter return_{'\r'};
  NextCharacter quote_{'"'};
  CsvFile file_;
  CsvPlaces places_;
  std::uint64_t row_begin_ = 0;  // of the last row
  std::uint64_t row_end_ = 0;
  std::uint64_t blank_end_ = 0;  // line ends before this byte are not those at the end of the file
  bool goes_on_ = false;
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

}  // namespace cohort::data
