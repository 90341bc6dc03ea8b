// SPDX-License-Identifier: Apache-2.0
// Functions of one field of every element, for Dataset::map. They turn strings into the numbers
// that a step can take, and they are shipped to workers with the pipeline, which C++ functions of
// strings cannot be.
//
//   Dataset::csv(files, {.columns = {{kString}, {kString}, {kString}}})
//       .batch(128)
//       .map(data::lookup(0, {.tokens = {"Berlin", "Lagos"}}))             // int64[128]
//       .map(data::to_hash_bucket_fast(1, {.num_buckets = 1000}))          // int64[128]
//       .map(data::to_number(2));                                          // float32[128]
//
// A function replaces its field and leaves the others as they are. A field may have any shape.
// Written after batch(), a function runs once for a whole batch, not for each element. A value
// that a function refuses costs its element, as in any map: the error names the value and the
// field, and the next call to the iterator yields the next element.
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

class FieldKernel;  // internal/field_kernels/field_kernel.h

// Which field of an element: keys of maps and positions in tuples and lists, from the outside in.
//
//  "city"              the entry of a map
//  2                   the third item of a tuple (a column of a CSV file)
//  {"user", "city"}    a field of a nested element
//  {}                  the only field of elements that have one (a line of text)
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

// A vocabulary: exactly one of tokens, integers and file.
struct LookupOptions {
  std::vector<std::string> tokens = {};
  std::vector<std::int64_t> integers = {};  // keys of an integer field
  // One token a line, which ends in "\n" or "\r\n"; at the end of the file also in "\r" or nothing.
  // A byte order mark of UTF-8 in front is no part of the first token. The file is read where the
  // pipeline runs, when a run starts; on a server it must lie in the data directories.
  std::string file = {};
  // 0: a value that is not in the vocabulary is an error. 1: all of them have one index. More: the
  // index is Fingerprint64 of the string, or the integer itself, modulo num_oov_indices.
  std::int64_t num_oov_indices = 1;
  // A string, or an integer with `integers`, that has the index 0. "" is the padding of split() and
  // padded_batch().
  std::optional<Nest> mask_token = {};
};

// The index of each value in a vocabulary: strings, or integers of any width, to int64 of the same
// shape. The order of the indices is that of tf.keras.layers.StringLookup and IntegerLookup: the
// mask token where one is given, then the num_oov_indices, then the vocabulary. (In
// tf.lookup.StaticVocabularyTable the vocabulary comes first.)
//
// invalid_argument: no vocabulary or two, an empty one, a value that is in it twice, the mask token
// in it, "[UNK]" in front of `tokens`. Of a file, a run throws these when it starts, with the line,
// besides not_found and permission_denied.
COHORT_API FieldFunction lookup(FieldPath field, LookupOptions options);

// How many indices lookup() has: the rows of an embedding (StringLookup.vocabulary_size()). Reads
// the file, if the vocabulary is in one.
COHORT_API std::int64_t vocabulary_size(const LookupOptions& options);

struct HashBucketOptions {
  std::int64_t num_buckets = 0;  // required, at least 1
};

// FarmHash's Fingerprint64 of each string modulo num_buckets: strings to int64 of the same shape,
// and the same numbers as tf.strings.to_hash_bucket_fast.
COHORT_API FieldFunction to_hash_bucket_fast(FieldPath field, HashBucketOptions options);

struct ToNumberOptions {
  at::ScalarType dtype = at::ScalarType::Float;  // or Double, Int, Long
};

// The number that each string is (tf.strings.to_number): strings to dtype, of the same shape.
// Whitespace around a number does not count. A text that is no number, or an integer that does not
// fit, is an error in the place of its element; a real number that is too large is infinite.
COHORT_API FieldFunction to_number(FieldPath field, ToNumberOptions options = {});

struct SplitOptions {
  std::string separator = {};  // empty: any run of ASCII whitespace, none of it at the ends
  // Every string gets that many tokens: the rest is cut off, or "" is added. So every element has
  // the same shape. -1: as many as it has.
  std::int64_t output_sequence_length = -1;
};

// The tokens of each string along a new last dimension: string[...] to string[..., tokens]
// (tf.strings.split). In a field of several strings, "" is added to those with fewer tokens than
// the longest has, where tf makes a ragged tensor. With a separator, two of them in a row have an
// empty token between them.
COHORT_API FieldFunction split(FieldPath field, SplitOptions options = {});

// The same strings with the letters A to Z in lower case (tf.strings.lower); other bytes, those of
// UTF-8 included, stay.
COHORT_API FieldFunction lower(FieldPath field);

}  // namespace cohort::data
