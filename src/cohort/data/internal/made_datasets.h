// SPDX-License-Identifier: Apache-2.0
// What flat_map and interleave share: a dataset is made of each element of the input.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "cohort/core/bytes.h"
#include "cohort/core/mutex.h"
#include "cohort/core/once.h"
#include "cohort/data/internal/dataset_function.h"
#include "cohort/data/internal/node.h"
#include "cohort/data/internal/stage.h"

namespace cohort::data {

using DatasetFunctionPtr = std::shared_ptr<const DatasetFunction>;

// The node of such an op. Thread-safe.
class MadeDatasetsNode : public Node {
 public:
  // `spec`: that of the made datasets where it is known.
  MadeDatasetsNode(std::string_view op, NodePtr input, DatasetFunctionPtr function,
                   std::optional<ElementSpec> spec)
      : Node(op, {std::move(input)}),
        function_(std::move(function)),
        known_spec_(std::move(spec)) {}

  const DatasetFunction* dataset_function() const override { return function_.get(); }
  Nest structure() const override;

  // The first is kept; another than the first is invalid_argument.
  void note_structure(const Nest& structure) const;

 protected:
  ElementSpec make_spec() const override;
  // What ships the function, as read_dataset_function() reads it, and `spec`.
  Attributes function_attributes() const;
  const DatasetFunctionPtr& function() const { return function_; }
  const std::optional<ElementSpec>& known_spec() const { return known_spec_; }

 private:
  DatasetFunctionPtr function_;
  std::optional<ElementSpec> known_spec_;
  mutable Mutex mutex_;
  mutable std::optional<Nest> structure_ COHORT_GUARDED_BY(mutex_);
};

// One of the made datasets, running. Used from one thread at a time.
class OpenDataset {
 public:
  OpenDataset(const MadeDatasetsNode& owner, NodePtr node, const StageContext& context)
      : owner_(owner), node_(std::move(node)), stage_(node_->start(context)) {}

  bool next(Fields& fields);
  void save(ByteWriter& writer) const { stage_->save(writer); }
  void restore(ByteReader& reader) { stage_->restore(reader); }

 private:
  const MadeDatasetsNode& owner_;
  NodePtr node_;
  std::unique_ptr<Stage> stage_;
  bool is_checked_ = false;
};

// Opens them for one running op. Thread-safe.
class DatasetOpener {
 public:
  DatasetOpener(const MadeDatasetsNode& node, StageContext context)
      : node_(node), context_(std::move(context)) {}

  // That of the input's element number `index`. Throws what the function throws, naming the
  // element.
  std::unique_ptr<OpenDataset> open(const Fields& element, std::uint64_t index);

 private:
  const MadeDatasetsNode& node_;
  StageContext context_;
  Once once_;
  Nest input_structure_;
};

// How the made datasets take turns: cycle_length of them are open, each yields block_length
// elements a visit (spec 1.4).
struct InterleaveOrder {
  std::int64_t cycle_length = 1;
  std::int64_t block_length = 1;

  // Whether a saved place can be one: the slot in turn, of `slots` that were in turn so far, and
  // how many elements this visit of it yielded.
  bool has_place(std::uint64_t position, std::uint64_t slots, std::int64_t taken) const {
    const auto cycle = static_cast<std::uint64_t>(cycle_length);
    return position <= slots && position < cycle && slots <= cycle && taken >= 0 &&
           taken < block_length;
  }
};

std::unique_ptr<Stage> start_interleave(const MadeDatasetsNode& node, const StageContext& context,
                                        const InterleaveOrder& order);

struct InterleaveCalls {
  std::int64_t calls = kAutotune;  // or > 0
  bool is_deterministic = true;    // in the order of start_interleave
};
// Reads ahead in the made datasets with threads of its own.
std::unique_ptr<Stage> start_parallel_interleave(const MadeDatasetsNode& node,
                                                 const StageContext& context,
                                                 const InterleaveOrder& order,
                                                 const InterleaveCalls& calls);

}  // namespace cohort::data
