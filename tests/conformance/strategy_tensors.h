// SPDX-License-Identifier: Apache-2.0 Tensors of strategy cases (FORMAT.md of the strategy cases,
// 3): {"t": dtype, "s": sizes, "v": flat values} and {"slices": {"values", "indices", "shape"}},
// which is a sparse COO tensor here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/json.h"

namespace cohort::conformance::strategy {

// "f32", "i64", "str", … Throws a CaseFault for any other name.
at::ScalarType scalar_type_of(const std::string& name);
std::string short_name_of(at::ScalarType dtype);

bool is_tensor_json(const Json& json);
// A new tensor, except that equal texts may share memory.
at::Tensor read_tensor(const Json& json);
// The JSON of a dense or sparse tensor.
Json write_tensor(const at::Tensor& tensor);

// Rows of the first dimension, in their order, of which several may have the same index.
struct Rows {
  at::Tensor indices;  // [n]
  at::Tensor values;   // [n, …]
};
at::Tensor sparse_rows(const Rows& rows, const std::vector<std::int64_t>& sizes);
Rows rows_of(const at::Tensor& sparse);

// Whether `got` has the dtype and sizes that the JSON says and its values, exactly or, if
// `tolerance` is positive, within tolerance * max(1, |a|, |b|) for floating-point values.
bool is_tensor_equal(const Json& expected, const Json& got, double tolerance);
bool is_number_equal(double a, double b, double tolerance);

}  // namespace cohort::conformance::strategy
