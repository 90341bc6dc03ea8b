// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/graph/node.h"

#include <algorithm>
#include <array>

#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/data/graph/graph_codec.h"
#include "cohort/data/sharding/selection.h"
#include "cohort/data/stages/stage.h"
#include "cohort/data/stages/stage_profiler.h"
#include "cohort/function/generator_scope.h"

namespace cohort::data {

StageContext::StageContext(IterationOptions options, Purpose purpose,
                           const DatasetOptions& dataset_options, const std::stop_token& stop)
    : options_(std::make_shared<const IterationOptions>(std::move(options))),
      dataset_options_(std::make_shared<const DatasetOptions>(dataset_options)),
      pass_(std::make_shared<PassNumber>(options_->iteration)),
      iterations_(std::make_shared<Iterations>(pass_)),
      cancellation_(std::make_shared<Cancellation>(stop)),
      seed_(options_->seed != 0 ? options_->seed : draw_number()),
      purpose_(purpose) {
  if (purpose == Purpose::run) function_seed_ = function::hash_of_generator();
  if (options_->collect_stats && purpose == Purpose::run)
    profiler_ = std::make_shared<StageProfiler>();
}

std::uint64_t StageContext::random_seed() const { return mix_seed(mix_seed(seed_, path_), epoch_); }

std::uint64_t StageContext::function_seed(const Node& op) const {
  const std::uint64_t iteration =
      purpose_ == Purpose::run ? iterations_->of(&op, path_, [&] { return op.next_iteration(); })
                               : 0;
  return mix_seed(mix_seed(mix_seed(function_seed_, path_), epoch_), iteration);
}

StageContext StageContext::with_own_cancellation() const {
  return ahead().with(&StageContext::cancellation_,
                      std::make_shared<Cancellation>(cancellation_->token()));
}

StageContext StageContext::input(std::size_t i) const {
  StageContext context = *this;
  if (!keeps_path_ || i > 0) context.path_ = mix_seed(path_, i);
  if (profiler_) {
    if (context.place_.size() > 1) context.place_ += '/';
    context.place_ += std::to_string(i);
  }
  return context;
}

StageContext StageContext::inside(std::string_view op) const {
  // Ops that are not random and that rebatching and sharding insert or replace. Since they do not
  // change paths, the random ops before them keep their order for any number of workers.
  static constexpr std::array<std::string_view, 8> kTransparent{
      "batch",         "options", "prefetch",       "rebatch",
      "rebatch_split", "shard",   "shard_by_index", "with_spec"};
  StageContext context = *this;
  context.keeps_path_ = std::ranges::find(kTransparent, op) != kTransparent.end();
  return context;
}

StageContext StageContext::input_in_epoch(std::size_t i, std::uint64_t epoch) const {
  StageContext context = input(i);
  if (epoch > 0) context.epoch_ = mix_seed(epoch_, epoch);
  return context;
}

StageContext StageContext::made_of(std::uint64_t element, const DatasetOptions& made,
                                   std::uint64_t function_seed) const {
  StageContext context = *this;
  context.function_seed_ = function_seed;
  context.path_ = mix_seed(mix_seed(path_, "made of"), element);
  // The made nodes live only as long as their stage, so their iteration numbers, whose keys are
  // node addresses, must not outlive it.
  context.iterations_ = std::make_shared<Iterations>(pass_);
  context.profiler_.reset();  // its time counts as the op's own
  if (made != DatasetOptions()) {
    context.dataset_options_ =
        std::make_shared<const DatasetOptions>(dataset_options_->merged(made));
  }
  return context;
}

Node::Node(std::string_view op, std::vector<NodePtr> inputs) : op_(op), inputs_(std::move(inputs)) {
  for (const NodePtr& input : inputs_) {
    depth_ = std::max(depth_, input->depth_ + 1);
    stages_ = std::min(stages_ + input->stages_, kStagesMax + 1);
  }
  COHORT_CHECK(depth_ <= kOpsInARowMax, ErrorCode::invalid_argument, "[data.", op_,
               "] expected at most ", kOpsInARowMax, " ops in a row, got ", depth_,
               "; give a reader the list of all its files, let one map() do the work of several, "
               "and join many datasets in pairs, then the pairs, and so on, not one after another");
  COHORT_CHECK(stages_ <= kStagesMax, ErrorCode::invalid_argument, "[data.", op_,
               "] expected a pipeline of at most ", kStagesMax,
               " ops, each counted as often as it is used, got more; use repeat() for the same "
               "dataset several times, and give a reader the list of all its files");
}

const ElementSpec& Node::spec() const {
  spec_once_.call([this] { spec_ = make_spec(); });
  return spec_;
}

std::unique_ptr<Stage> Node::start(const StageContext& context) const {
  const StageContext here = context.inside(op_);
  const bool selects = context.selection() != nullptr && !is_element_wise(*this);
  std::unique_ptr<Stage> stage = make_stage(selects ? here.selecting(nullptr) : here);
  stage->listen_to(context.cancellation());
  if (selects) {
    stage = start_selected(*this, std::move(stage), context.selection());
    stage->listen_to(context.cancellation());
  }
  return context.profiler() != nullptr ? measured(std::move(stage), *this, context)
                                       : std::move(stage);
}

const ElementSpec* Node::known_spec() const {
  try {
    return &spec();
  } catch (const Error&) {
    return nullptr;
  }
}

std::string Node::pipeline() const {
  std::string text;
  for (const NodePtr& node : ops_of(shared_from_this())) {
    if (!text.empty()) text += ' ';
    text += node->op();
    const std::size_t inputs = node->inputs().size();
    if (inputs > 1) text += '/' + std::to_string(inputs);
  }
  return text;
}

DatasetOptions Node::options() const {
  DatasetOptions all;
  for (const NodePtr& input : inputs_) all = all.merged(input->options());
  return all;
}

Nest Node::structure() const {
  return inputs_.size() == 1 ? input().structure() : spec().structure;
}

}  // namespace cohort::data
