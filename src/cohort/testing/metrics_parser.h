// SPDX-License-Identifier: Apache-2.0
// For tests: a strict parser of the text format of Prometheus, version 0.0.4, written from its
// specification (https://prometheus.io/docs/instrumenting/exposition_formats/).
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace cohort::testing {

// Throws std::runtime_error, naming the line, for text that is not in the format. Used only from
// one thread.
class MetricsParser {
 public:
  using Labels = std::map<std::string, std::string>;

  explicit MetricsParser(std::string_view text) {
    if (!text.empty() && text.back() != '\n') fail("the last line must end with a line feed");
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      line_ = rest_ = text.substr(0, end);
      text.remove_prefix(end + 1);
      skip_blanks();
      if (rest_.empty()) continue;
      rest_.front() == '#' ? comment() : sample();
    }
  }
  // NaN if there is no such sample.
  double value(const std::string& name, const Labels& labels) const {
    const auto found = samples_.find({name, labels});
    return found == samples_.end() ? std::nan("") : found->second;
  }
  std::size_t num_samples() const { return samples_.size(); }
  std::string kind(const std::string& name) const {
    const auto found = kinds_.find(name);
    return found == kinds_.end() ? "untyped" : found->second;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw std::runtime_error(why + ": '" + std::string(line_) + "'");
  }
  void expect(bool is_so, const std::string& what) const {
    if (!is_so) fail("expected " + what);
  }
  void skip_blanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t"), rest_.size()));
  }
  std::string_view token() {
    skip_blanks();
    const std::string_view found = rest_.substr(0, rest_.find_first_of(" \t"));
    rest_.remove_prefix(found.size());
    return found;
  }
  static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }
  // [a-zA-Z_:][a-zA-Z0-9_:]*; labels have no colon.
  std::string name(bool may_have_colon) {
    const auto fits = [&](char c, bool is_first) {
      return is_letter(c) || (may_have_colon && c == ':') || (!is_first && c >= '0' && c <= '9');
    };
    std::size_t size = 0;
    while (size < rest_.size() && fits(rest_[size], size == 0)) ++size;
    expect(size > 0, "a name");
    const std::string found(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return found;
  }
  void comment() {
    rest_.remove_prefix(1);
    const std::string_view kind = token();
    if (kind != "HELP" && kind != "TYPE") return;
    skip_blanks();
    const std::string metric = name(true);
    expect(rest_.empty() || rest_.front() == ' ' || rest_.front() == '\t', "a blank after a name");
    enter(metric);
    expect(!has_samples_, "HELP and TYPE before the samples");
    if (kind == "HELP") {
      expect(helps_.insert(metric).second, "one HELP for each metric");
      skip_blanks();
      for (std::size_t i = 0; i < rest_.size(); ++i) {
        if (rest_[i] != '\\') continue;
        expect(++i < rest_.size() && (rest_[i] == '\\' || rest_[i] == 'n'), "\\\\ or \\n in HELP");
      }
      return;
    }
    const std::string type(token());
    expect(
        std::set<std::string>{"counter", "gauge", "histogram", "summary", "untyped"}.contains(type),
        "a type");
    expect(token().empty(), "nothing after the type");
    expect(kinds_.emplace(metric, type).second, "one TYPE for each metric");
  }
  // All lines of a metric are one group.
  void enter(const std::string& metric) {
    if (metric == current_) return;
    expect(seen_.insert(metric).second, "one group of lines for each metric");
    current_ = metric;
    has_samples_ = false;
  }
  std::string label_value() {
    std::string value;
    expect(!rest_.empty() && rest_.front() == '"', "a quote");
    std::size_t i = 1;
    for (; i < rest_.size() && rest_[i] != '"'; ++i) {
      if (rest_[i] != '\\') {
        value += rest_[i];
        continue;
      }
      expect(++i < rest_.size(), "a character after a backslash");
      const char c = rest_[i];
      expect(c == '\\' || c == '"' || c == 'n', "\\\\, \\\" or \\n in a label");
      value += c == 'n' ? '\n' : c;
    }
    expect(i < rest_.size(), "the end of a label's value");
    rest_.remove_prefix(i + 1);
    return value;
  }
  Labels labels() {
    Labels found;
    if (rest_.empty() || rest_.front() != '{') return found;
    rest_.remove_prefix(1);
    while (true) {
      skip_blanks();
      expect(!rest_.empty(), "the end of the labels");
      if (rest_.front() == '}') break;
      const std::string label = name(false);
      skip_blanks();
      expect(!rest_.empty() && rest_.front() == '=', "an equals sign");
      rest_.remove_prefix(1);
      skip_blanks();
      expect(found.emplace(label, label_value()).second, "each label once");
      skip_blanks();
      expect(!rest_.empty() && (rest_.front() == ',' || rest_.front() == '}'), "a comma or brace");
      if (rest_.front() == ',') rest_.remove_prefix(1);
    }
    rest_.remove_prefix(1);
    return found;
  }
  double number() {
    const std::string_view text = token();
    expect(!text.empty(), "a value");
    if (text == "NaN") return std::nan("");
    if (text == "+Inf" || text == "-Inf") return text.front() == '-' ? -INFINITY : INFINITY;
    double value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    expect(parsed.ec == std::errc() && parsed.ptr == text.data() + text.size(), "a number");
    return value;
  }
  void sample() {
    const std::string metric = name(true);
    enter(metric);
    has_samples_ = true;
    skip_blanks();
    const Labels found = labels();
    const double value = number();
    skip_blanks();
    expect(rest_.empty(), "nothing after the value");  // we send no times
    expect(kind(metric) != "counter" || value >= 0, "a counter of at least 0");
    expect(samples_.emplace(std::pair(metric, found), value).second, "each sample once");
  }

  std::string_view line_;
  std::string_view rest_;
  std::string current_;
  bool has_samples_ = false;
  std::set<std::string> seen_;
  std::set<std::string> helps_;
  std::map<std::string, std::string> kinds_;
  std::map<std::pair<std::string, Labels>, double> samples_;
};

}  // namespace cohort::testing
