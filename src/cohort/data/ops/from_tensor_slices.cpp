// SPDX-License-Identifier: Apache-2.0
// from_tensor_slices: element i is row i of every tensor of a nest.
#include "cohort/core/computed.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

at::Tensor checked(const at::Tensor& tensor, std::int64_t size, std::size_t field) {
  COHORT_CHECK(tensor.is_cpu(), ErrorCode::invalid_argument,
               "[data.from_tensor_slices] expected tensors in host memory, got ", tensor.toString(),
               " for field ", field, "; move it with .cpu()");
  COHORT_CHECK(tensor.dim() >= 1, ErrorCode::invalid_argument,
               "[data.from_tensor_slices] expected tensors of at least one dimension, got ",
               TensorSpec::of(tensor).to_string(), " for field ", field);
  COHORT_CHECK(tensor.size(0) == size, ErrorCode::invalid_argument,
               "[data.from_tensor_slices] expected ", size,
               " rows in every tensor, as in field 0, got ", TensorSpec::of(tensor).to_string(),
               " for field ", field);
  return StringTensor::is(tensor) ? tensor : computed(tensor.detach()).contiguous();
}

ElementSpec checked_spec(const Nest& tensors) {
  try {
    return ElementSpec::of(tensors);
  } catch (...) {
    throw current_error().during("making from_tensor_slices");
  }
}

class SlicesNode final : public Node {
 public:
  explicit SlicesNode(const Nest& tensors)
      : Node("from_tensor_slices", {}), spec_of_all_(checked_spec(tensors)) {
    const std::vector<at::Tensor> given = tensors.flatten_tensors();
    COHORT_CHECK(!given.empty(), ErrorCode::invalid_argument,
                 "[data.from_tensor_slices] expected at least one tensor, got an empty nest");
    const std::int64_t size = given[0].dim() > 0 ? given[0].size(0) : 0;
    for (std::size_t i = 0; i < given.size(); ++i) tensors_.push_back(checked(given[i], size, i));
    store_ = rows_of(tensors_);
  }

  std::int64_t cardinality() const override { return store_->size(); }
  Attributes attributes() const override { return {{"tensors", spec_of_all_.pack(tensors_)}}; }
  NodePtr with_inputs(std::vector<NodePtr>) const override { return shared_from_this(); }

  std::unique_ptr<Stage> make_stage(const StageContext&) const override {
    return start_rows(*this, store_);
  }

 protected:
  ElementSpec make_spec() const override {
    ElementSpec spec = spec_of_all_;
    for (TensorSpec& field : spec.fields) field.sizes->erase(field.sizes->begin());
    return spec;
  }

 private:
  ElementSpec spec_of_all_;
  Fields tensors_;
  std::shared_ptr<const RowStore> store_;
};

}  // namespace

NodePtr make_from_tensor_slices(SerializedOp op) {
  return std::make_shared<SlicesNode>(op.attributes.nest("tensors"));
}

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::from_tensor_slices(Nest tensors) {
  return Dataset(std::make_shared<data::SlicesNode>(tensors));
}

}  // namespace cohort
