// SPDX-License-Identifier: Apache-2.0
// The computation of a FieldFunction on the values of one field.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cohort/core/string_tensor.h"
#include "cohort/data/field_function.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {

// `field` is FieldPath::to_string(), for messages. Immutable. Thread-safe.
class FieldKernel : public std::enable_shared_from_this<FieldKernel> {
 public:
  virtual ~FieldKernel() = default;
  // Its name in kernel_table.cpp.
  virtual std::string_view name() const = 0;
  // Its parameters, from which kernel_table.cpp makes it.
  virtual Attributes attributes() const = 0;
  // The spec of apply()'s result for a field of this spec; invalid_argument if it does not accept
  // it.
  virtual TensorSpec spec(const TensorSpec& input, const std::string& field) const = 0;
  // Whether apply() of stacked fields equals the stack of apply() of each field.
  virtual bool is_element_wise() const { return true; }
  // The kernel for a run, with its files read.
  virtual std::shared_ptr<const FieldKernel> opened(const StageContext&) const {
    return shared_from_this();
  }
  virtual at::Tensor apply(const at::Tensor& values, const std::string& field) const = 0;
};

// data_loss if there is no kernel of that name.
std::shared_ptr<const FieldKernel> read_field_kernel(AttributeReader& attributes);

// The index of a field in flatten order; invalid_argument, with the element's structure, if there
// is no field at `path`. `op` is for messages.
std::size_t field_index(const FieldPath& path, const ElementSpec& element, std::string_view op);

// invalid_argument if the field is not a string.
void check_is_string(const TensorSpec& input, std::string_view op, const std::string& field);
StringTensor strings_in(const at::Tensor& values, std::string_view op, const std::string& field);

// A text for messages: in quotes, shortened.
std::string quoted(std::string_view text);

}  // namespace cohort::data
