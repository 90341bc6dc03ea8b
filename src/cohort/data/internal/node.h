// SPDX-License-Identifier: Apache-2.0
// One op of a dataset graph, and what it is told when it starts to run.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/core/nest.h"
#include "cohort/core/once.h"
#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/data/internal/parallel/cancellation.h"

namespace cohort::data {

class Node;
class Selection;  // internal/sharding/selection.h
class Stage;
class StageBook;  // internal/stage_book.h
using NodePtr = std::shared_ptr<const Node>;
// Everything an op is made from besides its inputs: what travels on the wire. No handles.
using Attributes = Nest::Map;

// Why a graph runs. A preview draws a few elements to learn their specs: it leaves no mark on the
// graph, starts no thread and shuffles nothing. The short one yields batches of the size of the
// last, short batch.
enum class Purpose : std::uint8_t { run, preview, short_preview };

// What the ops of one running pipeline share: which of its iterations each shuffle is in.
// Thread-safe.
class Iterations {
 public:
  explicit Iterations(std::optional<std::uint64_t> all) : all_(all) {}
  // The number drawn for `node` at `path`; draw() is called the first time.
  template <class Draw>
  std::uint64_t of(const Node* node, std::uint64_t path, Draw draw) {
    const Lock lock(mutex_);
    const auto [entry, is_new] = numbers_.try_emplace({node, path}, 0);
    if (is_new) entry->second = all_ ? *all_ : draw();
    return entry->second;
  }
  // For an iterator that takes up another's position.
  void set(const Node* node, std::uint64_t path, std::uint64_t number) {
    const Lock lock(mutex_);
    numbers_[{node, path}] = number;
  }

 private:
  const std::optional<std::uint64_t> all_;  // RunOptions::iteration
  Mutex mutex_;
  std::map<std::pair<const Node*, std::uint64_t>, std::uint64_t> numbers_ COHORT_GUARDED_BY(mutex_);
};

// Another number in every process and at every call.
std::uint64_t drawn_seed();

// Where in a running pipeline an op runs. A value type.
class StageContext {
 public:
  StageContext(RunOptions options, Purpose purpose, const DatasetOptions& dataset_options = {},
               const std::stop_token& stop = {});

  const RunOptions& options() const { return *options_; }
  // Those of the dataset that runs, wherever in it this op stands.
  const DatasetOptions& dataset_options() const { return *dataset_options_; }
  // What a call's `deterministic` comes to here.
  bool is_deterministic(const Determinism& of_call) const {
    return of_call.value_or(dataset_options_->deterministic.value_or(true));
  }
  Purpose purpose() const { return purpose_; }
  Iterations& iterations() const { return *iterations_; }
  // The same for every run of a graph: which op this is. What sharding and rebatching add to a
  // graph does not change it.
  std::uint64_t path() const { return path_; }
  // The epochs of the repeats around this op; 0 in the first.
  std::uint64_t epoch() const { return epoch_; }
  // Where below the sink this op is, for the book: "/" for the sink, "/1/0" for the first input of
  // its second.
  const std::string& place() const { return place_; }
  // Null unless RunOptions::collect_stats.
  const std::shared_ptr<StageBook>& book() const { return book_; }
  // For random ops: different for each op and epoch, the same in each run with the same
  // RunOptions::seed (one was drawn if that is 0).
  std::uint64_t random_seed() const;

  // Never null.
  const std::shared_ptr<Cancellation>& cancellation() const { return cancellation_; }
  // The same place, with a cancellation of its own: for what lies before a stage that owns threads.
  StageContext with_own_cancellation() const;

  // Not null: of this op's elements those alone are drawn, by an op behind it.
  const std::shared_ptr<const Selection>& selection() const { return selection_; }
  StageContext selecting(std::shared_ptr<const Selection> selection) const;

  // For the op's i-th input; for that in a repeat's epoch.
  StageContext input(std::size_t i) const;
  // The same place as seen by `op`.
  StageContext inside(std::string_view op) const;
  StageContext input_in_epoch(std::size_t i, std::uint64_t epoch) const;
  // For a dataset that the op makes of its input's element number `element`.
  StageContext made_of(std::uint64_t element, const DatasetOptions& made) const;

 private:
  std::shared_ptr<const RunOptions> options_;
  std::shared_ptr<const DatasetOptions> dataset_options_;
  std::shared_ptr<Iterations> iterations_;
  std::shared_ptr<Cancellation> cancellation_;
  std::shared_ptr<const Selection> selection_;
  std::uint64_t seed_;
  std::shared_ptr<StageBook> book_;
  std::string place_ = "/";
  std::uint64_t path_ = 0;
  std::uint64_t epoch_ = 0;
  bool keeps_path_ = false;  // of input 0
  Purpose purpose_;
};

// Immutable but for caches. Thread-safe.
class Node : public std::enable_shared_from_this<Node> {
 public:
  Node(std::string_view op, std::vector<NodePtr> inputs) : op_(op), inputs_(std::move(inputs)) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // The name in ops/table.cpp.
  std::string_view op() const { return op_; }
  const std::vector<NodePtr>& inputs() const { return inputs_; }
  const Node& input() const { return *inputs_.front(); }
  // Found at the first call: that of a map runs the function.
  const ElementSpec& spec() const;
  // The same, or nullptr where it cannot be found now (a map whose function fails): a check when
  // the graph is built is then left to the run.
  const ElementSpec* known_spec() const;
  // ElementSpec::structure, without running anything once an element was made.
  virtual Nest structure() const;
  virtual std::int64_t cardinality() const = 0;
  // May throw where something cannot be shipped (a function that cannot be traced).
  virtual Attributes attributes() const = 0;
  // Its running form, measured where context.options().collect_stats says so.
  std::unique_ptr<Stage> start(const StageContext& context) const;
  // The same op over other inputs, as many as it has: how rewrites build graphs.
  virtual NodePtr with_inputs(std::vector<NodePtr> inputs) const = 0;
  // Those of the inputs in order, each over the ones before.
  virtual DatasetOptions options() const;
  // The names of this op and all before it, inputs first, as "range range zip/2": what a saved
  // position must come from.
  std::string pipeline() const;
  // Not null: the op makes a dataset of each element.
  virtual const DatasetFunction* dataset_function() const { return nullptr; }

 protected:
  virtual std::unique_ptr<Stage> make_stage(const StageContext& context) const = 0;
  virtual ElementSpec make_spec() const { return input().spec(); }

 private:
  std::string_view op_;
  std::vector<NodePtr> inputs_;
  mutable Once spec_once_;
  mutable ElementSpec spec_;
};

}  // namespace cohort::data
