// SPDX-License-Identifier: Apache-2.0
// The names of variables that exist only in this process, for messages about steps that use one.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "cohort/core/export.h"

namespace cohort::function {

// Registers a name for the tensor's memory while the object exists; `tensor` must outlive it.
class COHORT_API LocalTensorName {
 public:
  LocalTensorName(const at::Tensor& tensor, std::string name);
  ~LocalTensorName();
  LocalTensorName(const LocalTensorName&) = delete;
  LocalTensorName& operator=(const LocalTensorName&) = delete;

 private:
  const void* const storage_;
};

// The name that is registered for the tensor's memory; empty if there is none. Thread-safe.
COHORT_API std::string local_name_of(const at::Tensor& tensor);

}  // namespace cohort::function
