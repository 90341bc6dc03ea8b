// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/internal/kept_values.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <utility>

namespace cohort::coordinator::internal {
namespace {

// What a closure of one argument, which its caller goes on holding, computes with.
struct Scheduled {
  Scheduled(const at::Tensor& argument, std::vector<at::Tensor> spares)
      : inputs{argument}, copies(std::move(spares)) {
    keep_large(inputs, 1);
    keep_small(inputs, 1, 1, copies);
  }
  const at::Tensor& input() const { return inputs[0]; }
  // Its copies, after its end.
  std::vector<at::Tensor> end() {
    inputs.clear();
    return std::move(copies);
  }

  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> copies;
};

TEST(KeptValues, StayWhenTheOwnerWrites) {
  for (const std::int64_t size : {0, 3, 100'000}) {
    const at::Tensor argument = at::ones({size});
    const at::Tensor row = at::arange(12).view({3, 4}).t();
    const at::Tensor conjugate = at::complex(at::ones({2}), at::ones({2})).conj();
    for (const at::Tensor& tensor : {argument, row, conjugate}) {
      const at::Tensor before = tensor.clone();
      const Scheduled closure(tensor, {});
      const at::Tensor view = tensor.is_conj() ? tensor.conj() : tensor;
      view.mul_(0).add_(7);
      EXPECT_TRUE(at::equal(closure.input(), before));
      EXPECT_FALSE(closure.input().requires_grad());
    }
  }
}

TEST(KeptValues, OfATensorThatRequiresGradientsDoNot) {
  const at::Tensor argument = at::ones({3}).requires_grad_();
  const Scheduled closure(argument, {});
  EXPECT_FALSE(closure.input().requires_grad());
  EXPECT_TRUE(at::equal(closure.input(), argument));
}

TEST(KeptValues, TakeTheMemoryOfAClosureThatHasEnded) {
  const at::Tensor argument = at::ones({3});
  Scheduled first(argument, {});
  const void* memory = first.input().data_ptr();
  argument.fill_(2);
  Scheduled second(argument, first.end());
  EXPECT_EQ(second.input().data_ptr(), memory);
  EXPECT_TRUE(at::equal(second.input(), at::full({3}, 2)));
}

TEST(KeptValues, LeaveMemoryThatIsInUseAlone) {
  const at::Tensor argument = at::ones({3});
  Scheduled first(argument, {});
  const at::Tensor held = first.input();  // as by a message that is being sent
  Scheduled second(argument, first.end());
  EXPECT_NE(second.input().data_ptr(), held.data_ptr());
  const at::Tensor view = second.input().view({3});  // its memory alone
  argument.fill_(2);
  const Scheduled third(argument, second.end());
  EXPECT_NE(third.input().data_ptr(), view.data_ptr());
  EXPECT_TRUE(at::equal(held, at::ones({3})));
  EXPECT_TRUE(at::equal(view, at::ones({3})));
}

TEST(KeptValues, TakeMemoryOfTheirShapeAndDtypeOnly) {
  const at::Tensor argument = at::ones({4});
  for (const at::Tensor& other : {at::full({2, 2}, 5.0), at::full({4}, 5, at::kInt)}) {
    Scheduled first(argument, {});
    const Scheduled second(other, first.end());
    EXPECT_TRUE(at::equal(second.input(), other));
    EXPECT_EQ(second.input().scalar_type(), other.scalar_type());
  }
}

TEST(KeptValues, AreNotCopiedWhereNobodyElseCanWrite) {
  for (const std::int64_t size : {3, 100'000}) {
    std::vector<at::Tensor> inputs{at::ones({size})};
    const void* memory = inputs[0].data_ptr();
    std::vector<at::Tensor> copies;
    keep_large(inputs, 1);
    keep_small(inputs, 1, 1, copies);
    EXPECT_EQ(inputs[0].data_ptr(), memory);
    EXPECT_FALSE(copies[0].defined());
  }
}

}  // namespace
}  // namespace cohort::coordinator::internal
