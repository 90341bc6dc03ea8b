// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/csv_row.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <sstream>

namespace cohort::data {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

bool ends_row(char c) { return c == '\n' || c == '\r'; }

// "\r\n" is one.
std::size_t count_line_ends(std::string_view text) {
  std::size_t count = 0;
  char last = 0;
  for (const char c : text) {
    if (c == '\r' || (c == '\n' && last != '\r')) ++count;
    last = c;
  }
  return count;
}

constexpr const char* kExpected = "[data.csv] expected fields of RFC 4180, got ";

[[noreturn]] void fail_in_row(std::string_view row, std::string_view problem) {
  constexpr std::size_t kShownMax = 80;
  internal::throw_error(ErrorCode::invalid_argument, kExpected, problem, " in row '",
                        row.substr(0, kShownMax), row.size() > kShownMax ? "…'" : "'");
}

}  // namespace

// Follows the states of a row while its fields are split. Used only from one scan.
class RowWalk {
 public:
  explicit RowWalk(char delimiter) : delimiter_(delimiter) {}

  // The end of the row in text[from, …); npos if the row does not end there, or if a quote before
  // its end is in the wrong place.
  std::size_t find_end(std::string_view text, std::size_t from) {
    for (std::size_t i = from; i < text.size(); ++i) {
      const char c = text[i];
      switch (state_) {
        case State::field_start:
        case State::plain:
          if (ends_row(c)) return i;
          if (c == '"' && state_ == State::field_start) {
            state_ = State::quoted;
            opened_ = i;
          } else {
            state_ = c == delimiter_ ? State::field_start : State::plain;
          }
          break;
        case State::quoted:
          i = text.find('"', i);
          if (i == kNone) return i;
          state_ = State::quote;
          break;
        case State::quote:
          if (ends_row(c)) return i;
          if (c != delimiter_ && c != '"') {
            stray_ = i - 1;
            return kNone;
          }
          state_ = c == delimiter_ ? State::field_start : State::quoted;
          break;
      }
    }
    return kNone;
  }

  bool is_in_quotes() const { return state_ == State::quoted; }
  // The same, or directly behind a quote, which may be the first of a doubled one.
  bool may_be_in_quotes() const { return is_in_quotes() || state_ == State::quote; }
  // The position of the quote that opened the last quoted field.
  std::size_t opened() const { return opened_; }
  // The position of a quote that neither ends the quoted field nor is doubled; npos if there was
  // none.
  std::size_t stray() const { return stray_; }

 private:
  // quote: after a quote in a quoted field, which closes the field or is the first of a doubled
  // quote.
  enum class State : std::uint8_t { field_start, plain, quoted, quote };
  char delimiter_;
  State state_ = State::field_start;
  std::size_t opened_ = 0;
  std::size_t stray_ = kNone;
};

std::size_t NextCharacter::find_in(std::string_view text, std::uint64_t offset) {
  if (at_ < offset) {
    at_ = offset;
    is_found_ = false;
  }
  if (!is_found_) {
    const std::size_t found = text.find(character_, at_ - offset);
    is_found_ = found != std::string_view::npos;
    at_ = offset + (is_found_ ? found : text.size());
  }
  return is_found_ ? at_ - offset : std::string_view::npos;
}

CsvScanner::CsvScanner(CsvFile file, std::int64_t buffer_bytes)
    : FileScanner({open_stream(file.path, file.compression, "csv"), buffer_bytes}),
      file_(file),
      places_(std::move(file)) {
  if (file_.compression == Compression::none) reader_.check_is_text(file_.path, "csv");
}

void CsvScanner::seek(std::uint64_t offset) {
  FileScanner::seek(offset);
  blank_end_ = 0;
  for (NextCharacter* next : {&newline_, &return_, &quote_}) next->restart();
}

std::size_t CsvScanner::plain_end(std::string_view seen) {
  const std::uint64_t offset = reader_.offset();
  const std::size_t end = std::min(newline_.find_in(seen, offset), return_.find_in(seen, offset));
  return quote_.find_in(seen, offset) < end ? std::string_view::npos : end;
}

bool CsvScanner::next_row(std::string_view& row) {
  goes_on_ = false;
  row_begin_ = reader_.offset();
  std::string_view seen = reader_.peek(1);
  if (seen.empty()) return false;
  if (ends_row(seen[0]) && !file_.has_blank_rows) {
    if (is_at_blank_end()) return false;
    seen = reader_.peek(1);  // which the search may have moved
  }
  RowWalk walk(file_.delimiter);
  const std::size_t end = find_end(seen, walk);
  check_row(seen, end, walk);
  row_end_ = row_begin_ + std::min(end, seen.size());
  if (end == kNone) {
    row = seen;
    reader_.advance(seen.size());
    return true;
  }
  std::size_t next = end + 1;
  if (seen[end] == '\r') {
    seen = reader_.peek(end + 2);
    if (seen.size() > next && seen[next] == '\n') ++next;
  }
  row = seen.substr(0, end);
  reader_.advance(next);
  return true;
}

std::size_t CsvScanner::find_end(std::string_view& seen, RowWalk& walk) {
  const std::size_t plain = plain_end(seen);
  if (plain != kNone) return plain;
  // A row of the greatest length has one byte more, its end.
  const auto within_limit = [this](std::string_view text) {
    return text.substr(0, file_.row_bytes_max + 1);
  };
  std::size_t end = walk.find_end(within_limit(seen), 0);
  while (end == kNone && walk.stray() == kNone && seen.size() <= file_.row_bytes_max) {
    const std::size_t searched = seen.size();
    seen = reader_.peek(searched + 1);
    if (seen.size() == searched) break;
    end = walk.find_end(within_limit(seen), searched);
  }
  return end;
}

void CsvScanner::check_row(std::string_view seen, std::size_t end, const RowWalk& walk) {
  const std::size_t length = std::min(end, seen.size());
  const bool is_too_long = length > file_.row_bytes_max;
  const bool has_stray = walk.stray() != kNone;
  const bool is_open =
      end == kNone && (is_too_long ? walk.may_be_in_quotes() : walk.is_in_quotes());
  if (!is_too_long && !has_stray && !is_open) return;
  std::ostringstream problem;
  const std::string opened = place_in_row(seen, walk.opened());
  if (has_stray) {
    const std::string stray = place_in_row(seen, walk.stray());
    problem << kExpected << "a quote inside a quoted field, which must be doubled, in " << stray;
    if (stray != opened) problem << "; the field begins with a quote in " << opened;
  } else if (is_open) {
    problem << kExpected << "a quoted field without its end, which begins in " << opened;
    if (is_too_long) problem << " and has more than max_row_bytes = " << file_.row_bytes_max;
  } else {
    problem << "[data.csv] expected rows of at most max_row_bytes = " << file_.row_bytes_max
            << ", got a longer one in " << place_in_row(seen, 0);
  }
  const bool is_in_field = has_stray || is_open;
  if (is_in_field) problem << "; reading continues after " << opened;
  if (is_too_long && !has_stray) problem << "; if the row is right, raise .max_row_bytes";
  const std::size_t passed = is_in_field ? walk.opened() : length;
  row_end_ = row_begin_ + passed;
  const std::string lines = lines_of_row();
  pass_line(passed);
  goes_on_ = true;
  throw Error(ErrorCode::invalid_argument, problem.str())
      .during("reading '" + file_.path + "'" + lines + ", before byte " + std::to_string(offset()));
}

std::string CsvScanner::place_in_row(std::string_view seen, std::size_t index) {
  const std::optional<std::uint64_t> line = places_.line_at(row_begin_);
  if (!line) return "byte " + std::to_string(row_begin_ + index);
  return "line " + std::to_string(*line + count_line_ends(seen.substr(0, index)));
}

std::string CsvScanner::lines_of_row() {
  const std::optional<std::uint64_t> first = places_.line_at(row_begin_);
  if (!first) return "";
  const std::optional<std::uint64_t> last = places_.line_at(row_end_);
  if (!last || *last == *first) return ", line " + std::to_string(*first);
  return ", lines " + std::to_string(*first) + " to " + std::to_string(*last);
}

void CsvScanner::pass_line(std::size_t index) {
  reader_.advance(index);
  while (true) {
    const std::string_view seen = reader_.peek(1);
    if (seen.empty()) return;
    const std::size_t end = seen.find_first_of("\r\n");
    if (end == kNone) {
      reader_.advance(seen.size());
      continue;
    }
    const bool is_return = seen[end] == '\r';
    reader_.advance(end + 1);
    if (is_return && reader_.peek(1).starts_with('\n')) reader_.advance(1);
    return;
  }
}

bool CsvScanner::is_at_blank_end() {
  if (reader_.offset() < blank_end_) return false;
  std::string_view seen = reader_.peek(1);
  std::size_t found = seen.find_first_not_of("\r\n");
  while (found == kNone && seen.size() <= file_.row_bytes_max) {
    const std::size_t searched = seen.size();
    seen = reader_.peek(searched + 1);
    if (seen.size() == searched) {
      reader_.advance(seen.size());
      return true;
    }
    found = seen.find_first_not_of("\r\n", searched);
  }
  blank_end_ = reader_.offset() + std::min(found, seen.size());
  return false;
}

void CsvScanner::pass_byte_order_mark() {
  if (reader_.peek(kByteOrderMark.size()).starts_with(kByteOrderMark)) {
    reader_.advance(kByteOrderMark.size());
  }
}

bool CsvScanner::next(std::string_view& row) {
  if (reader_.offset() == 0) {
    goes_on_ = false;
    pass_byte_order_mark();
    COHORT_CHECK(!file_.has_header || next_row(row), ErrorCode::invalid_argument,
                 "[data.csv] expected a header in file '", file_.path, "', got an empty file");
  }
  return next_row(row);
}

Error CsvScanner::located(const Error& error, const std::string& path) {
  const auto* field = dynamic_cast<const CsvFieldError*>(&error);
  const std::optional<std::uint64_t> line = places_.line_at(row_begin_);
  std::string where = "reading '" + path + "'" + lines_of_row();
  if (field != nullptr) {
    where += ", column " + std::to_string(field->column());
    const std::string name = file_.has_header ? places_.column_name(field->column()) : "";
    if (!name.empty()) where += " ('" + name + "')";
  }
  where += ", before byte " + std::to_string(offset());
  if (field != nullptr && field->is_number() && line == std::uint64_t{1}) {
    return Error(error.code(),
                 error.message() + "; where the first line names the columns, set .header = true")
        .during(std::move(where));
  }
  return Error(error).during(std::move(where));
}

std::string_view CsvFields::unescaped(std::string_view quoted) {
  if (quoted.find('"') == std::string_view::npos) return quoted;
  std::string text;
  for (std::size_t i = 0; i < quoted.size(); ++i) {
    text += quoted[i];
    if (quoted[i] == '"') ++i;
  }
  return texts_.emplace_back(std::move(text));
}

void CsvFields::cut_at(std::string_view row, char delimiter) {
  const char* begin = row.data();
  const char* const end = row.data() + row.size();
  const auto end_field = [&](const char* at) {
    fields_.emplace_back(begin, static_cast<std::size_t>(at - begin));
    begin = at + 1;
  };
  const char* at = begin;
#ifdef __SSE2__
  const __m128i wanted = _mm_set1_epi8(delimiter);
  constexpr std::ptrdiff_t kBlock = sizeof wanted;
  for (; end - at >= kBlock; at += kBlock) {
    const __m128i block = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    auto found = static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(block, wanted)));
    for (; found != 0; found &= found - 1) end_field(at + std::countr_zero(found));
  }
#endif
  for (; at != end; ++at) {
    if (*at == delimiter) end_field(at);
  }
  fields_.emplace_back(begin, static_cast<std::size_t>(end - begin));
}

void CsvFields::parse(std::string_view row, char delimiter) {
  fields_.clear();
  if (!texts_.empty()) texts_.clear();
  if (row.find('"') == std::string_view::npos) return cut_at(row, delimiter);
  std::size_t begin = 0;
  while (true) {
    std::size_t end = 0;
    if (begin < row.size() && row[begin] == '"') {
      end = row.find('"', begin + 1);
      while (end != std::string_view::npos && end + 1 < row.size() && row[end + 1] == '"') {
        end = row.find('"', end + 2);
      }
      if (end == std::string_view::npos) fail_in_row(row, "a quoted field without its end");
      fields_.push_back(unescaped(row.substr(begin + 1, end - begin - 1)));
      ++end;
      if (end < row.size() && row[end] != delimiter) {
        fail_in_row(row, "a quote inside a quoted field, which must be doubled,");
      }
    } else {
      end = std::min(row.find(delimiter, begin), row.size());
      const std::string_view field = row.substr(begin, end - begin);
      if (field.find('"') != std::string_view::npos) {
        fail_in_row(row, "a quote inside a field without quotes");
      }
      fields_.push_back(field);
    }
    if (end == row.size()) return;
    begin = end + 1;
  }
}

}  // namespace cohort::data
