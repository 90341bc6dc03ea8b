// SPDX-License-Identifier: Apache-2.0
// What a FieldFunction does with the values of its field, whichever field that is.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cohort/core/string_tensor.h"
#include "cohort/data/field_function.h"
#include "cohort/data/internal/attribute_reader.h"
#include "cohort/data/internal/node.h"

namespace cohort::data {

// `field` is FieldPath::to_string(), for messages. Immutable. Thread-safe.
class FieldKernel : public std::enable_shared_from_this<FieldKernel> {
 public:
  virtual ~FieldKernel() = default;
  // Its name in kernel_table.cpp.
  virtual std::string_view name() const = 0;
  // What kernel_table.cpp makes it from, besides its name.
  virtual Attributes attributes() const = 0;
  // What apply() makes of a field of this spec; invalid_argument where it takes none such.
  virtual TensorSpec spec(const TensorSpec& input, const std::string& field) const = 0;
  // Whether apply() makes of the stack of some fields the stack of what it makes of each.
  virtual bool is_element_wise() const { return true; }
  // The kernel as a run calls it, which has read its files.
  virtual std::shared_ptr<const FieldKernel> opened(const RunOptions&) const {
    return shared_from_this();
  }
  virtual at::Tensor apply(const at::Tensor& values, const std::string& field) const = 0;
};

// data_loss where there is no kernel of that name.
std::shared_ptr<const FieldKernel> read_field_kernel(AttributeReader& attributes);

// The position in flatten order of a field; invalid_argument with the element's structure where the
// path does not lead to one. `op` is for messages.
std::size_t field_index(const FieldPath& path, const ElementSpec& element, std::string_view op);

// invalid_argument for a field of numbers.
void check_is_string(const TensorSpec& input, std::string_view op, const std::string& field);
StringTensor strings_in(const at::Tensor& values, std::string_view op, const std::string& field);

// A text for messages: in quotes, shortened.
std::string quoted(std::string_view text);

}  // namespace cohort::data
