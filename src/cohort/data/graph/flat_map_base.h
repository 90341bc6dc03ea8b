// SPDX-License-Identifier: Apache-2.0
// Shared by flat_map and interleave, whose function makes a dataset from each element of the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/once.h"
#include "cohort/data/functions/call_scope.h"
#include "cohort/data/functions/dataset_function.h"
#include "cohort/data/graph/node.h"
#include "cohort/data/parallel/parallel_calls.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {

using DatasetFunctionPtr = std::shared_ptr<const DatasetFunction>;

// The node of such an op. Thread-safe.
class FlatMapBase : public Node {
 public:
  // The op's attributes have a `function` and the `spec` of the made datasets, if known.
  FlatMapBase(std::string_view op, std::vector<NodePtr> inputs, const auto& given)
      : Node(op, std::move(inputs)), function_(given.function), known_spec_(given.spec) {}

  const DatasetFunction* dataset_function() const override { return function_.get(); }
  Nest structure() const override;

  // Keeps the structure of the first call; invalid_argument if a later one differs.
  void note_structure(const Nest& structure) const;

 protected:
  ElementSpec make_spec() const override;
  // The serialized function, for read_dataset_function(), and `spec`.
  Attributes function_attributes() const;

 private:
  DatasetFunctionPtr function_;
  std::optional<ElementSpec> known_spec_;
  mutable SharedValue<std::optional<Nest>> structure_;
};

// A made dataset that runs. Used from one thread at a time.
class OpenDataset {
 public:
  OpenDataset(const FlatMapBase& owner, NodePtr node, const StageContext& context)
      : owner_(owner), node_(std::move(node)), stage_(node_->start(context)) {}

  bool next(Fields& fields);
  void describe_position(Position& at) { at(*stage_); }

 private:
  const FlatMapBase& owner_;
  NodePtr node_;
  std::unique_ptr<Stage> stage_;
  bool is_checked_ = false;
};

// Calls the dataset function and starts the made datasets, for one running op. Thread-safe.
class DatasetOpener {
 public:
  DatasetOpener(const FlatMapBase& node, StageContext context)
      : node_(node), context_(std::move(context)), random_(CallRandom::of(node_, context_)) {}

  // The dataset of the input's element number `index`. Throws what the function throws, naming the
  // element.
  std::unique_ptr<OpenDataset> open(const Fields& element, std::uint64_t index);

  // A part of the op's position: whether the input has ended, and the number of the pass, by which
  // shuffles in datasets that are made later reshuffle. Restoring sets it for the whole run.
  void describe_position(Position& at, bool& is_input_at_end);

 private:
  const FlatMapBase& node_;
  StageContext context_;
  const CallRandom random_;
  Once once_;
  Nest input_structure_;
};

// A set of slots in the cycle, which finds the next one in turn without a look at the others. A
// value type.
class PositionSet {
 public:
  bool empty() const { return places_.empty(); }
  void clear() { places_.clear(); }
  void put(std::size_t place, bool is_in) {
    if (is_in) {
      places_.insert(place);
    } else {
      places_.erase(place);
    }
  }
  // The first place from `from` on, or else the first of all; nullopt if the set is empty.
  std::optional<std::size_t> next(std::size_t from) const {
    if (places_.empty()) return std::nullopt;
    const auto found = places_.lower_bound(from);
    return found == places_.end() ? *places_.begin() : *found;
  }

 private:
  std::set<std::size_t> places_;
};

// The order of the made datasets' elements: cycle_length of them are open, and each yields
// block_length elements per turn (spec 1.4).
struct InterleaveOrder {
  std::int64_t cycle_length = 1;
  std::int64_t block_length = 1;

  // Whether a saved position is valid. `position` is the current slot, `slots` how many slots were
  // used so far, and `taken` how many elements the current turn yielded.
  bool has_place(std::uint64_t position, std::uint64_t slots, std::int64_t taken) const {
    const auto cycle = static_cast<std::uint64_t>(cycle_length);
    return position <= slots && position < cycle && slots <= cycle && taken >= 0 &&
           taken < block_length;
  }
};

std::unique_ptr<Stage> start_interleave(const FlatMapBase& node, const StageContext& context,
                                        const InterleaveOrder& order);

// Like start_interleave(), but reads the made datasets ahead in threads of its own: in the same
// order if that is deterministic.
std::unique_ptr<Stage> start_parallel_interleave(const FlatMapBase& node,
                                                 const StageContext& context,
                                                 const InterleaveOrder& order,
                                                 const ParallelCallsOptions& calls);

}  // namespace cohort::data
