// SPDX-License-Identifier: Apache-2.0
// A tensor that a trace read although it is neither an argument nor a variable of the function. The
// program has its values as a constant; is_current() tells whether the tensor still has them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cohort/core/export.h"

namespace cohort::function {

// Holds its tensor weakly. Thread-compatible.
class COHORT_API FrozenTensor {
 public:
  explicit FrozenTensor(const at::Tensor& tensor);

  // Whether the tensor exists, or its memory where the tensor was a temporary one (data()).
  bool is_alive() const;
  // Whether the tensor has the same memory, shape, version (LibTorch's count of writes) and bytes.
  // Reads all bytes, 64 KiB in about 3 us.
  bool is_current() const;
  // Whether both have the same values of the same tensor.
  bool operator==(const FrozenTensor& other) const = default;
  // The address of the tensor, which may be gone.
  const void* address() const { return tensor_._unsafe_get_target(); }

 private:
  at::Tensor tensor() const;
  std::uint64_t hash(const c10::StorageImpl& storage) const;
  bool has_same_place(const at::Tensor& tensor, const c10::StorageImpl* storage) const;

  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  c10::ScalarType dtype_;
  std::vector<std::int64_t> sizes_, strides_;
  std::int64_t offset_ = 0;
  std::size_t begin_ = 0;  // of its bytes in the storage
  std::size_t end_ = 0;
  std::uint32_t version_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace cohort::function
