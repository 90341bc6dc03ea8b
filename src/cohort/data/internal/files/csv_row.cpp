// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/internal/files/csv_row.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <limits>

#include "cohort/core/error.h"

namespace cohort::data {
namespace {

bool ends_row(char c) { return c == '\n' || c == '\r'; }

// Follows the states of a row while its fields are split. As in tf, a quote that closes nothing
// leaves the field open. Used only from one scan.
class RowWalk {
 public:
  explicit RowWalk(char delimiter) : delimiter_(delimiter) {}

  // The end of the row in text[from, …); npos if the row does not end there.
  std::size_t find_end(std::string_view text, std::size_t from) {
    for (std::size_t i = from; i < text.size(); ++i) {
      const char c = text[i];
      switch (state_) {
        case State::field_start:
        case State::plain:
          if (ends_row(c)) return i;
          if (c == delimiter_) {
            state_ = State::field_start;
          } else {
            state_ = c == '"' && state_ == State::field_start ? State::quoted : State::plain;
          }
          break;
        case State::quoted:
          i = text.find('"', i);
          if (i == std::string_view::npos) return i;
          state_ = State::quote;
          break;
        case State::quote:
          if (ends_row(c)) return i;
          state_ = c == delimiter_ ? State::field_start : State::quoted;
          break;
      }
    }
    return std::string_view::npos;
  }

 private:
  // quote: after a quote in a quoted field, which closes the field or is the first of a doubled
  // quote.
  enum class State : std::uint8_t { field_start, plain, quoted, quote };
  char delimiter_;
  State state_ = State::field_start;
};

[[noreturn]] void fail_in_row(std::string_view row, std::string_view problem) {
  constexpr std::size_t kShownMax = 80;
  internal::throw_error(ErrorCode::invalid_argument, "[data.csv] expected fields of RFC 4180, got ",
                        problem, " in row '", row.substr(0, kShownMax),
                        row.size() > kShownMax ? "…'" : "'");
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// "+5" is a number, "+-5" is not.
bool drop_plus(std::string_view& text) {
  if (!text.starts_with('+')) return true;
  text.remove_prefix(1);
  return !text.starts_with('-');
}

// Parses a text without blanks, and without signs and prefixes that from_chars does not accept.
template <class T>
bool parse_plain(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

template <class T>
bool parse_integer(std::string_view text, T& value) {
  if (parse_plain(text, value)) return true;
  text = trimmed(text);
  return drop_plus(text) && parse_plain(text, value);
}

// The exponent of a decimal number; clamped to a value that no number of digits can compensate.
std::int64_t decimal_exponent(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  std::int64_t exponent = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), exponent);
  constexpr std::int64_t kFar = std::int64_t{1} << 60;
  if (error == std::errc()) return std::clamp(exponent, -kFar, kFar);
  return text.starts_with('-') ? -kFar : kFar;
}

// A number that is too large is infinite, one that is too small is 0. The position of its first
// nonzero digit tells which of the two it is.
template <class T>
T out_of_range_value(std::string_view text) {
  const std::size_t end = std::min(text.find_first_of("eE"), text.size());
  const std::string_view digits = text.substr(0, end);
  const std::size_t first = digits.find_first_of("123456789");
  if (first == std::string_view::npos) return T(0);
  const auto point = static_cast<std::int64_t>(std::min(digits.find('.'), digits.size()));
  // > 0: the digit is before the point.
  const std::int64_t above = point - static_cast<std::int64_t>(first);
  const std::int64_t power = above > 0 ? above - 1 : above;
  const std::int64_t exponent = end == text.size() ? 0 : decimal_exponent(text.substr(end + 1));
  return power + exponent < 0 ? T(0) : std::numeric_limits<T>::infinity();
}

// The powers of ten that T can represent exactly.
template <class T>
constexpr auto kExactPowers = [] {
  std::array<T, sizeof(T) == sizeof(float) ? 11 : 23> powers{};
  T power = 1;
  for (T& entry : powers) {
    entry = power;
    power *= 10;
  }
  return powers;
}();

// Parses numbers such as "-12.34" if T can represent the digits and the power of ten exactly. One
// division then rounds only once, so the result equals that of from_chars, in half the time
// (Clinger's fast path). Returns false for all other numbers.
template <class T>
bool parse_short_decimal(std::string_view text, T& value) {
  constexpr std::size_t kTextMax = 18;  // this many digits fit 64 bits
  if (text.empty() || text.size() > kTextMax) return false;
  const bool is_negative = text[0] == '-';
  std::uint64_t number = 0;
  std::size_t point = text.size();
  std::size_t digits = 0;
  for (std::size_t i = is_negative ? 1 : 0; i < text.size(); ++i) {
    const auto digit = static_cast<unsigned>(text[i]) - '0';
    if (digit < 10) {
      number = number * 10 + digit;
      ++digits;
    } else if (text[i] == '.' && point == text.size()) {
      point = i;
    } else {
      return false;
    }
  }
  const std::size_t decimals = point == text.size() ? 0 : text.size() - point - 1;
  constexpr std::uint64_t kExactMax = std::uint64_t{1} << std::numeric_limits<T>::digits;
  if (digits == 0 || number > kExactMax || decimals >= kExactPowers<T>.size()) return false;
  value = static_cast<T>(number) / kExactPowers<T>[decimals];
  if (is_negative) value = -value;
  return true;
}

template <class T>
bool parse_real(std::string_view text, T& value) {
  if (parse_short_decimal(text, value) || parse_plain(text, value)) return true;
  text = trimmed(text);
  if (!drop_plus(text)) return false;
  const bool is_negative = text.starts_with('-');
  const std::string_view digits = text.substr(is_negative ? 1 : 0);
  if (digits.starts_with("0x") || digits.starts_with("0X")) {
    const std::string_view hex = digits.substr(2);
    if (hex.find_first_of("0123456789abcdefABCDEF.") != 0) return false;  // as "-1", "inf", "nan"
    const auto [end, error] = std::from_chars(digits.data() + 2, digits.data() + digits.size(),
                                              value, std::chars_format::hex);
    if (is_negative) value = -value;
    return error == std::errc() && end == digits.data() + digits.size();
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return false;
  if (error == std::errc::result_out_of_range) {
    value = out_of_range_value<T>(digits);
    if (is_negative) value = -value;
  }
  return error == std::errc() || error == std::errc::result_out_of_range;
}

}  // namespace

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
    : reader_(open_stream(file.path, file.compression, "csv"), buffer_bytes),
      file_(file),
      places_(std::move(file)) {}

void CsvScanner::seek(std::uint64_t offset) {
  reader_.seek(offset);
  for (NextCharacter* next : {&newline_, &return_, &quote_}) next->restart();
}

std::size_t CsvScanner::plain_end(std::string_view seen) {
  const std::uint64_t offset = reader_.offset();
  const std::size_t end = std::min(newline_.find_in(seen, offset), return_.find_in(seen, offset));
  return quote_.find_in(seen, offset) < end ? std::string_view::npos : end;
}

bool CsvScanner::next_row(std::string_view& row) {
  std::string_view seen = reader_.peek(1);
  if (seen.empty()) return false;
  RowWalk walk(file_.delimiter);
  std::size_t searched = 0;
  std::size_t end = plain_end(seen);
  if (end == std::string_view::npos) end = walk.find_end(seen, 0);
  while (end == std::string_view::npos) {
    searched = seen.size();
    seen = reader_.peek(searched + 1);
    if (seen.size() == searched) {
      row = seen;
      reader_.advance(seen.size());
      return true;
    }
    end = walk.find_end(seen, searched);
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

void CsvScanner::pass_byte_order_mark() {
  if (reader_.peek(kByteOrderMark.size()).starts_with(kByteOrderMark)) {
    reader_.advance(kByteOrderMark.size());
  }
}

bool CsvScanner::next(std::string_view& row) {
  if (reader_.offset() == 0) {
    pass_byte_order_mark();
    COHORT_CHECK(!file_.has_header || next_row(row), ErrorCode::invalid_argument,
                 "[data.csv] expected a header in file '", file_.path, "', got an empty file");
  }
  row_begin_ = reader_.offset();
  return next_row(row);
}

Error CsvScanner::located(const Error& error, const std::string& path) {
  const auto* field = dynamic_cast<const CsvFieldError*>(&error);
  const std::optional<std::uint64_t> line = places_.line_at(row_begin_);
  std::string where = "reading '" + path + "'";
  if (line) where += ", line " + std::to_string(*line);
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

bool parse_number(std::string_view text, std::int32_t& value) { return parse_integer(text, value); }
bool parse_number(std::string_view text, std::int64_t& value) { return parse_integer(text, value); }
bool parse_number(std::string_view text, float& value) { return parse_real(text, value); }
bool parse_number(std::string_view text, double& value) { return parse_real(text, value); }

}  // namespace cohort::data
