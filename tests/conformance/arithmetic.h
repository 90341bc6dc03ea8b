// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the named functions on tensors of any dtype, and on nests of tensors leaf by leaf.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "cohort/core/nest.h"
#include "cohort/data/element.h"
#include "tests/conformance/json.h"

namespace cohort::conformance {

// Throws invalid_argument: function `name` does not accept such a value.
[[noreturn]] void refuse(const std::string& name, const std::string& got);

// The result keeps dtype and shape; a scalar that the dtype cannot represent is refused.
at::Tensor plus(const at::Tensor& x, const Json& k);
at::Tensor times(const at::Tensor& x, const Json& k);
at::Tensor product(const at::Tensor& x, const at::Tensor& y);
at::Tensor sum_of(const at::Tensor& x, const at::Tensor& y);
// Whether x has an element equal to k; never true for NaN.
bool has_value(const at::Tensor& x, const Json& k);
// The integer in a tensor of one value.
std::int64_t integer_of(const at::Tensor& x, const std::string& name);

// Throws the error that plus() and times() would throw for such leaves.
void check_scalar(at::ScalarType dtype, const Json& k, const std::string& name);
void check_numbers(at::ScalarType dtype, const std::string& name);

Nest each_tensor(const Nest& element, const std::function<at::Tensor(const at::Tensor&)>& fn);
// The first leaf of an element.
const at::Tensor& first_tensor(const Nest& element, const std::string& name);

}  // namespace cohort::conformance
