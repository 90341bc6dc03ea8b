// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/pooled_tensor.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

#include "cohort/core/tensor_spec.h"
#include "cohort/rpc/frames/frame_codec.h"

namespace cohort::rpc {

at::Tensor pooled_tensor(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto bytes = static_cast<std::size_t>(TensorSpec{dtype, sizes.vec()}.byte_count());
  if (bytes < internal::kPooledBytesMin) return at::empty(sizes, at::TensorOptions(dtype));
  const internal::BlockRef block = internal::acquire_block(bytes);
  return internal::view_of(block.get(), 0, sizes, dtype);
}

}  // namespace cohort::rpc
