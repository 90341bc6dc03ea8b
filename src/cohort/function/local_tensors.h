// SPDX-License-Identifier: Apache-2.0
// The names of variables that live in this process alone, for messages about steps that use one.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "cohort/core/export.h"

namespace cohort::function {

// While the object lives, the tensor's memory is known by that name. `tensor` must live as long.
class COHORT_API LocalTensorName {
 public:
  LocalTensorName(const at::Tensor& tensor, std::string name);
  ~LocalTensorName();
  LocalTensorName(const LocalTensorName&) = delete;
  LocalTensorName& operator=(const LocalTensorName&) = delete;

 private:
  const void* const storage_;
};

// Empty: the memory is no such variable's. Thread-safe.
COHORT_API std::string local_name_of(const at::Tensor& tensor);

}  // namespace cohort::function
