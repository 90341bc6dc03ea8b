// SPDX-License-Identifier: Apache-2.0
// The values that a lookup knows, each with its number.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cohort/core/string_tensor.h"

namespace cohort::data {

// Immutable. Thread-safe.
class Vocabulary {
 public:
  // Value i has the number i. invalid_argument where there are none, or one is there twice; it
  // names `source`, as "'cities.txt'".
  static std::shared_ptr<const Vocabulary> of(StringTensor tokens, const std::string& source);
  // The same without a copy: the tokens must outlive it.
  static std::shared_ptr<const Vocabulary> of_kept(std::span<const std::string> tokens,
                                                   const std::string& source);
  static std::shared_ptr<const Vocabulary> of(std::span<const std::int64_t> integers);
  // One token a line; an empty line is invalid_argument (tf.lookup.TextFileInitializer). A byte
  // order mark in front, and "\r" at the end of a line, are no part of a token.
  static std::shared_ptr<const Vocabulary> read(const std::string& path);

  std::int64_t size() const { return size_; }
  bool has_integers() const { return !by_integer_.empty(); }
  // Its number; -1 where it is not there.
  std::int64_t find(std::string_view token) const {
    const auto found = by_token_.find(token);
    return found == by_token_.end() ? -1 : found->second;
  }
  std::int64_t find(std::int64_t integer) const {
    const auto found = by_integer_.find(integer);
    return found == by_integer_.end() ? -1 : found->second;
  }

 private:
  // Of keys that users choose: neighbours must not collide in a table of a power of two.
  struct IntegerHash {
    std::size_t operator()(std::int64_t value) const;
  };

  // The next number; the token's bytes must stay.
  void add(std::string_view token, const std::string& source);

  std::int64_t size_ = 0;
  StringTensor tokens_{{0}, std::vector<std::string>()};  // has the bytes of the keys
  ska::flat_hash_map<std::string_view, std::int64_t, std::hash<std::string_view>> by_token_;
  ska::flat_hash_map<std::int64_t, std::int64_t, IntegerHash> by_integer_;
};

}  // namespace cohort::data
