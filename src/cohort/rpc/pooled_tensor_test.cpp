// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/pooled_tensor.h"

#include <ATen/core/TensorBody.h>
#include <gtest/gtest.h>

#include "cohort/rpc/frames/block_pool.h"

namespace cohort::rpc {
namespace {

TEST(PooledTensor, GetsTheMemoryOfAnAnswerThatWasSent) {
  const internal::BlockUser user;
  at::Tensor first = pooled_tensor({1000, 64}, at::kFloat);
  const void* const memory = first.data_ptr();
  const at::Tensor other = pooled_tensor({1000, 64}, at::kFloat);
  EXPECT_NE(other.data_ptr(), memory);
  at::Tensor view = first.narrow(0, 10, 5);
  first = at::Tensor();
  EXPECT_NE(pooled_tensor({1000, 64}, at::kFloat).data_ptr(), memory);  // the view still has it
  view = at::Tensor();
  EXPECT_EQ(pooled_tensor({1000, 64}, at::kFloat).data_ptr(), memory);
}

TEST(PooledTensor, HasTheSpecAlsoWithoutElements) {
  for (const std::int64_t rows : {0, 1, 5000}) {
    const at::Tensor tensor = pooled_tensor({rows, 16}, at::kDouble);
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef({rows, 16}));
    EXPECT_EQ(tensor.scalar_type(), at::kDouble);
    EXPECT_TRUE(tensor.is_contiguous());
  }
}

}  // namespace
}  // namespace cohort::rpc
