// SPDX-License-Identifier: Apache-2.0
// from_tensors: a whole nest as the only element.
#include "cohort/data/functions/nest_to_tensor.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

// Adds a first dimension of size 1.
at::Tensor as_row(const at::Tensor& tensor, std::size_t field) {
  COHORT_CHECK(tensor.is_cpu(), ErrorCode::invalid_argument,
               "[data.from_tensors] expected tensors in host memory, got ", tensor.toString(),
               " for field ", field, "; move it with .cpu()");
  if (!StringTensor::is(tensor)) return tensor.detach().contiguous().unsqueeze(0);
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), 1);
  return StringTensor::of(tensor).reshaped(std::move(sizes));
}

class TensorsNode final : public Node {
 public:
  explicit TensorsNode(const Nest& element)
      : Node("from_tensors", {}),
        element_(with_tensors(element)),
        spec_(ElementSpec::of(element_)) {
    COHORT_CHECK(!spec_.fields.empty(), ErrorCode::invalid_argument,
                 "[data.from_tensors] expected at least one tensor, got an empty nest");
    Fields fields;
    for (const at::Tensor& tensor : element_.flatten_tensors()) {
      fields.push_back(as_row(tensor, fields.size()));
    }
    store_ = rows_of(fields);
  }

  std::int64_t cardinality() const override { return 1; }
  Attributes attributes() const override { return {{"element", element_}}; }
  NodePtr with_inputs(std::vector<NodePtr>) const override { return shared_from_this(); }

  std::unique_ptr<Stage> make_stage(const StageContext&) const override {
    return start_rows(*this, store_);
  }

 protected:
  ElementSpec make_spec() const override { return spec_; }

 private:
  Nest element_;
  ElementSpec spec_;
  std::shared_ptr<const RowStore> store_;
};

}  // namespace

NodePtr make_from_tensors(SerializedOp op) {
  return std::make_shared<TensorsNode>(op.attributes.nest("element"));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::from_tensors(Nest element) {
  return Dataset(std::make_shared<data::TensorsNode>(element));
}

}  // namespace cohort
