// SPDX-License-Identifier: Apache-2.0
// The values of a vocabulary and their numbers.
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
  // Value i has the number i. Throws invalid_argument, naming `source` ("'cities.txt'"), if there
  // are no values or one occurs twice.
  static std::shared_ptr<const Vocabulary> of(StringTensor tokens, const std::string& source);
  // The same without a copy: the tokens must outlive it.
  static std::shared_ptr<const Vocabulary> of_kept(std::span<const std::string> tokens,
                                                   const std::string& source);
  static std::shared_ptr<const Vocabulary> of(std::span<const std::int64_t> integers);
  // Reads one token per line. Throws invalid_argument for an empty line
  // (tf.lookup.TextFileInitializer). A byte order mark at the start and "\r" at the end of a line
  // are not part of a token.
  static std::shared_ptr<const Vocabulary> read(const std::string& path);

  std::int64_t size() const { return size_; }
  bool has_integers() const { return !by_integer_.empty(); }
  // The value's number; -1 if it is not in the vocabulary.
  std::int64_t find(std::string_view token) const {
    const auto found = by_token_.find(token);
    return found == by_token_.end() ? -1 : found->second;
  }
  std::int64_t find(std::int64_t integer) const {
    const auto found = by_integer_.find(integer);
    return found == by_integer_.end() ? -1 : found->second;
  }

 private:
  // Mixes the bits of keys that users choose, so that neighbours do not collide in a table whose
  // size is a power of two.
  struct IntegerHash {
    std::size_t operator()(std::int64_t value) const;
  };

  // Gives the token the next number. The token's bytes must outlive the vocabulary.
  void add(std::string_view token, const std::string& source);

  std::int64_t size_ = 0;
  StringTensor tokens_{{0}, std::vector<std::string>()};  // owns the bytes of the keys
  ska::flat_hash_map<std::string_view, std::int64_t, std::hash<std::string_view>> by_token_;
  ska::flat_hash_map<std::int64_t, std::int64_t, IntegerHash> by_integer_;
};

}  // namespace cohort::data
