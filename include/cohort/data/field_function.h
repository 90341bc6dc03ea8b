// SPDX-License-Identifier: Apache-2.0
// Functions of one field of every element, for Dataset::map. They turn strings into numbers, which
// a step can take. They can be sent to workers with the pipeline; C++ functions of strings cannot.
//
//   Dataset::csv(files, {.columns = {{kString}, {kString}, {kString}}})
//       .batch(128)
//       .map(data::lookup(0, {.tokens = {"Berlin", "Lagos"}}))             // int64[128]
//       .map(data::to_hash_bucket_fast(1, {.num_buckets = 1000}))          // int64[128]
//       .map(data::to_number(2));                                          // float32[128]
//
// A function replaces its field and leaves the others as they are. A field may have any shape.
// After batch(), a function runs once per batch instead of once per element. If it cannot convert a
// value, an error is thrown in place of the element (or of the batch), as in any map. The error
// names the value and the field; the next call to the iterator yields the next element.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::data {

class FieldKernel;  // field_kernels/field_kernel.h

// Names a field of an element by keys of maps and positions in tuples and lists, from the outside
// in.
//
//  "city"              the entry of a map
//  2                   the third item of a tuple (a column of a CSV file)
//  {"user", "city"}    a field of a nested element
//  {}                  the only field of an element (a line of text)
//
// A value type.
class COHORT_API FieldPath {
 public:
  using Step = std::variant<std::int64_t, std::string>;

  FieldPath() = default;
  FieldPath(const char* key) : steps_{std::string(key)} {}  // NOLINT: conversions are the point
  FieldPath(std::string key) : steps_{std::move(key)} {}    // NOLINT
  template <class T>
  requires(std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char>)
      FieldPath(T position)  // NOLINT
      : steps_{static_cast<std::int64_t>(position)} {}
  FieldPath(std::initializer_list<Step> steps) : steps_(steps) {}
  explicit FieldPath(std::vector<Step> steps) : steps_(std::move(steps)) {}

  const std::vector<Step>& steps() const { return steps_; }
  // For messages: "field 'city'", "field ['user'][0]", "the element".
  std::string to_string() const;

 private:
  std::vector<Step> steps_;
};

// Immutable; copies share it. Thread-safe.
class COHORT_API FieldFunction {
 public:
  FieldFunction(FieldPath field, std::shared_ptr<const FieldKernel> kernel)
      : field_(std::move(field)), kernel_(std::move(kernel)) {}

  const FieldPath& field() const { return field_; }
  const std::shared_ptr<const FieldKernel>& kernel() const { return kernel_; }

 private:
  FieldPath field_;
  std::shared_ptr<const FieldKernel> kernel_;
};

// A vocabulary. Set exactly one of tokens, integers and file.
struct LookupOptions {
  std::vector<std::string> tokens = {};
  std::vector<std::int64_t> integers = {};  // for an integer field
  // A file with one token per line. Lines end with "\n" or "\r\n"; the last one may also end with
  // "\r" or without an end. A byte order mark of UTF-8 at the start is skipped. The file is read
  // where the pipeline runs, when an iteration starts; on a server it must be in a data directory.
  std::string file = {};
  // The number of indices for values that are not in the vocabulary. 0: such a value is an error.
  // 1: they share one index. More: they are distributed by Fingerprint64 of the string, or by the
  // integer itself, modulo num_oov_indices.
  std::int64_t num_oov_indices = 1;
  // A string, or with `integers` an integer, that gets the index 0. Use "" for the padding that
  // split() and padded_batch() add.
  std::optional<Nest> mask_token = {};
};

// Replaces each value by its index in a vocabulary: strings, or integers of any width, become int64
// of the same shape. The indices have the order of tf.keras.layers.StringLookup and IntegerLookup:
// the mask token if there is one, then the num_oov_indices, then the vocabulary. (In
// tf.lookup.StaticVocabularyTable the vocabulary comes first.)
//
// Throws invalid_argument if there is no vocabulary or more than one, if it is empty, if it
// contains a value twice or the mask token, or if `tokens` begins with "[UNK]". The contents of a
// file are checked when an iteration starts; the error then names the line, and may also be
// not_found or permission_denied.
COHORT_API FieldFunction lookup(FieldPath field, LookupOptions options);

// The number of indices of lookup(), which an embedding needs as rows
// (StringLookup.vocabulary_size()). Reads the file, if the vocabulary is in one.
COHORT_API std::int64_t vocabulary_size(const LookupOptions& options);

struct HashBucketOptions {
  std::int64_t num_buckets = 0;  // required, at least 1
};

// Replaces each string by FarmHash's Fingerprint64 of it modulo num_buckets: strings become int64
// of the same shape, with the same numbers as from tf.strings.to_hash_bucket_fast.
COHORT_API FieldFunction to_hash_bucket_fast(FieldPath field, HashBucketOptions options);

struct ToNumberOptions {
  at::ScalarType dtype = at::ScalarType::Float;  // or Double, Int, Long
};

// Converts each string to a number (tf.strings.to_number): strings become numbers of `dtype`, of
// the same shape. Whitespace around a number is ignored. If a string is not a number, or an integer
// does not fit, an error is thrown in place of the element; a real number that is too large is
// infinite.
COHORT_API FieldFunction to_number(FieldPath field, ToNumberOptions options = {});

struct SplitOptions {
  // Empty: tokens are separated by any run of ASCII whitespace, which is ignored at both ends.
  std::string separator = {};
  // Every string gets this many tokens: more are dropped, and missing ones become "". So every
  // element has the same shape. -1: as many tokens as the string has.
  std::int64_t output_sequence_length = -1;
};

// Splits each string into tokens along a new last dimension: string[...] becomes string[...,
// tokens] (tf.strings.split). If a field has several strings, the shorter ones are padded with ""
// to the most tokens; tf returns a ragged tensor instead. Between two separators in a row there is
// an empty token.
COHORT_API FieldFunction split(FieldPath field, SplitOptions options = {});

// Converts the letters A to Z to lower case (tf.strings.lower). All other bytes stay, including
// those of UTF-8.
COHORT_API FieldFunction lower(FieldPath field);

}  // namespace cohort::data
