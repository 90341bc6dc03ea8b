// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/strict_json.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <string>

namespace cohort::variable {
namespace {

// An object of JSON that counts how often its iterators go on to the next member.
template <class Key, class Value, class Compare, class Allocator>
class CountedMap : public std::map<Key, Value, Compare, Allocator> {
  using Base = std::map<Key, Value, Compare, Allocator>;

 public:
  using Base::Base;

  class iterator : public Base::iterator {  // NOLINT: the name is the standard library's
   public:
    iterator() = default;
    iterator(typename Base::iterator place) : Base::iterator(place) {}  // NOLINT: as that of Base
    iterator& operator++() {
      ++steps;
      Base::iterator::operator++();
      return *this;
    }
  };
  iterator begin() { return Base::begin(); }
  iterator end() { return Base::end(); }
  using Base::begin;
  using Base::end;

  static inline std::size_t steps = 0;
};

using CountedJson = nlohmann::basic_json<CountedMap>;

std::string object_of(int members) {
  std::string text = "{";
  for (int i = 0; i < members; ++i)
    text += (i == 0 ? "" : ", ") + ('"' + std::to_string(i)) + R"(": {"shape": [1]})";
  return text + "}";
}

std::size_t steps_for(int members) {
  CountedJson::object_t::steps = 0;
  EXPECT_EQ(parse_strict<CountedJson>(object_of(members)).json.size(),
            static_cast<std::size_t>(members));
  return CountedJson::object_t::steps;
}

// Regression: for each member that was parsed, all earlier ones were looked at.
TEST(StrictJsonTest, NoMemberIsLookedAtForAnotherOne) {
  EXPECT_LE(steps_for(100), 2 * 100U);
  EXPECT_LE(steps_for(1'000), 2 * 1'000U);
}

TEST(StrictJsonTest, RepeatedKeysAreFoundAtEachDepth) {
  const auto is_repeated = [](std::string_view text) {
    return parse_strict<nlohmann::json>(text).has_repeated_key;
  };
  EXPECT_TRUE(is_repeated(R"({"a": 1, "a": 1})"));
  EXPECT_TRUE(is_repeated(R"({"a": [{"b": 1, "b": 2}]})"));
  EXPECT_FALSE(is_repeated(R"({"a": {"b": 1}, "b": {"a": 1}})"));
  EXPECT_FALSE(is_repeated(R"([{"a": 1}, {"a": 1}])"));
}

TEST(StrictJsonTest, WhatIsNoJsonIsDiscarded) {
  for (const char* text : {"", "{", R"({"a": })", R"({"a": 1} x)"})
    EXPECT_TRUE(parse_strict<nlohmann::json>(text).json.is_discarded()) << text;
}

}  // namespace
}  // namespace cohort::variable
