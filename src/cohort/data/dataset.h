// SPDX-License-Identifier: Apache-2.0
// An input pipeline as a graph of ops (tf.data.Dataset): immutable, serialisable, run by iterators.
//
//   auto train = Dataset::idx({.images = "train-images", .labels = "train-labels"})
//                    .shuffle(10'000, {.seed = 1}).batch(64).map(scale).prefetch(2);
//   for (Nest& element : train) …
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/nest.h"
#include "cohort/data/element.h"
#include "cohort/data/input_context.h"
#include "cohort/data/iterator.h"
#include "cohort/function/function.h"

namespace cohort {

namespace data {
class Node;  // data/internal/node.h

template <class F>
concept PlainCallable = !std::same_as<std::remove_cvref_t<F>, Function>;
}  // namespace data

struct IdxFiles {
  std::string images;
  std::string labels;  // empty: one field, the images
};
struct RangeOptions {
  std::int64_t start = 0;
  std::int64_t step = 1;
  at::ScalarType dtype = at::ScalarType::Long;
};
struct ShuffleOptions {
  std::optional<std::int64_t> seed;  // none: random for each process
  bool reshuffle_each_iteration = true;
};
struct BatchOptions {
  bool drop_remainder = false;
};
// What running a graph needs to know of the place it runs in.
struct RunOptions {
  std::uint64_t seed = 0;  // mixed into ops that were given none
  // Files may be opened only under these directories; nullopt: anywhere (a graph of this process's
  // own user).
  std::optional<std::vector<std::string>> data_dirs;
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

  // fn takes the fields as at::Tensor parameters and returns a tensor, tuple, vector or Nest. It is
  // traced when the graph is shipped, and runs as it is otherwise. Function::registered(name) is
  // looked up where the graph runs.
  Dataset map(Function fn) const;
  template <data::PlainCallable F>
  Dataset map(F fn) const {
    return map(Function(std::move(fn), {.name = "map function"}));
  }
  Dataset shuffle(std::int64_t buffer_size, ShuffleOptions options = {}) const;
  Dataset shard(std::int64_t num_shards, std::int64_t index) const;
  Dataset shard(const InputContext& input) const;
  Dataset repeat(std::int64_t count = -1) const;  // < 0: for ever
  Dataset batch(std::int64_t batch_size, BatchOptions options = {}) const;
  // A thread makes up to buffer_size elements ahead, and no more than 256 MiB (-1: a few, 0: no
  // thread).
  Dataset prefetch(std::int64_t buffer_size) const;

  // Elements, kInfiniteCardinality or kUnknownCardinality; runs no user function and reads no file
  // beyond its header.
  std::int64_t cardinality() const;
  const ElementSpec& element_spec() const;
  Iterator iterator(const RunOptions& options = {}) const;
  std::unique_ptr<ElementSource> source(const RunOptions& options) const;

  // The graph's bytes (docs/formats/pipeline.md), with every map function traced; a function that
  // cannot be traced fails here and names the node.
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
  std::shared_ptr<const data::Node> node_;
};

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
