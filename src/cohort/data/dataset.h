// SPDX-License-Identifier: Apache-2.0
// An input pipeline as a graph of ops (tf.data.Dataset): immutable, serialisable, run by iterators.
//
//   auto train = Dataset::idx({.images = "train-images", .labels = "train-labels"})
//                    .shuffle(10'000, {.seed = 1}).batch(64).map(scale).prefetch(2);
//   for (Nest& element : train) …
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/nest.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/compression.h"
#include "cohort/data/dataset_options.h"
#include "cohort/data/element.h"
#include "cohort/data/input_context.h"
#include "cohort/data/iterator.h"
#include "cohort/data/typed_function.h"
#include "cohort/function/function.h"

namespace cohort {

class Dataset;
struct FeatureSpec;  // data/example_parser.h

namespace data {
class Node;             // data/internal/node.h
class DatasetFunction;  // data/internal/dataset_function.h
class FieldFunction;    // data/field_function.h

template <class F>
concept PlainCallable = !std::same_as<std::remove_cvref_t<F>, Function> && !TypedCallable<F>;

// A function from an element to a dataset. Its parameters may be at::Tensor, StringTensor, Nest
// and, for scalars, std::string, std::int64_t, double and bool.
using DatasetBody = std::function<Dataset(std::span<const Nest> arguments)>;
COHORT_API std::shared_ptr<const DatasetFunction> make_dataset_function(DatasetBody body,
                                                                        std::size_t arity);
template <class F>
std::shared_ptr<const DatasetFunction> make_dataset_function(F fn);
}  // namespace data

struct IdxFiles {
  std::string images = {};
  std::string labels = {};  // empty: one field, the images
};
struct RangeOptions {
  std::int64_t start = 0;
  std::int64_t step = 1;
  at::ScalarType dtype = at::ScalarType::Long;
};
struct ShuffleOptions {
  std::optional<std::int64_t> seed = {};  // none: random for each process
  bool reshuffle_each_iteration = true;
};
// Whether the order of elements may depend on which call ends first; nullopt: as the dataset's
// option `deterministic` says.
using Determinism = std::optional<bool>;
inline constexpr std::int64_t kAutotune = -1;
// The number of shards of a shard() that auto-sharding by hint fills in.
inline constexpr std::int64_t kShardHint = -1;

struct MapOptions {
  std::int64_t num_parallel_calls = 0;  // 0: in the caller's thread; kAutotune: found while it runs
  Determinism deterministic = {};
  // What fn returns. Given, fn need not be tried on elements to find it (see Dataset::map).
  std::optional<ElementSpec> output_spec = {};
};
struct InterleaveOptions {
  std::int64_t cycle_length = kAutotune;  // kAutotune: the number of processors
  std::int64_t block_length = 1;
  std::int64_t num_parallel_calls = 0;  // at most cycle_length
  Determinism deterministic = {};
};
struct BatchOptions {
  bool drop_remainder = false;
  std::int64_t num_parallel_calls = 0;
  Determinism deterministic = {};
};
struct PaddedBatchOptions {
  // The sizes of each field after padding: a list of integers or a vector, where -1 or null is the
  // longest of its batch. In the element's structure, as {"tokens": [-1], "label": []}, or one for
  // all fields; null for a field or all of them: every size -1.
  Nest padded_shapes = {};
  // A scalar of the field's dtype for each field, in the element's structure, or one for all; null:
  // 0, "" or false. What does not fit is invalid_argument with the field's path.
  Nest padding_values = {};
  bool drop_remainder = false;
};
struct RebatchOptions {
  bool drop_remainder = false;
};
struct ListFilesOptions {
  bool shuffle = true;
  std::optional<std::int64_t> seed = {};
};
struct FileOptions {
  Compression compression = Compression::none;
  std::int64_t num_parallel_reads = 0;  // n > 0: as interleave of n files, block 1
  // Of a file being read. tf reads 256 KiB at once; the system copies larger pieces faster.
  std::int64_t buffer_bytes = 1 << 20;
};
struct FixedLengthOptions {
  std::int64_t record_bytes = 0;  // required
  std::int64_t header_bytes = 0;
  std::int64_t footer_bytes = 0;
  FileOptions file = {};
};
// A column of a CSV file: required where it has no default.
struct CsvColumn {
  at::ScalarType dtype = at::ScalarType::Float;  // or kString
  std::optional<Nest> default_value = {};        // a number or a text
};
struct CsvOptions {
  std::vector<CsvColumn> columns = {};  // of the selected ones
  bool header = false;
  char delimiter = ',';
  std::string na_value = {};
  std::vector<std::int64_t> select_columns = {};  // empty: all
  FileOptions file = {};
};
// Fills the next element in and returns true, or returns false at the end. What it throws takes the
// element's place, and it is called again after it.
using Generator = std::function<bool(Nest& element)>;

// What running a graph needs to know of the place it runs in.
struct RunOptions {
  std::uint64_t seed = 0;  // mixed into ops that were given none
  // Which pass over the dataset this is, for its shuffles; nullopt: they count.
  std::optional<std::uint64_t> iteration = {};
  // Files may be opened only under these directories; nullopt: anywhere (a graph of this process's
  // own user).
  std::optional<std::vector<std::string>> data_dirs = {};
  bool collect_stats = false;  // for Iterator::stats()
};

inline constexpr std::int64_t kInfiniteCardinality = -1;
inline constexpr std::int64_t kUnknownCardinality = -2;

// A shared handle to an immutable graph. Thread-safe.
class COHORT_API Dataset {
 public:
  static Dataset range(std::int64_t stop, RangeOptions options = {});
  // Element i is row i of every tensor. The tensors are kept, not copied: do not write to them
  // afterwards. Elements have memory of their own.
  static Dataset from_tensor_slices(Nest tensors);
  // IDX files (MNIST's format) as one source of one or two fields, sharded by index.
  static Dataset idx(IdxFiles files);
  // The whole nest, once.
  static Dataset from_tensors(Nest element);
  // What a generator yields, which `make` makes anew for each iteration. Items are converted to the
  // spec's dtypes, integers with fewer bits where it says so; one of another kind, structure or
  // shape is invalid_argument in its place. It runs here alone: it
  // can be neither shipped nor saved.
  static Dataset from_generator(std::function<Generator()> make, ElementSpec output_spec);
  // The names that match glob patterns, in the order of their bytes or shuffled; found now.
  // invalid_argument when there is none.
  static Dataset list_files(const std::vector<std::string>& patterns,
                            ListFilesOptions options = {});
  // The records, lines or chunks of files one after the other: strings. A missing file is
  // not_found, bad bytes are data_loss, once each, and the next file follows.
  static Dataset tf_record(const Dataset& files, FileOptions options = {});
  static Dataset tf_record(StringTensor files, FileOptions options = {});
  static Dataset text_line(const Dataset& files, FileOptions options = {});
  static Dataset text_line(StringTensor files, FileOptions options = {});
  static Dataset fixed_length_record(const Dataset& files, FixedLengthOptions options);
  static Dataset fixed_length_record(StringTensor files, FixedLengthOptions options);
  // Rows of CSV files as tuples of scalars, one a column. A bad row is an error in its place. A
  // step takes columns of strings as numbers: batch(n).map(data::lookup(column, {.tokens = …})).
  static Dataset csv(StringTensor files, CsvOptions options);
  // Tuples, or maps, of one element of each; ends with the shortest.
  static Dataset zip(std::initializer_list<Dataset> datasets) {
    return zip(std::vector<Dataset>(datasets));
  }
  static Dataset zip(const std::vector<Dataset>& datasets);
  static Dataset zip(const std::map<std::string, Dataset>& datasets);

  // fn takes the fields as at::Tensor parameters and returns a tensor, tuple, vector or Nest. It is
  // traced when the graph is shipped, and for elements of other shapes while workers run it
  // (PerWorkerDataset); otherwise it runs as it is. Function::registered(name) is looked up where
  // the graph runs.
  //
  // What fn returns is found out by running it, with all before it, on an element or two, the first
  // time that somebody asks: element_spec(), distribute_dataset(), and already when the graph is
  // built the ops behind it that check their input (concatenate, filter, padded_batch,
  // parse_example, rebatch, rebatch_split, unbatch, unique, readers of files, a map of numbers,
  // a function of a field).
  // Side effects of fn, as a counter, show these runs; MapOptions::output_spec spares them. The
  // function of filter is tried in the same way, those of flat_map and interleave as
  // docs/decisions/0013-dataset-functions-are-tried-on-what-is-free.md says.
  Dataset map(Function fn, MapOptions options = {}) const;
  template <data::PlainCallable F>
  Dataset map(F fn, MapOptions options = {}) const {
    return map(Function(std::move(fn), {.name = "map function"}), std::move(options));
  }
  // A function of numbers, for elements that are scalars of its parameters' types: runs over whole
  // batches, a few nanoseconds an element. It can be neither traced nor shipped.
  template <data::TypedCallable F>
  Dataset map(F fn) const {
    return map_typed(data::TypedFunction::of(std::move(fn)));
  }
  // A function of one field, for strings above all: data::lookup(), data::to_hash_bucket_fast(),
  // data::to_number(), data::split() and data::lower() (data/field_function.h). Shipped without a
  // trace. invalid_argument where elements have no such field, or it is not of such a dtype, and
  // for an output_spec.
  Dataset map(const data::FieldFunction& function, MapOptions options = {}) const;
  // Elements for which the predicate returns a true scalar bool.
  Dataset filter(Function predicate) const;
  template <data::PlainCallable F>
  Dataset filter(F predicate) const {
    return filter(Function(std::move(predicate), {.name = "filter predicate"}));
  }
  // The elements of the datasets that fn makes of each element, one dataset after the other.
  template <class F>
  Dataset flat_map(F fn) const {
    return flat_map_with(data::make_dataset_function(std::move(fn)));
  }
  // The same with cycle_length datasets open at a time, block_length elements of each in turn.
  template <class F>
  Dataset interleave(F fn, InterleaveOptions options = {}) const {
    return interleave_with(data::make_dataset_function(std::move(fn)), options);
  }
  Dataset shuffle(std::int64_t buffer_size, ShuffleOptions options = {}) const;
  // num_shards = kShardHint: a place holder for auto-sharding by hint.
  Dataset shard(std::int64_t num_shards, std::int64_t index) const;
  Dataset shard(const InputContext& input) const;
  Dataset repeat(std::int64_t count = -1) const;  // < 0: for ever
  Dataset batch(std::int64_t batch_size, BatchOptions options = {}) const;
  // Batches of elements whose shapes may differ, each field padded to the longest of its batch.
  Dataset padded_batch(std::int64_t batch_size, PaddedBatchOptions options = {}) const;
  // The rows of batches as elements.
  Dataset unbatch() const;
  // The stream of rows cut anew into batches of sizes[0], sizes[1], …, cyclically, across the
  // borders of the incoming ones.
  Dataset rebatch(std::vector<std::int64_t> sizes, RebatchOptions options = {}) const;
  // Each incoming batch in `parts` parts, as equal as can be; the last may be empty.
  Dataset rebatch_split(std::int64_t parts) const;
  Dataset take(std::int64_t count) const;  // < 0: all
  Dataset skip(std::int64_t count) const;  // < 0: all
  Dataset concatenate(const Dataset& other) const;
  // (index, element), counting from start.
  Dataset enumerate(std::int64_t start = 0) const;
  // Every different element once: int32, int64 or string, of any shape, compared as a whole.
  Dataset unique() const;
  // Elements of the first complete pass are kept, in memory or in files that begin with `file`.
  Dataset cache(std::string file = {}) const;
  Dataset assert_cardinality(std::int64_t cardinality) const;
  // The features of serialized tf.train.Examples, one a scalar string or a batch of them, as a map
  // (example_parser.h). Faster behind batch().
  Dataset parse_example(const std::map<std::string, FeatureSpec>& features) const;
  // Passes over errors.
  Dataset ignore_errors() const;
  Dataset with_options(const DatasetOptions& options) const;

  // A thread makes up to buffer_size elements ahead, and no more than 256 MiB (-1: a few, 0: no
  // thread).
  Dataset prefetch(std::int64_t buffer_size) const;

  // Elements, kInfiniteCardinality or kUnknownCardinality; runs no user function and reads no file
  // beyond its header.
  std::int64_t cardinality() const;
  const ElementSpec& element_spec() const;
  // Of this dataset and all its inputs.
  DatasetOptions options() const;
  // Its end stops its threads at their next element. To end it from another thread: cancellable.h.
  Iterator iterator(const RunOptions& options = {}) const;
  std::unique_ptr<ElementSource> source(const RunOptions& options) const;

  // The graph's bytes (docs/formats/pipeline.md), with every map function traced; a function that
  // cannot be traced fails here and names the node; one with state obeys ExternalStatePolicy.
  Bytes serialize() const;
  static Dataset deserialize(std::span<const std::byte> bytes);

  // One eager pass.
  class Pass;
  struct End {};
  Pass begin() const;
  End end() const { return {}; }

  explicit Dataset(std::shared_ptr<const data::Node> node) : node_(std::move(node)) {}
  const std::shared_ptr<const data::Node>& node() const { return node_; }

 private:
  Dataset map_typed(data::TypedFunction function) const;
  Dataset flat_map_with(std::shared_ptr<const data::DatasetFunction> fn) const;
  Dataset interleave_with(std::shared_ptr<const data::DatasetFunction> fn,
                          InterleaveOptions options) const;

  std::shared_ptr<const data::Node> node_;
};

namespace data {

// The number in a scalar; invalid_argument for another kind of number or another shape.
COHORT_API std::int64_t integer_in(const Nest& scalar);
COHORT_API double real_in(const Nest& scalar);
COHORT_API bool boolean_in(const Nest& scalar);

template <class T>
decltype(auto) argument_of(const Nest& argument) {
  using Value = std::remove_cvref_t<T>;
  if constexpr (std::same_as<Value, bool>) {
    return boolean_in(argument);
  } else if constexpr (std::integral<Value>) {
    return static_cast<Value>(integer_in(argument));
  } else if constexpr (std::floating_point<Value>) {
    return static_cast<Value>(real_in(argument));
  } else {
    return function::Argument<T>::from(argument);
  }
}

template <class F>
std::shared_ptr<const DatasetFunction> make_dataset_function(F fn) {
  using Arguments = typename function::Signature<F>::Arguments;
  constexpr std::size_t kArity = std::tuple_size_v<Arguments>;
  return make_dataset_function(
      [fn = std::move(fn)](std::span<const Nest> arguments) mutable -> Dataset {
        return [&]<std::size_t... I>(std::index_sequence<I...>)->Dataset {
          return fn(argument_of<std::tuple_element_t<I, Arguments>>(arguments[I])...);
        }
        (std::make_index_sequence<kArity>{});
      },
      kArity);
}

}  // namespace data

// An input iterator over one pass.
class COHORT_API Dataset::Pass {
 public:
  explicit Pass(Iterator iterator);
  Nest& operator*() { return *element_; }
  Pass& operator++();
  bool operator==(End) const { return !element_.has_value(); }

 private:
  std::shared_ptr<Iterator> iterator_;
  std::optional<Nest> element_;
};

}  // namespace cohort
