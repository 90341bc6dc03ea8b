// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/functions/kept_arguments.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace cohort::coordinator::internal {
namespace {

// A closure whose caller keeps its arguments.
struct Scheduled {
  explicit Scheduled(const std::vector<at::Tensor>& arguments) : examples(arguments) {
    std::vector<at::Tensor> bound = arguments;
    kept.keep(bound, 1);
  }
  // Its only argument, in a new tensor.
  at::Tensor restored() const {
    ArgumentTensors tensors(examples);
    return kept.restored(tensors).at(0);
  }

  std::vector<at::Tensor> examples;
  KeptArguments kept;
};

TEST(KeptArguments, StayWhenTheOwnerWrites) {
  for (const std::int64_t size : {0, 3, 100'000}) {
    const at::Tensor argument = at::ones({size});
    const at::Tensor row = at::arange(12).view({3, 4}).t();
    const at::Tensor conjugate = at::complex(at::ones({2}), at::ones({2})).conj();
    for (const at::Tensor& tensor : {argument, row, conjugate}) {
      const at::Tensor before = tensor.clone();
      const Scheduled closure({tensor});
      const at::Tensor view = tensor.is_conj() ? tensor.conj() : tensor;
      view.mul_(0).add_(7);
      EXPECT_TRUE(at::equal(closure.restored(), before));
      EXPECT_FALSE(closure.restored().requires_grad());
    }
  }
}

TEST(KeptArguments, OfATensorThatRequiresGradientsDoNot) {
  const at::Tensor argument = at::ones({3}).requires_grad_();
  const Scheduled closure({argument});
  EXPECT_FALSE(closure.restored().requires_grad());
  EXPECT_TRUE(at::equal(closure.restored(), argument));
}

TEST(KeptArguments, OfSeveralArgumentsComeBackInTheirPlaces) {
  const at::Tensor large = at::ones({100'000});
  const std::vector<at::Tensor> arguments{
      at::ones({3}),   large,          at::arange(5), at::zeros({0}),
      at::arange(100), at::arange(100)};  // more bytes than a closure keeps of small ones
  const Scheduled closure(arguments);
  ArgumentTensors tensors(closure.examples);
  const std::vector<at::Tensor> restored = closure.kept.restored(tensors);
  ASSERT_EQ(restored.size(), arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    EXPECT_TRUE(at::equal(restored[i], arguments[i])) << i;
    if (arguments[i].numel() == 0) continue;
    EXPECT_NE(restored[i].data_ptr(), arguments[i].data_ptr()) << i;
  }
}

// A retry on another worker needs the arguments again.
TEST(KeptArguments, ComeBackAsOftenAsAskedFor) {
  const Scheduled closure({at::full({3}, 2)});
  ArgumentTensors tensors(closure.examples);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor restored = closure.kept.restored(tensors).at(0);
    EXPECT_TRUE(at::equal(restored, at::full({3}, 2)));
    restored.fill_(9);
  }
}

TEST(KeptArguments, TakeTheTensorsThatNobodyHoldsAnyLonger) {
  const Scheduled one({at::full({3}, 1)});
  const Scheduled two({at::full({3}, 2)});
  ArgumentTensors tensors(one.examples);
  at::Tensor first = one.kept.restored(tensors).at(0);
  const void* memory = first.data_ptr();
  const at::Tensor second = two.kept.restored(tensors).at(0);  // while a message holds the first
  EXPECT_NE(second.data_ptr(), memory);
  EXPECT_TRUE(at::equal(first, at::full({3}, 1)));
  first.reset();
  const at::Tensor third = two.kept.restored(tensors).at(0);
  EXPECT_EQ(third.data_ptr(), memory);
  EXPECT_TRUE(at::equal(third, at::full({3}, 2)));
}

TEST(KeptArguments, LeaveATensorAloneWhoseMemoryIsHeld) {
  const Scheduled one({at::full({3}, 1)});
  const Scheduled two({at::full({3}, 2)});
  ArgumentTensors tensors(one.examples);
  const at::Tensor view = one.kept.restored(tensors).at(0).view({3});
  EXPECT_NE(two.kept.restored(tensors).at(0).data_ptr(), view.data_ptr());
  EXPECT_TRUE(at::equal(view, at::full({3}, 1)));
}

TEST(KeptArguments, OfManyMessagesAtATimeAreAllDifferent) {
  const at::Tensor argument = at::zeros({3}, at::kLong);
  ArgumentTensors tensors({argument});
  std::vector<at::Tensor> held;
  for (int i = 0; i < 1000; ++i) {
    argument.fill_(i);
    held.push_back(Scheduled({argument}).kept.restored(tensors).at(0));
  }
  held.front().reset();  // after more than are kept: the ring starts again
  for (int i = 1000; i < 2000; ++i) {
    argument.fill_(i);
    held.push_back(Scheduled({argument}).kept.restored(tensors).at(0));
  }
  for (int i = 1; i < 2000; ++i)
    EXPECT_TRUE(at::equal(held[static_cast<std::size_t>(i)], at::full({3}, i))) << i;
}

TEST(KeptArguments, AreNotCopiedWhereNobodyElseCanWrite) {
  for (const std::int64_t size : {3, 100'000}) {
    std::vector<at::Tensor> arguments{at::ones({size})};
    ArgumentTensors tensors(arguments);
    const void* memory = arguments[0].data_ptr();
    KeptArguments kept;
    kept.keep(arguments, 1);
    EXPECT_EQ(kept.restored(tensors).at(0).data_ptr(), memory);
  }
}

}  // namespace
}  // namespace cohort::coordinator::internal
