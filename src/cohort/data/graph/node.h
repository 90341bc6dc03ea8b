// SPDX-License-Identifier: Apache-2.0
// One op of a dataset graph, and the context in which it starts to run.
#pragma once

#include <atomic>
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
#include "cohort/data/graph/shared_value.h"
#include "cohort/data/parallel/cancellation.h"

namespace cohort::data {

class MapFunction;  // functions/map_function.h
class Node;
class OpenedFiles;  // opened_files.h
class Selection;    // sharding/selection.h
class Stage;
class StageProfiler;  // stages/stage_profiler.h
using NodePtr = std::shared_ptr<const Node>;
// All parameters of an op except its inputs, in the form that is serialized. Contains no handles.
using Attributes = Nest::Map;

// Why a graph runs. A preview draws a few elements to learn their specs: it does not change the
// graph's state (caches, counters), starts no thread and shuffles nothing. With short_preview,
// batches have the size of the last, short batch.
enum class Purpose : std::uint8_t { run, preview, short_preview };

// IterationOptions::iteration of one running pipeline, which a restored position replaces.
using PassNumber = SharedValue<std::optional<std::uint64_t>>;

// The iteration number of each shuffle and function of one running pipeline. Thread-safe.
class Iterations {
 public:
  explicit Iterations(std::shared_ptr<const PassNumber> pass) : pass_(std::move(pass)) {}
  // The number for `node` at `path`. The first call obtains it from draw(), unless the pass has a
  // number.
  template <class Draw>
  std::uint64_t of(const Node* node, std::uint64_t path, Draw draw) {
    const Lock lock(mutex_);
    const auto [entry, is_new] = numbers_.try_emplace({node, path}, 0);
    const std::optional<std::uint64_t> all = is_new ? pass_->get() : std::nullopt;
    if (is_new) entry->second = all ? *all : draw();
    return entry->second;
  }
  // For an iterator that restores a saved position.
  void set(const Node* node, std::uint64_t path, std::uint64_t number) {
    const Lock lock(mutex_);
    numbers_[{node, path}] = number;
  }

 private:
  const std::shared_ptr<const PassNumber> pass_;  // shared with the whole run
  Mutex mutex_;
  std::map<std::pair<const Node*, std::uint64_t>, std::uint64_t> numbers_ COHORT_GUARDED_BY(mutex_);
};

// The run that an op belongs to, and its place in the pipeline. A value type.
class StageContext {
 public:
  StageContext(IterationOptions options, Purpose purpose,
               const DatasetOptions& dataset_options = {}, const std::stop_token& stop = {});

  const IterationOptions& options() const { return *options_; }
  // The options of the whole dataset that runs, not only of this op's inputs.
  const DatasetOptions& dataset_options() const { return *dataset_options_; }
  // The op's own `deterministic` if set, else the dataset's; true by default.
  bool is_deterministic(const Determinism& of_call) const {
    return of_call.value_or(dataset_options_->deterministic.value_or(true));
  }
  Purpose purpose() const { return purpose_; }
  Iterations& iterations() const { return *iterations_; }
  PassNumber& pass() const { return *pass_; }
  // Identifies the op, equal in every run of a graph. Ops that sharding and rebatching add to a
  // graph do not change it.
  std::uint64_t path() const { return path_; }
  // A hash of the epochs of the repeats after this op; 0 in the first epoch.
  std::uint64_t epoch() const { return epoch_; }
  // The path from the sink to this op, for the StageProfiler: "/" is the sink, "/1/0" the first
  // input of its second input.
  const std::string& place() const { return place_; }
  // Null unless the run notes which files it opens.
  const std::shared_ptr<OpenedFiles>& opened_files() const { return opened_files_; }
  StageContext noting(std::shared_ptr<OpenedFiles> files) const {
    return with(&StageContext::opened_files_, std::move(files));
  }
  // Null unless IterationOptions::collect_stats.
  const std::shared_ptr<StageProfiler>& profiler() const { return profiler_; }
  // For random ops: differs for each op and epoch, and is equal in runs with the same nonzero
  // IterationOptions::seed.
  std::uint64_t random_seed() const;

  // Never null.
  const std::shared_ptr<Cancellation>& cancellation() const { return cancellation_; }
  // The same context with a new child Cancellation, for the input of a stage that owns threads. It
  // is one of ahead().
  StageContext with_own_cancellation() const;

  // The same context for stages that run in threads of the library, beside their consumer.
  StageContext ahead() const { return with(&StageContext::is_ahead_, true); }
  // Whether C++ functions must not draw random numbers from LibTorch's default generator: which
  // ones they got beside the consumer would depend on the timing, and a preview is nothing that a
  // program has asked for. CallScope gives them a generator.
  bool has_own_random_numbers() const { return is_ahead_ || purpose_ != Purpose::run; }
  // The seed for the functions of `op`: follows from torch::manual_seed() and what was drawn before
  // the pipeline was started, the op, the number of the iteration, and the epoch.
  std::uint64_t function_seed(const Node& op) const;

  // If not null, a later op draws only these elements of this op.
  const std::shared_ptr<const Selection>& selection() const { return selection_; }
  StageContext selecting(std::shared_ptr<const Selection> selection) const {
    return with(&StageContext::selection_, std::move(selection));
  }

  // For the op's i-th input.
  StageContext input(std::size_t i) const;
  // The context in which `op` itself starts its stage. If `op` is one that sharding and rebatching
  // add, its first input gets the same path().
  StageContext inside(std::string_view op) const;
  // For the i-th input of a repeat, in an epoch.
  StageContext input_in_epoch(std::size_t i, std::uint64_t epoch) const;
  // For a dataset that the op makes from its input's element number `element`; `made` are the
  // options of that dataset, and `function_seed` is that of the op.
  StageContext made_of(std::uint64_t element, const DatasetOptions& made,
                       std::uint64_t function_seed) const;

 private:
  // The same context with another value of a member.
  template <class T>
  StageContext with(T StageContext::*member, T value) const {
    StageContext context = *this;
    context.*member = std::move(value);
    return context;
  }

  std::shared_ptr<const IterationOptions> options_;
  std::shared_ptr<const DatasetOptions> dataset_options_;
  std::shared_ptr<PassNumber> pass_;
  std::shared_ptr<Iterations> iterations_;
  std::shared_ptr<Cancellation> cancellation_;
  std::shared_ptr<const Selection> selection_;
  std::uint64_t seed_;
  std::shared_ptr<StageProfiler> profiler_;
  std::shared_ptr<OpenedFiles> opened_files_;
  std::string place_ = "/";
  std::uint64_t path_ = 0;
  std::uint64_t epoch_ = 0;
  bool keeps_path_ = false;  // input(0) has the same path
  bool is_ahead_ = false;
  std::uint64_t function_seed_ = 0;  // before the op and the iteration are mixed in
  Purpose purpose_;
};

// Limits of a graph. A running graph, and the destruction of a graph, recurse once per op in a row.
inline constexpr std::size_t kOpsInARowMax = 500;
// The number of stages of a running pipeline. An op that is used twice has two stages.
inline constexpr std::size_t kStagesMax = 100'000;

// Immutable except for caches. Thread-safe.
class Node : public std::enable_shared_from_this<Node> {
 public:
  // invalid_argument if the graph is then larger than the limits.
  Node(std::string_view op, std::vector<NodePtr> inputs);
  // For OpNode, whose other bases use some of the attributes.
  Node(std::string_view op, std::vector<NodePtr> inputs, const auto&)
      : Node(op, std::move(inputs)) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // The name in ops/table.cpp.
  std::string_view op() const { return op_; }
  const std::vector<NodePtr>& inputs() const { return inputs_; }
  const Node& input() const { return *inputs_.front(); }
  // Computed at the first call; a map runs its function for it.
  const ElementSpec& spec() const;
  // The same, or nullptr if it cannot be computed now (a map whose function fails). Checks while
  // the graph is built are then left to the run.
  const ElementSpec* known_spec() const;
  // ElementSpec::structure. Runs nothing if an element was already made.
  virtual Nest structure() const;
  // The cardinality of the input, unless the op says otherwise.
  virtual std::int64_t cardinality() const { return input().cardinality(); }
  // Throws if the op cannot be serialized, for example because its function cannot be traced.
  virtual Attributes attributes() const = 0;
  // Distinguishes the op from others of its name: the attributes without those that only a trace or
  // a call of its function can find. Runs nothing.
  virtual Attributes identity() const { return attributes(); }
  // See graph_fingerprint().
  std::uint64_t fingerprint() const;
  // Starts a stage that runs this op; profiles it if context.options().collect_stats.
  std::unique_ptr<Stage> start(const StageContext& context) const;
  // A copy of the op with other inputs, of the same number. For graph rewrites.
  virtual NodePtr with_inputs(std::vector<NodePtr> inputs) const = 0;
  // The merged options of the inputs; an input overrides the earlier ones.
  virtual DatasetOptions options() const;
  // The names of this op and all its inputs, inputs first, as "range range zip/2". A position can
  // only be restored in a pipeline with the same text.
  std::string pipeline() const;
  // Not null for an op that makes a dataset from each element.
  virtual const DatasetFunction* dataset_function() const { return nullptr; }
  // Not null for an op that calls a function for each element.
  virtual const MapFunction* map_function() const { return nullptr; }
  // Whether the program gave the spec of what that function returns, so that none is learned from a
  // few elements.
  virtual bool has_given_spec() const { return false; }
  // Whether another run may yield the elements in a different order, since parallel calls end in
  // any. `deterministic` is the dataset's option, for an op that has none of its own.
  virtual bool may_reorder(bool /*deterministic*/) const { return false; }
  // The number of the next iteration that runs the op's functions.
  std::uint64_t next_iteration() const { return next_iteration_++; }

 protected:
  virtual std::unique_ptr<Stage> make_stage(const StageContext& context) const = 0;
  virtual ElementSpec make_spec() const { return input().spec(); }

 private:
  std::string_view op_;
  std::vector<NodePtr> inputs_;
  std::size_t depth_ = 1;   // ops in a row, this one included
  std::size_t stages_ = 1;  // of a running pipeline that ends here
  mutable Once spec_once_;
  mutable ElementSpec spec_;
  mutable Once fingerprint_once_;
  mutable std::uint64_t fingerprint_ = 0;
  mutable std::atomic<std::uint64_t> next_iteration_ = 0;
};

}  // namespace cohort::data
