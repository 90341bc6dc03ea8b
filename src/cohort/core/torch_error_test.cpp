// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/torch_error.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <functional>

#include "cohort/core/error.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kRemedy =
    "; this process has no CUDA device: leave out .cuda() and torch::kCUDA";

// The text of what the function throws, and that of current_error() for it.
std::string text_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    EXPECT_EQ(current_error().message(), text_of_torch_error(error));
    return text_of_torch_error(error);
  }
  return "no error";
}

TEST(TorchError, IsTheMessageAlone) {
  EXPECT_EQ(text_of([] { TORCH_CHECK(false, "expected 2, got ", 3); }), "expected 2, got 3");
  // LibTorch 2 adds what it got.
  EXPECT_THAT(text_of([] { at::ones({2}).mm(at::ones({2})); }),
              AllOf(HasSubstr("self must be a matrix"), Not(HasSubstr("\n")),
                    Not(HasSubstr("Exception raised from"))));
}

// It had a line for each of about 50 kernels that the operator has, and no remedy.
TEST(TorchError, DoesNotListTheKernelsOfAnOperator) {
  if (has_device(c10::DeviceType::CUDA)) GTEST_SKIP() << "this host has a GPU";
  EXPECT_THAT(text_of([] { at::ones({2}, at::kCUDA); }),
              AllOf(StartsWith("Could not run 'aten::empty"), HasSubstr("the 'CUDA' backend; this"),
                    EndsWith(kRemedy), Not(HasSubstr("\n"))));
  EXPECT_THAT(text_of([] { at::ones({2}).to(at::kCUDA); }),
              AllOf(HasSubstr("cuda"), EndsWith(kRemedy), Not(HasSubstr("\n"))));
}

TEST(TorchError, AValueThatWasOverwrittenHasOneCodeAndTheRemedy) {
  constexpr const char* kText =
      "one of the variables needed for gradient computation has been modified by an inplace "
      "operation: [torch.FloatTensor [3]] is at version 2";
  try {
    TORCH_CHECK(false, kText);
  } catch (...) {
    const Error error = current_error();
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.message(), AllOf(StartsWith(kText), HasSubstr("compute_gradients()"),
                                       HasSubstr("write into a clone()")));
  }
}

// The exit code was 70, as for a fault of the program.
TEST(TorchError, ALackOfMemoryIsOneOfResources) {
  try {
    at::ones({std::int64_t{1} << 50});
    FAIL() << "there is no such memory";
  } catch (...) {
    const Error error = current_error();
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.what();
    EXPECT_EQ(exit_code_of(error), 75);
  }
}

TEST(TorchError, AHostHasTheCpuAndMetaTensors) {
  EXPECT_TRUE(has_device(c10::DeviceType::CPU));
  EXPECT_TRUE(has_device(c10::DeviceType::Meta));
  EXPECT_FALSE(has_device(c10::DeviceType::HIP));
}

}  // namespace
}  // namespace cohort
