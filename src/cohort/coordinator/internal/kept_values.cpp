// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/internal/kept_values.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/clone.h>
#include <c10/core/Allocator.h>

#include <cstring>

#include "cohort/core/string_tensor.h"

namespace cohort::coordinator::internal {
namespace {

// Whether nobody else can write there: the caller has handed over the tensor and its memory, which
// LibTorch has made. `handles` are ours.
bool is_sole_owner(const at::Tensor& tensor, std::size_t handles) {
  return tensor.use_count() == handles && tensor.storage().use_count() == 1 &&
         tensor.storage().data_ptr().get_deleter() == c10::GetAllocator(c10::kCPU)->raw_deleter();
}

bool is_kept(const at::Tensor& tensor, std::size_t handles) {
  return StringTensor::is(tensor) || is_sole_owner(tensor, handles);
}

bool is_free(const at::Tensor& copy) {
  return copy.use_count() == 1 && copy.storage().use_count() == 1;
}

bool fits(const at::Tensor& copy, const at::Tensor& tensor) {
  return copy.scalar_type() == tensor.scalar_type() && copy.sizes() == tensor.sizes();
}

}  // namespace

void keep_large(std::vector<at::Tensor>& arguments, std::size_t handles) {
  for (at::Tensor& tensor : arguments) {
    if (tensor.nbytes() <= kSmallBytesMax || is_kept(tensor, handles)) continue;
    tensor = tensor.detach().clone();
  }
}

void keep_small(std::vector<at::Tensor>& inputs, std::size_t count, std::size_t handles,
                std::vector<at::Tensor>& copies) {
  copies.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    at::Tensor& tensor = inputs[i];
    if (tensor.nbytes() > kSmallBytesMax || is_kept(tensor, handles)) continue;
    if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg()) {
      tensor = tensor.detach().clone();
      continue;
    }
    at::Tensor& copy = copies[i];
    // Without the dispatcher, which takes longer than the copy.
    if (!copy.defined() || !is_free(copy) || !fits(copy, tensor))
      copy = at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type());
    if (tensor.nbytes() > 0) std::memcpy(copy.data_ptr(), tensor.data_ptr(), tensor.nbytes());
    tensor = copy;
  }
}

}  // namespace cohort::coordinator::internal
