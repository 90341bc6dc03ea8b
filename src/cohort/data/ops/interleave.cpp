// SPDX-License-Identifier: Apache-2.0
// interleave: the elements of datasets made of each element, cycle_length datasets taking turns.
#include <algorithm>
#include <thread>

#include "cohort/data/graph/flat_map_base.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct InterleaveAttributes {
  static constexpr std::string_view kOp = "interleave";
  DatasetFunctionPtr function = {};
  std::optional<ElementSpec> spec = {};
  InterleaveOptions options = {};
  static void describe(auto& visit, auto& all) {
    visit("cycle_length", all.options.cycle_length, AtLeast{1, "> 0 or kAutotune"});
    visit("block_length", all.options.block_length, kPositive);
    describe_parallel(visit, all.options);
  }
};

// The order depends on cycle_length, so that of this machine travels with the graph.
InterleaveOptions resolved(InterleaveOptions options) {
  if (options.cycle_length == kAutotune) {
    options.cycle_length = std::max<std::int64_t>(
        {1, std::thread::hardware_concurrency(), options.num_parallel_calls});
  }
  return options;
}

class InterleaveNode final
    : public ReorderingNode<InterleaveNode, InterleaveAttributes, FlatMapBase> {
 public:
  InterleaveNode(std::vector<NodePtr> inputs, const InterleaveAttributes& given)
      : ReorderingNode(std::move(inputs), given) {
    const InterleaveOptions& options = given.options;
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
    all.merge(ReorderingNode::attributes());
    return all;
  }
  Attributes identity() const override {
    return {{"cycle_length", given().options.cycle_length},
            {"block_length", given().options.block_length}};
  }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    const InterleaveOptions& options = given().options;
    const InterleaveOrder order{.cycle_length = options.cycle_length,
                                .block_length = options.block_length};
    if (options.num_parallel_calls == 0 || context.purpose() != Purpose::run) {
      return start_interleave(*this, context, order);
    }
    return start_parallel_interleave(
        *this, context, order,
        {.calls = options.num_parallel_calls,
         .is_deterministic = context.is_deterministic(options.deterministic)});
  }
};

}  // namespace

NodePtr make_interleave(SerializedOp op) {
  return InterleaveNode::read(op,
                              {read_dataset_function(op.attributes), op.attributes.spec("spec")});
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::interleave_with(std::shared_ptr<const data::DatasetFunction> fn,
                                 InterleaveOptions options) const {
  const Dataset all = data::InterleaveNode::over(node_, {fn, {}, data::resolved(options)});
  fn->check(*node_, data::InterleaveAttributes::kOp);
  return all;
}

}  // namespace cohort
