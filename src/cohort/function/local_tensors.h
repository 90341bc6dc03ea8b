// SPDX-License-Identifier: Apache-2.0
// The names of variables that exist only in this process: for messages about steps that use one,
// and to find out whether a tensor belongs to a variable already.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "cohort/core/export.h"

namespace cohort::function {

// Registers a name for the tensor and its memory while the object exists; `tensor` must outlive it.
class COHORT_API LocalTensorName {
 public:
  LocalTensorName(const at::Tensor& tensor, std::string name);
  ~LocalTensorName();
  LocalTensorName(const LocalTensorName&) = delete;
  LocalTensorName& operator=(const LocalTensorName&) = delete;

 private:
  const c10::TensorImpl* const tensor_;
  const void* const storage_;
};

// The name that is registered for the tensor's memory; empty if there is none. Thread-safe.
COHORT_API std::string local_name_of(const at::Tensor& tensor);

// A name that is registered.
struct LocalOwner {
  std::string name;
  bool is_same_tensor;  // else another one, which has the same memory
};
// The one for this tensor, or for a tensor that has its memory now. Thread-safe.
COHORT_API std::optional<LocalOwner> local_owner_of(const at::Tensor& tensor);

}  // namespace cohort::function
