// SPDX-License-Identifier: Apache-2.0
// interleave: the elements of datasets made of each element, cycle_length datasets taking turns.
#include <algorithm>
#include <thread>

#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/flat_map_base.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/parallel/parallel_calls.h"
#include "cohort/data/parallel/reordering_op.h"

namespace cohort::data {
namespace {

constexpr std::string_view kInterleaveName = "interleave";

// The order depends on cycle_length, so that of this machine travels with the graph.
InterleaveOptions resolved(InterleaveOptions options) {
  if (options.cycle_length == kAutotune) {
    options.cycle_length = std::max<std::int64_t>(
        {1, std::thread::hardware_concurrency(), options.num_parallel_calls});
  }
  return options;
}

class InterleaveNode final : public FlatMapBase, public ReorderingOp {
 public:
  InterleaveNode(NodePtr input, DatasetFunctionPtr function, std::optional<ElementSpec> spec,
                 const InterleaveOptions& options)
      : FlatMapBase(kInterleaveName, std::move(input), std::move(function), std::move(spec)),
        ReorderingOp(options.num_parallel_calls, options.deterministic),
        options_(options) {
    COHORT_CHECK(options.cycle_length > 0, ErrorCode::invalid_argument,
                 "[data.interleave] expected cycle_length > 0 or kAutotune, got ",
                 options.cycle_length);
    COHORT_CHECK(options.block_length > 0, ErrorCode::invalid_argument,
                 "[data.interleave] expected block_length > 0, got ", options.block_length);
    check_parallel_calls(options.num_parallel_calls, kInterleaveName);
    COHORT_CHECK(options.num_parallel_calls <= options.cycle_length, ErrorCode::invalid_argument,
                 "[data.interleave] expected num_parallel_calls of at most cycle_length, ",
                 options.cycle_length, ", got ", options.num_parallel_calls);
  }

  std::int64_t cardinality() const override {
    return input().cardinality() == kInfiniteCardinality ? kInfiniteCardinality
                                                         : kUnknownCardinality;
  }

  Attributes attributes() const override {
    Attributes all = function_attributes();
    all.merge(identity());
    add_parallel_attributes(all);
    return all;
  }
  Attributes identity() const override {
    return {{"cycle_length", options_.cycle_length}, {"block_length", options_.block_length}};
  }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<InterleaveNode>(std::move(inputs[0]), function(), known_spec(),
                                            options_);
  }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    const InterleaveOrder order{.cycle_length = options_.cycle_length,
                                .block_length = options_.block_length};
    if (options_.num_parallel_calls == 0 || context.purpose() != Purpose::run) {
      return start_interleave(*this, context, order);
    }
    return start_parallel_interleave(
        *this, context, order,
        {.calls = options_.num_parallel_calls,
         .is_deterministic = context.is_deterministic(options_.deterministic)});
  }

 private:
  InterleaveOptions options_;
};

}  // namespace

NodePtr make_interleave(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  InterleaveOptions options{.cycle_length = attributes.integer("cycle_length"),
                            .block_length = attributes.integer("block_length")};
  read_parallel_attributes(attributes, options);
  return std::make_shared<InterleaveNode>(std::move(inputs[0]), read_dataset_function(attributes),
                                          attributes.spec("spec"), options);
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::interleave_with(std::shared_ptr<const data::DatasetFunction> fn,
                                 InterleaveOptions options) const {
  auto node = std::make_shared<data::InterleaveNode>(node_, std::move(fn), std::nullopt,
                                                     data::resolved(options));
  node->dataset_function()->check(node->input(), node->op());
  return Dataset(std::move(node));
}

}  // namespace cohort
