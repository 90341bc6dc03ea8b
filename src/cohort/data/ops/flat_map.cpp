// SPDX-License-Identifier: Apache-2.0
// flat_map: the elements of datasets made of each element, one dataset after the other.
#include "cohort/data/graph/flat_map_base.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct FlatMapAttributes {
  static constexpr std::string_view kOp = "flat_map";
  DatasetFunctionPtr function = {};
  std::optional<ElementSpec> spec = {};
  static void describe(auto&, auto&) {}
};

class FlatMapNode final : public OpNode<FlatMapNode, FlatMapAttributes, FlatMapBase> {
 public:
  using OpNode::OpNode;

  std::int64_t cardinality() const override { return kUnknownCardinality; }

  Attributes attributes() const override { return function_attributes(); }
  Attributes identity() const override { return {}; }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return start_interleave(*this, context, {.cycle_length = 1, .block_length = 1});
  }
};

}  // namespace

NodePtr make_flat_map(SerializedOp op) {
  return FlatMapNode::read(op, {read_dataset_function(op.attributes), op.attributes.spec("spec")});
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::flat_map_with(std::shared_ptr<const data::DatasetFunction> fn) const {
  fn->check(*node_, data::FlatMapAttributes::kOp);
  return data::FlatMapNode::over(node_, {std::move(fn)});
}

}  // namespace cohort
