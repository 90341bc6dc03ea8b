// SPDX-License-Identifier: Apache-2.0
// Parses JSON and finds keys that occur twice in one object, of which a parser takes only one.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::variable {

// Sees each key of a text. Used only from parse_strict().
template <class Json>
class RepeatedKeys final : public nlohmann::json_sax<Json> {
 public:
  bool has_found() const { return has_found_; }

  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return true;
  }
  bool key(std::string& key) override {
    has_found_ |= !keys_.back().insert(key).second;
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(typename Json::number_integer_t) override { return true; }
  bool number_unsigned(typename Json::number_unsigned_t) override { return true; }
  bool number_float(typename Json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(typename Json::binary_t&) override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  std::vector<std::set<std::string>> keys_;  // of the open objects
  bool has_found_ = false;
};

// `json` is discarded if the text is no JSON.
template <class Json>
struct StrictJson {
  Json json;
  bool has_repeated_key = false;
};

// Two passes over the text: with a callback, the library's parser looks at all members of an object
// after each member that is an object itself.
template <class Json>
StrictJson<Json> parse_strict(std::string_view text) {
  RepeatedKeys<Json> keys;
  Json::sax_parse(text.begin(), text.end(), &keys);
  return {Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false),
          keys.has_found()};
}

}  // namespace cohort::variable
