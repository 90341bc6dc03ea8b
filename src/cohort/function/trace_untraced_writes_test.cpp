// SPDX-License-Identifier: Apache-2.0
// Writes without an operator: those into fresh tensors become constants, others are refused.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <thread>

#include "cohort/function/tracer/cases_for_tests.h"
#include "cohort/function/tracer/content_hash.h"

namespace cohort::function {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kLost = "the write would be lost";

class TraceUntracedWrites : public TraceCase {};

// Writes the last element, because a large memory must be checked to its end.
void write_last(const at::Tensor& tensor, float value = 42) {
  tensor.data_ptr<float>()[tensor.numel() - 1] = value;
}

TEST_F(TraceUntracedWrites, IntoResultsAreRefused) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::Tensor y = at::ones({3, 3}).tril();
                y.accessor<float, 2>()[0][2] = 5;
                return x.matmul(y);
              }),
              AllOf(HasSubstr("which aten::tril made"), HasSubstr(kLost), HasSubstr("'aten::mm'"),
                    HasSubstr("fresh from torch::empty")));
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::Tensor y = x.clone();
                write_last(y);
                return y * 2;
              }),
              AllOf(HasSubstr("which aten::clone made"), HasSubstr(kLost)));
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::Tensor y = x.to(at::kDouble);
                y.data_ptr<double>()[0] = 1;
                return y;
              }),
              AllOf(HasSubstr("which aten::_to_copy made"), HasSubstr("returned value 0")));
}

TEST_F(TraceUntracedWrites, ThroughViewsAndIntoLargeMemoryAreRefused) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::Tensor y = at::zeros({200, 100}).add(x.sum());
                write_last(y);
                return y.select(0, 199).sum();
              }),
              AllOf(HasSubstr("which aten::add made"), HasSubstr(kLost)));
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::Tensor y = x * 2, part = y.slice(0, 1, 3);
                part.data_ptr<float>()[0] = 3;
                return y + 1;
              }),
              AllOf(HasSubstr("which aten::mul made"), HasSubstr(kLost)));
}

TEST_F(TraceUntracedWrites, IntoFreshTensorsThatAnOpHasWrittenAreRefused) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::Tensor y = at::empty({3});
                y.zero_();
                write_last(y);
                return x + y;
              }),
              HasSubstr(kLost));
}

TEST_F(TraceUntracedWrites, IntoFreshTensorsAreConstants) {
  expect_equal_to_eager({4, 3}, [](at::Tensor x) {
    at::Tensor y = at::zeros({3}), z = at::empty({3}), late = at::empty({2});
    y.accessor<float, 1>()[1] = 7;
    for (int i = 0; i < 3; ++i) z.data_ptr<float>()[i] = static_cast<float>(i);
    at::Tensor sum = x + y * z + at::tensor({1.0F, 2.0F, 3.0F});
    late.data_ptr<float>()[0] = late.data_ptr<float>()[1] = 3;
    late.zero_();
    write_last(y, 9);
    return sum + y + late.sum();
  });
}

TEST_F(TraceUntracedWrites, ReplacedContentIsNoMatter) {
  expect_equal_to_eager({4, 3}, [](at::Tensor x) {
    at::Tensor y = x * 2;
    write_last(y);
    y.copy_(x);
    return y;
  });
}

TEST_F(TraceUntracedWrites, IntoArgumentsElementsAndConstantsAreRefused) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::Tensor y = x * 2;
                write_last(x);
                return y;
              }),
              AllOf(HasSubstr("an argument of the function"), HasSubstr(kLost),
                    HasSubstr("the end of the function")));
  options_.draw = [](std::int64_t, int draw, int pass) {
    return Tensors{normal({3, 2}, 10 * static_cast<std::uint64_t>(draw + pass))};
  };
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::Tensor element = Trace::current()->iterator_next(0)[0];
                write_last(element);
                return x + element.sum();
              }),
              AllOf(HasSubstr("an element"), HasSubstr(kLost)));
  at::Tensor buffer = at::ones({3});
  EXPECT_THAT(refusal([&](at::Tensor x) {
                at::Tensor y = x + buffer;
                write_last(buffer, buffer.data_ptr<float>()[2] + 1);
                return y + buffer;
              }),
              AllOf(HasSubstr("made outside the function"), HasSubstr(kLost)));
}

TEST_F(TraceUntracedWrites, IntoVariablesAreRefused) {
  for (const bool is_remote : {true, false}) {
    at::Tensor w = parameter(is_remote ? "w" : "v", {3}, is_remote);
    EXPECT_THAT(refusal([&](at::Tensor x) {
                  at::Tensor y = x * w;
                  write_last(w);
                  return y;
                }),
                AllOf(HasSubstr("a variable"), HasSubstr(kLost)));
  }
}

// Variables were not checked before the first op that uses them, so the write was lost.
TEST_F(TraceUntracedWrites, IntoVariablesThatNoOpHasReadAreRefused) {
  at::Tensor w = parameter("w", {3}), buffer = variable("buffer", at::ones({3}));
  for (const at::Tensor& tensor : {w, buffer}) {
    const float before = tensor.data_ptr<float>()[2];
    for (const bool is_read_later : {true, false}) {
      EXPECT_THAT(refusal([&](at::Tensor x) {
                    write_last(tensor, before + 1);
                    return is_read_later ? x * tensor.detach() : x * 2;
                  }),
                  AllOf(HasSubstr("a variable"), HasSubstr(kLost)));
      write_last(tensor, before);
    }
  }
}

// The new memory was lost, and the variable was another tensor afterwards.
TEST_F(TraceUntracedWrites, OtherMemoryOfAVariableIsRefusedAndTakenBack) {
  at::Tensor w = parameter("w", {3}), buffer = variable("buffer", at::ones({3})),
             other = variable("other", at::zeros({3}));
  const Tensors before{w.detach(), buffer.detach(), other.detach()};
  const auto expect_refused = [&](const std::function<at::Tensor(at::Tensor)>& body) {
    EXPECT_THAT(refusal(body),
                AllOf(HasSubstr("got other memory or another shape"), HasSubstr("assign")));
    EXPECT_TRUE(w.is_alias_of(before[0]) && buffer.is_alias_of(before[1]) &&
                other.is_alias_of(before[2]));
    EXPECT_EQ(buffer.sizes(), before[1].sizes());
  };
  for (at::Tensor& tensor : {std::ref(w), std::ref(buffer)}) {
    expect_refused([&](at::Tensor x) {
      tensor.set_data(x.detach().mul(3));
      return tensor * 2;
    });
    expect_refused([&](at::Tensor x) {
      tensor.set_data(at::zeros({3}));
      return x * 2;
    });
  }
  expect_refused([&](at::Tensor x) {
    buffer.unsqueeze_(0);
    return x * buffer;
  });
  expect_refused([&](at::Tensor x) {
    at::Tensor swapped = buffer.data();
    buffer.set_data(other.data());
    other.set_data(swapped);
    return x * buffer;
  });
}

TEST_F(TraceUntracedWrites, OfOtherThreadsAreRefused) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::Tensor y = x * 2;
                std::thread([&] { y.add_(1); }).join();
                return y * 3;
              }),
              AllOf(HasSubstr("which aten::mul made"), HasSubstr(kLost)));
  // The write changes nothing here, but it would change negative values.
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::Tensor y = x.abs();
                std::thread([&] { y.clamp_min_(0); }).join();
                return y * 3;
              }),
              AllOf(HasSubstr("which aten::abs made"), HasSubstr(kLost)));
}

TEST_F(TraceUntracedWrites, RecordedWritesInPlaceAreNone) {
  expect_equal_to_eager({4, 3}, [](at::Tensor x) {
    at::Tensor y = x * 2, column = y.select(1, 1);
    column.add_(1);
    y.mul_(y);
    y.slice(0, 0, 2).copy_(x.slice(0, 2, 4));
    column.zero_();
    at::Tensor part = y.t().slice(0, 1, 3);
    return part.add_(y.sum());
  });
}

TEST(ContentHash, TellsApartWhatStructureCouldCancel) {
  std::array<double, 64> numbers;
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i) + 0.5;
  const auto hash = [&] { return hash_of(std::as_bytes(std::span(numbers))); };
  const std::uint64_t before = hash();
  for (double& one : numbers) one = -one;
  EXPECT_NE(hash(), before) << "all signs";
  for (double& one : numbers) one = -one;
  EXPECT_EQ(hash(), before);
  std::swap(numbers[0], numbers[4]);
  EXPECT_NE(hash(), before) << "two words of one lane";
  std::swap(numbers[0], numbers[4]);
  std::swap(numbers[0], numbers[1]);
  EXPECT_NE(hash(), before) << "two lanes";
}

TEST(ContentHash, LooksAtTheRangeAlone) {
  std::vector<std::byte> memory(100'000);
  ContentHash hash;
  hash.note(memory, {0, memory.size()}, Coverage::sample);
  memory[99'999] = std::byte{1};
  EXPECT_TRUE(hash.matches(memory, {0, 50'000}));
  EXPECT_FALSE(hash.matches(memory, {99'998, 99'999}));
  hash.note(memory, {99'000, 99'001}, Coverage::sample);
  EXPECT_TRUE(hash.matches(memory, {0, memory.size()}));
  EXPECT_FALSE(hash.matches(std::span(memory).first(99'999), {0, 1}));
}

}  // namespace
}  // namespace cohort::function
