// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/device.h"

#include <cctype>
#include <charconv>
#include <set>
#include <vector>

#include "cohort/core/error.h"

namespace cohort {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Parses one device name; every error quotes the whole name.
class DeviceParser {
 public:
  explicit DeviceParser(std::string_view text) : text_(text) {}

  Device run() {
    std::string_view rest = text_;
    if (rest.starts_with('/')) rest.remove_prefix(1);
    for (const std::string_view component : split(rest, '/')) take(split(component, ':'));
    if (seen_.contains("job") != seen_.contains("task")) fail("job and task together");
    return device_;
  }

 private:
  void take(std::vector<std::string_view> words) {
    const std::string_view key = words.front();
    if (key == "job") {
      once(key);
      if (words.size() != 2 || words[1].empty()) fail("a name after \"job:\"");
      device_.job = words[1];
    } else if (key == "task") {
      once(key);
      if (words.size() != 2) fail("a number after \"task:\"");
      device_.task = number(words[1]);
    } else if (key == "replica") {
      once(key);
      // tf writes a replica into every full name, and it is always 0.
      if (words.size() != 2 || number(words[1]) != 0) fail("\"replica:0\" as the replica");
    } else {
      if (key == "device") words.erase(words.begin());
      take_type(words);
    }
  }

  void take_type(const std::vector<std::string_view>& words) {
    once("a device type");
    if (words.empty() || words.size() > 2 || words[0].empty())
      fail("one type and index, as \"CPU:0\"");
    device_.type.clear();
    for (const char c : words[0]) {
      const auto letter = static_cast<unsigned char>(c);
      if (std::isalnum(letter) == 0 && c != '_') fail("a type of letters, as CPU or GPU");
      device_.type += static_cast<char>(std::toupper(letter));
    }
    if (std::isdigit(static_cast<unsigned char>(device_.type[0])) != 0) {
      fail("a type before the index, as \"CPU:0\"");
    }
    device_.index = words.size() == 2 ? number(words[1]) : 0;
  }

  void once(std::string_view key) {
    if (!seen_.insert(key).second) fail("each part once");
  }

  int number(std::string_view digits) const {
    int value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value);
    if (error != std::errc() || stop != end || value < 0) fail("an index of 0 or more");
    return value;
  }

  [[noreturn]] void fail(std::string_view expected) const {
    internal::throw_error(ErrorCode::invalid_argument, "[core.device] expected ", expected,
                          ", got the device name \"", text_,
                          "\"; write it as \"CPU:0\", \"GPU:1\" or \"/job:ps/task:2/CPU:0\"");
  }

  std::string_view text_;
  std::set<std::string_view> seen_;
  Device device_;
};

}  // namespace

Device Device::parse(std::string_view text) { return DeviceParser(text).run(); }

std::string Device::to_string() const {
  std::string text;
  if (!is_local()) {
    text.append("/job:").append(job).append("/task:").append(std::to_string(task)).append("/");
  }
  return text.append(type).append(":").append(std::to_string(index));
}

}  // namespace cohort
