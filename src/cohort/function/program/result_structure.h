// SPDX-License-Identifier: Apache-2.0
// The structure of what a traced function returns, without its tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"

namespace cohort::function {

// A value type. Const methods may be called from several threads at once.
class COHORT_API ResultStructure {
 public:
  ResultStructure() = default;
  // Appends the tensors of `result` to `tensors`, in flatten order.
  ResultStructure(const Nest& result, std::vector<at::Tensor>& tensors);

  std::size_t tensor_count() const { return tensor_count_; }
  // The structure with these tensors, of which there must be tensor_count().
  Nest filled(const std::vector<at::Tensor>& tensors) const;
  // Throws invalid_argument unless `actual` has the same structure and the same host values.
  // `name`: of the function; `when`: which trace returned `actual`.
  void check_same(const ResultStructure& actual, const std::string& name,
                  const std::string& when) const;

 private:
  Nest structure_;  // a tensor is its number, as an integer inside a map {"": i}
  std::size_t tensor_count_ = 0;
};

}  // namespace cohort::function
