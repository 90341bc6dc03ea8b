// SPDX-License-Identifier: Apache-2.0
// flat_map: the elements of datasets made of each element, one dataset after the other.
#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/graph/flat_map_base.h"
#include "cohort/data/ops/op_registry.h"

namespace cohort::data {
namespace {

constexpr std::string_view kFlatMapName = "flat_map";

class FlatMapNode final : public FlatMapBase {
 public:
  FlatMapNode(NodePtr input, DatasetFunctionPtr function, std::optional<ElementSpec> spec)
      : FlatMapBase(kFlatMapName, std::move(input), std::move(function), std::move(spec)) {}

  std::int64_t cardinality() const override { return kUnknownCardinality; }

  Attributes attributes() const override { return function_attributes(); }
  Attributes identity() const override { return {}; }

  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<FlatMapNode>(std::move(inputs[0]), function(), known_spec());
  }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return start_interleave(*this, context, {.cycle_length = 1, .block_length = 1});
  }
};

}  // namespace

NodePtr make_flat_map(std::vector<NodePtr> inputs, AttributeReader& attributes) {
  return std::make_shared<FlatMapNode>(std::move(inputs[0]), read_dataset_function(attributes),
                                       attributes.spec("spec"));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::flat_map_with(std::shared_ptr<const data::DatasetFunction> fn) const {
  auto node = std::make_shared<data::FlatMapNode>(node_, std::move(fn), std::nullopt);
  node->dataset_function()->check(node->input(), node->op());
  return Dataset(std::move(node));
}

}  // namespace cohort
