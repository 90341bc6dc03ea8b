// SPDX-License-Identifier: Apache-2.0
// from_tensors: a whole nest as the only element. from_tensor_slices: element i is row i of every
// tensor of a nest.
#include "cohort/core/computed.h"
#include "cohort/data/functions/nest_to_tensor.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

// The elements are the rows of tensors.
class TensorsNode final : public Node {
 public:
  TensorsNode(std::string_view op, Attributes attributes, ElementSpec spec, const Fields& tensors)
      : Node(op, {}),
        attributes_(std::move(attributes)),
        spec_(std::move(spec)),
        store_(rows_of(tensors)) {}

  std::int64_t cardinality() const override { return store_->size(); }
  Attributes attributes() const override { return attributes_; }
  NodePtr with_inputs(std::vector<NodePtr>) const override { return shared_from_this(); }
  std::unique_ptr<Stage> make_stage(const StageContext&) const override {
    return start_rows(*this, store_);
  }

 protected:
  ElementSpec make_spec() const override { return spec_; }

 private:
  Attributes attributes_;
  ElementSpec spec_;
  std::shared_ptr<const RowStore> store_;
};

void check_is_here(const at::Tensor& tensor, std::size_t field, std::string_view op) {
  COHORT_CHECK(tensor.is_cpu(), ErrorCode::invalid_argument, "[data.", op,
               "] expected tensors in host memory, got ", tensor.toString(), " for field ", field,
               "; move it with .cpu()");
}

void check_has_tensors(std::size_t count, std::string_view op) {
  COHORT_CHECK(count > 0, ErrorCode::invalid_argument, "[data.", op,
               "] expected at least one tensor, got an empty nest");
}

// Adds a first dimension of size 1.
at::Tensor as_row(const at::Tensor& tensor, std::size_t field) {
  check_is_here(tensor, field, "from_tensors");
  if (!StringTensor::is(tensor)) return tensor.detach().contiguous().unsqueeze(0);
  std::vector<std::int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), 1);
  return StringTensor::of(tensor).reshaped(std::move(sizes));
}

NodePtr one_element(const Nest& given) {
  constexpr std::string_view kOp = "from_tensors";
  Nest element = with_tensors(given);
  ElementSpec spec = ElementSpec::of(element);
  check_has_tensors(spec.fields.size(), kOp);
  Fields rows;
  for (const at::Tensor& tensor : element.flatten_tensors()) {
    rows.push_back(as_row(tensor, rows.size()));
  }
  return std::make_shared<TensorsNode>(kOp, Attributes{{"element", std::move(element)}},
                                       std::move(spec), rows);
}

at::Tensor as_slices(const at::Tensor& tensor, std::int64_t size, std::size_t field) {
  check_is_here(tensor, field, "from_tensor_slices");
  COHORT_CHECK(tensor.dim() >= 1, ErrorCode::invalid_argument,
               "[data.from_tensor_slices] expected tensors of at least one dimension, got ",
               TensorSpec::of(tensor).to_string(), " for field ", field);
  COHORT_CHECK(tensor.size(0) == size, ErrorCode::invalid_argument,
               "[data.from_tensor_slices] expected ", size,
               " rows in every tensor, as in field 0, got ", TensorSpec::of(tensor).to_string(),
               " for field ", field);
  return StringTensor::is(tensor) ? tensor : computed(tensor.detach()).contiguous();
}

ElementSpec spec_of_slices(const Nest& tensors) {
  try {
    return ElementSpec::of(tensors);
  } catch (...) {
    throw current_error().during("making from_tensor_slices");
  }
}

NodePtr slices(const Nest& nest) {
  constexpr std::string_view kOp = "from_tensor_slices";
  ElementSpec spec = spec_of_slices(nest);
  const std::vector<at::Tensor> given = nest.flatten_tensors();
  check_has_tensors(given.size(), kOp);
  const std::int64_t size = given[0].dim() > 0 ? given[0].size(0) : 0;
  Fields tensors;
  for (const at::Tensor& tensor : given) {
    tensors.push_back(as_slices(tensor, size, tensors.size()));
  }
  Attributes attributes{{"tensors", spec.pack(tensors)}};
  for (TensorSpec& field : spec.fields) field.sizes->erase(field.sizes->begin());
  return std::make_shared<TensorsNode>(kOp, std::move(attributes), std::move(spec), tensors);
}

}  // namespace

NodePtr make_from_tensors(SerializedOp op) { return one_element(op.attributes.nest("element")); }

NodePtr make_from_tensor_slices(SerializedOp op) { return slices(op.attributes.nest("tensors")); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::from_tensors(Nest element) { return Dataset(data::one_element(element)); }

Dataset Dataset::from_tensor_slices(Nest tensors) { return Dataset(data::slices(tensors)); }

}  // namespace cohort
