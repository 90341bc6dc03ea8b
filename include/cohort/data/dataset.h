// SPDX-License-Identifier: Apache-2.0
// An input pipeline as a graph of ops (tf.data.Dataset): immutable, serialisable, run by iterators.
//
//   auto train = Dataset::idx({.images = "train-images", .labels = "train-labels"})
//                    .shuffle(10'000, {.seed = 1}).batch(64).map(scale).prefetch(2);
//   for (Nest& element : train) { … }
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/nest.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/dataset_options.h"
#include "cohort/data/element.h"
#include "cohort/data/iterator.h"
#include "cohort/data/typed_function.h"
#include "cohort/function/function.h"

namespace cohort {

class Dataset;
struct FeatureSpec;  // data/example.h

namespace data {
class Node;             // data/graph/node.h
class DatasetFunction;  // data/functions/dataset_function.h
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
  std::optional<std::int64_t> seed = {};  // nullopt: from IterationOptions::seed, or random
  bool reshuffle_each_iteration = true;
};
// Whether elements keep the order of the input although calls run in parallel. If false, an element
// is yielded as soon as its call ends. nullopt: DatasetOptions::deterministic decides.
using Determinism = std::optional<bool>;
inline constexpr std::int64_t kAutotune = -1;
// A placeholder for num_shards of shard(), which AutoShardPolicy::hint replaces (tf's SHARD_HINT).
inline constexpr std::int64_t kShardHint = -1;

struct MapOptions {
  std::int64_t num_parallel_calls = 0;  // 0: in the caller's thread; kAutotune: tuned at run time
  Determinism deterministic = {};
  // The spec of fn's result. If it is set, fn is not run on example elements (see Dataset::map).
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
  // The sizes of each field after padding: a list of integers or an integer vector, where -1 or
  // null means the largest size in the batch. Either one for all fields, or a nest with the
  // element's structure, for example {"tokens": [-1], "label": []}. Null for a field, or for all
  // fields: every size is -1.
  Nest padded_shapes = {};
  // Scalars of the fields' dtypes: one for all fields, or a nest with the element's structure.
  // Null: 0, "" or false. If a value does not fit, invalid_argument is thrown with the field's
  // path.
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
  // n > 0: reads n files at a time and yields one element of each in turn. kAutotune: n is the
  // number of this process's processors. 0: one file after the other.
  std::int64_t num_parallel_reads = 0;
  // The size of the read buffer of each open file. tf reads 256 KiB at once; larger reads are
  // faster.
  std::int64_t buffer_bytes = 1 << 20;
};
struct FixedLengthOptions {
  std::int64_t record_bytes = 0;  // required
  std::int64_t header_bytes = 0;
  std::int64_t footer_bytes = 0;
  FileOptions file = {};
};
// A column of a CSV file. Without a default value, a missing value is an error.
struct CsvColumn {
  at::ScalarType dtype = at::ScalarType::Float;  // or kString
  std::optional<Nest> default_value = {};        // a number or a text
};
struct CsvOptions {
  std::vector<CsvColumn> columns = {};  // one for each selected column
  // Whether the first row of each file has the names of the columns; it is then skipped.
  bool header = false;
  char delimiter = ',';
  std::string na_value = {};                      // means a missing value, as an empty field does
  std::vector<std::int64_t> select_columns = {};  // counted from 0; empty: all
  FileOptions file = {};
  // A longer row is an error in its place, so that one quote that is never closed does not take the
  // rest of the file into memory.
  std::int64_t max_row_bytes = 16 << 20;
};
// Sets `element` to the next element and returns true, or returns false at the end. If it throws,
// the error is thrown in place of that element, and the generator is called again for the next one.
using Generator = std::function<bool(Nest& element)>;

// Options of one iteration over a dataset.
struct IterationOptions {
  std::uint64_t seed = 0;  // for random ops that have no seed; 0: a random one
  // The number of this pass over the dataset, by which shuffles reshuffle. nullopt: each shuffle
  // counts its iterations itself.
  std::optional<std::uint64_t> iteration = {};
  // Only files under these directories may be opened. nullopt: any file, for graphs that this
  // process built itself.
  std::optional<std::vector<std::string>> data_dirs = {};
  bool collect_stats = false;  // for Iterator::stats()
};

inline constexpr std::int64_t kInfiniteCardinality = -1;
inline constexpr std::int64_t kUnknownCardinality = -2;

// A shared handle to an immutable graph. Thread-safe. Many methods because each op is one, as in
// tf.data.Dataset, so that pipelines read as chains of calls.
class COHORT_API Dataset {
 public:
  static Dataset range(std::int64_t stop, RangeOptions options = {});
  // Element i is row i of every tensor. The dataset shares the tensors' memory: do not write to
  // them afterwards. Elements are copies.
  static Dataset from_tensor_slices(Nest tensors);
  // IDX files (MNIST's format) as one source with one or two fields. Auto-sharding divides it by
  // element index, not by file.
  static Dataset idx(IdxFiles files);
  // One element: the whole nest.
  static Dataset from_tensors(Nest element);
  // The items of a generator; `make` creates a new one for each iteration. Items are converted to
  // the spec's dtypes; integers may lose their upper bits. In place of an item of a different kind,
  // structure or shape, invalid_argument is thrown. Runs only in this process: it can be neither
  // serialized nor saved.
  static Dataset from_generator(std::function<Generator()> make, ElementSpec output_spec);
  // The names of the files that match the glob patterns at this call, shuffled or, without
  // ListFilesOptions::shuffle, sorted bytewise. Throws invalid_argument if there are none.
  static Dataset list_files(const std::vector<std::string>& patterns,
                            ListFilesOptions options = {});
  // The records, lines or chunks of the files, one file after the other, as strings. A missing file
  // yields one not_found error; a damaged file, or one that changes while it is read, one data_loss
  // error. Then the next file follows.
  static Dataset tf_record(const Dataset& files, FileOptions options = {});
  static Dataset tf_record(StringTensor files, FileOptions options = {});
  static Dataset text_line(const Dataset& files, FileOptions options = {});
  static Dataset text_line(StringTensor files, FileOptions options = {});
  static Dataset fixed_length_record(const Dataset& files, FixedLengthOptions options);
  static Dataset fixed_length_record(StringTensor files, FixedLengthOptions options);
  // The rows of CSV files as tuples of scalars, one per column. In place of a bad row an error is
  // thrown, which names the file, the lines of the row (from 1) and the column (from 0). After a
  // quote in the wrong place, or a row of more than max_row_bytes, reading continues after the line
  // in which the open quote stands. Blank lines at the end of a file are no rows. A byte order mark
  // of UTF-8 at the start of a file is skipped. A training step cannot take
  // strings: convert such a column to numbers after batch(), for example with
  // map(data::lookup(column, …)).
  static Dataset csv(StringTensor files, CsvOptions options);
  // Tuples, or maps, of one element of each dataset; ends with the shortest.
  static Dataset zip(std::initializer_list<Dataset> datasets) {
    return zip(std::vector<Dataset>(datasets));
  }
  static Dataset zip(const std::vector<Dataset>& datasets);
  static Dataset zip(const std::map<std::string, Dataset>& datasets);

  // fn takes the fields as at::Tensor parameters and returns a tensor, tuple, vector or Nest. In
  // this process it is called as plain C++. It is traced when the graph is serialized, and traced
  // again when a worker that runs the graph (PerWorkerDataset) meets elements of different shapes.
  // Function::registered(name) is looked up where the graph runs.
  //
  // The spec of fn's result is found by running the pipeline up to and including fn on one or two
  // elements, once, when the spec is first needed: by element_spec(), by distribute_dataset(), or,
  // while the graph is built, by a later op that checks its input (concatenate, filter,
  // padded_batch, parse_example, rebatch, rebatch_split, unbatch, unique, file readers, a map of a
  // function of numbers or of one field). So side effects of fn, such as a counter, also happen in
  // these runs; MapOptions::output_spec avoids them. If these elements have a size in
  // common, the spec says that all elements have it, even if it depends on the values of an
  // element: in that case, set output_spec with -1 for it. For flat_map and interleave, see
  // docs/decisions/0013-dataset-functions-are-tried-on-what-is-free.md.
  Dataset map(Function fn, MapOptions options = {}) const;
  template <data::PlainCallable F>
  Dataset map(F fn, MapOptions options = {}) const {
    return map(Function(std::move(fn), {.name = "map function"}), std::move(options));
  }
  // fn takes and returns numbers; elements are scalars of its parameters' types. It runs in a loop
  // over many elements, in a few nanoseconds each. It can be neither traced nor serialized.
  template <data::TypedCallable F>
  Dataset map(F fn) const {
    return map_typed(data::TypedFunction::of(std::move(fn)));
  }
  // A function of one field, mostly for strings: data::lookup(), data::to_hash_bucket_fast(),
  // data::to_number(), data::split() and data::lower() (data/field_function.h). It is serialized
  // without a trace. Throws invalid_argument if elements have no such field, if the field has a
  // different dtype, or if output_spec is set.
  Dataset map(const data::FieldFunction& function, MapOptions options = {}) const;
  // Yields the elements for which the predicate returns true, as a scalar bool tensor. If the ranks
  // are known, the predicate is called once with zeros when the graph is built, to check its
  // result.
  Dataset filter(Function predicate) const;
  template <data::PlainCallable F>
  Dataset filter(F predicate) const {
    return filter(Function(std::move(predicate), {.name = "filter predicate"}));
  }
  // Calls fn for each element and yields the elements of the datasets that it returns, one dataset
  // after the other.
  template <class F>
  Dataset flat_map(F fn) const {
    return flat_map_with(data::make_dataset_function(std::move(fn)));
  }
  // The same, but cycle_length datasets are open at a time; it yields block_length elements of each
  // in turn.
  template <class F>
  Dataset interleave(F fn, InterleaveOptions options = {}) const {
    return interleave_with(data::make_dataset_function(std::move(fn)), options);
  }
  Dataset shuffle(std::int64_t buffer_size, ShuffleOptions options = {}) const;
  // Every num_shards-th element, starting with element `index`. num_shards may be kShardHint.
  Dataset shard(std::int64_t num_shards, std::int64_t index) const;
  Dataset shard(const InputContext& input) const;
  Dataset repeat(std::int64_t count = -1) const;  // < 0: forever
  Dataset batch(std::int64_t batch_size, BatchOptions options = {}) const;
  // Batches of elements whose shapes may differ; each field is padded to its largest size in the
  // batch, or to the sizes in `options`. If an element is larger than its size in padded_shapes,
  // data_loss is thrown in place of the batch, as in tf. If the spec already says that elements are
  // larger, this call throws invalid_argument.
  Dataset padded_batch(std::int64_t batch_size, PaddedBatchOptions options = {}) const;
  // The rows of batches as elements.
  Dataset unbatch() const;
  // Regroups rows into batches of sizes[0], sizes[1], …, cyclically, ignoring the boundaries of the
  // input's batches.
  Dataset rebatch(std::vector<std::int64_t> sizes, RebatchOptions options = {}) const;
  // Splits each batch into `parts` batches of ceil(size / parts) rows; the last ones may be smaller
  // or empty.
  Dataset rebatch_split(std::int64_t parts) const;
  Dataset take(std::int64_t count) const;  // < 0: all
  Dataset skip(std::int64_t count) const;  // < 0: all
  Dataset concatenate(const Dataset& other) const;
  // (index, element), counting from start.
  Dataset enumerate(std::int64_t start = 0) const;
  // Each distinct element once. Elements are single int32, int64 or string tensors of any shape,
  // compared as a whole.
  Dataset unique() const;
  // Stores the elements of the first complete pass, in memory or in files whose names begin with
  // `file`, and yields them in later passes.
  Dataset cache(std::string file = {}) const;
  Dataset assert_cardinality(std::int64_t cardinality) const;
  // Parses elements that are serialized tf.train.Examples, a scalar string or a batch of them, into
  // a map of features (ExampleParser). Faster after batch().
  Dataset parse_example(const std::map<std::string, FeatureSpec>& features) const;
  // Skips errors that are thrown in place of elements, except cancelled, internal and a missing
  // program of a serialized function.
  Dataset ignore_errors() const;
  Dataset with_options(const DatasetOptions& options) const;

  // A thread computes up to buffer_size elements ahead, of at most 256 MiB in all. -1: a few
  // elements. 0: no thread.
  Dataset prefetch(std::int64_t buffer_size) const;

  // The number of elements, kInfiniteCardinality or kUnknownCardinality. Does not call functions of
  // the user and reads at most the headers of files.
  std::int64_t cardinality() const;
  // The spec that all elements share, as far as it is known. For a map() without
  // MapOptions::output_spec it comes from one or two elements, so later elements may have other
  // sizes. Therefore ops that join elements check the elements themselves.
  const ElementSpec& element_spec() const;
  // The merged options of this dataset and all its inputs.
  DatasetOptions options() const;
  // When the iterator is destroyed, its threads stop at their next element. To cancel it from
  // another thread, see data/iterator.h.
  Iterator iterator(const IterationOptions& options = {}) const;
  std::unique_ptr<data::ElementSource> source(const IterationOptions& options) const;

  // The graph as bytes (docs/formats/pipeline.md), with the traced programs of its functions. If a
  // function cannot be traced, throws the error of the trace, with the op's name.
  // ExternalStatePolicy applies to functions with random numbers.
  Bytes serialize() const;
  static Dataset deserialize(std::span<const std::byte> bytes);

  // Range-based for over a new iteration.
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

// The value of a scalar. Throws invalid_argument if the dtype is of a different kind, or if it is
// no scalar.
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
  using Parameters = typename function::Signature<F>::Arguments;
  constexpr std::size_t kArity = std::tuple_size_v<Parameters>;
  return make_dataset_function(
      [fn = std::move(fn)](std::span<const Nest> arguments) mutable -> Dataset {
        return [&]<std::size_t... I>(std::index_sequence<I...>)->Dataset {
          return fn(argument_of<std::tuple_element_t<I, Parameters>>(arguments[I])...);
        }
        (std::make_index_sequence<kArity>{});
      },
      kArity);
}

}  // namespace data

// An input iterator over one iteration of the dataset.
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
