// SPDX-License-Identifier: Apache-2.0
// Gradients in .grad, which an eager function finds again at its next call.
#include <ATen/ops/embedding.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "cohort/function/program/wire.h"
#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TraceGradients : public TraceCase {};

TEST_F(TraceGradients, ThatAreNeverZeroedAreRefused) {
  at::Tensor w = parameter("layer.w", {3});
  EXPECT_THAT(refusal([&](at::Tensor x) {
                (x * w).sum().backward();
                return w.grad() * 2;
              }),
              AllOf(HasSubstr("'layer.w'"), HasSubstr("an earlier call"),
                    HasSubstr("zero_grad() before backward()"), HasSubstr("minimize(loss)")));
  EXPECT_FALSE(w.grad().defined());
}

// Some kernels compute differently when gradients are off, and backward() runs with them off.
TEST_F(TraceGradients, AreOffForTheOperatorsThatRanSo) {
  at::Tensor w = parameter("w", {3});
  const Traced made = traced({normal({2, 3}, 0)}, {normal({2, 3}, 1)}, [&](const Tensors& in) {
    const at::Tensor loss = (in[0] * w).sum();
    const std::vector<at::Tensor> gradients = torch::autograd::grad({loss}, {w});
    const at::NoGradGuard off;
    return Tensors{loss.detach(), w.sub(gradients[0])};
  });
  std::map<std::string, bool> are_off;  // for the first operator of each name
  for (const Op& op : decode_program(made.bytes).ops)
    are_off.try_emplace(op.name, (op.flags & Op::without_gradients) != 0);
  EXPECT_FALSE(are_off.at("aten::mul"));
  EXPECT_TRUE(are_off.at("aten::sub"));
}

TEST_F(TraceGradients, ThatAreReadBeforeTheyAreMadeAreRefused) {
  at::Tensor w = parameter("w", {3});
  EXPECT_THAT(refusal([&](at::Tensor x) {
                const at::Tensor momentum = w.grad().defined() ? w.grad() * 0.9 : at::ones({3});
                w.mutable_grad() = at::Tensor();
                (x * w).sum().backward();
                return momentum;
              }),
              HasSubstr("an earlier call"));
}

TEST_F(TraceGradients, ThatAreZeroedInAnyWayAreTraced) {
  at::Tensor w = parameter("w", {3});
  const std::function<void()> ways[] = {[&] { w.mutable_grad() = at::Tensor(); },
                                        [&] {
                                          if (w.grad().defined())
                                            w.mutable_grad() = w.grad().detach().zero_();
                                        },
                                        [&] {
                                          if (w.grad().defined())
                                            w.mutable_grad().detach_().zero_();
                                        },
                                        [&] {
                                          if (w.grad().defined()) w.mutable_grad().fill_(0);
                                        }};
  for (const auto& zero_grad : ways) {
    w.mutable_grad() = at::ones({3});
    const auto body = [&](const Tensors& in) {
      zero_grad();
      (in[0] * w).sum().backward();
      return Tensors{w.grad() * 2};
    };
    Traced result = traced({normal({4, 3}, 0)}, {normal({4, 3}, 1)}, body);
    EXPECT_TRUE(bits_equal(w.grad(), at::ones({3})));
    EXPECT_TRUE(bits_equal(replay(result, {normal({4, 3}, 2)})[0], body({normal({4, 3}, 2)})[0]));
  }
}

TEST_F(TraceGradients, ThatAreZeroedInPlaceAtTheEndAreTraced) {
  at::Tensor w = parameter("w", {3});
  expect_equal_to_eager({4, 3}, [&](at::Tensor x) {
    (x * w).sum().backward();
    at::Tensor gradient = w.grad().clone();
    w.mutable_grad().zero_();
    return gradient;
  });
  // Zero for these values only.
  EXPECT_THAT(refusal([&](at::Tensor x) {
                (x * w * 0).sum().backward();
                return w.grad().clone();
              }),
              HasSubstr("an earlier call"));
}

TEST_F(TraceGradients, ThatAreZeroedAtTheEndAreTraced) {
  at::Tensor w = parameter("w", {3});
  expect_equal_to_eager({4, 3}, [&](at::Tensor x) {
    (x * w).sum().backward();
    (x * w).sin().sum().backward();
    at::Tensor gradient = w.grad().clone();
    w.mutable_grad() = at::Tensor();
    return gradient;
  });
}

// From its second call on, an eager function updates, with zeros, a variable that its first call
// did not update.
TEST_F(TraceGradients, ThatAreZeroedButChangeWhatIsUpdatedAreRefused) {
  at::Tensor a = parameter("a", {3}), b = parameter("b", {3});
  const at::Tensor rate = at::full({}, 0.5);
  const auto trained = [&](bool is_zeroed_first, const std::function<void()>& zero_grad) {
    return refusal([&](at::Tensor x) {
      if (is_zeroed_first) zero_grad();
      (x * a).sum().backward();
      for (const at::Tensor& variable : {a, b}) {
        Trace::current()->capture_input(rate);
        if (variable.grad().defined())
          Trace::current()->update(
              variable, internal::apply_effect({"momentum", "momentum_1"}, {}, variable.grad()),
              std::span(&rate, 1));
      }
      (x * b).sum().backward();
      if (!is_zeroed_first) zero_grad();
      return x.sum();
    });
  };
  const auto zero = [&] {
    for (const at::Tensor& variable : {a, b}) {
      if (variable.grad().defined()) variable.mutable_grad().zero_();
    }
  };
  const auto drop = [&] { a.mutable_grad() = b.mutable_grad() = at::Tensor(); };
  for (const bool is_zeroed_first : {true, false}) {
    EXPECT_THAT(
        trained(is_zeroed_first, zero),
        AllOf(
            HasSubstr("something else after its first call"),
            HasSubstr("is none in the first call, and cohort::apply \"momentum\" \"momentum_1\" of "
                      "variable 'b' in the next"),
            HasSubstr("zero_grad(true)")));
    EXPECT_EQ(trained(is_zeroed_first, drop), "no error");
  }
}

TEST_F(TraceGradients, ThatAreZeroedButChangeWhatIsReturnedAreRefused) {
  at::Tensor w = parameter("w", {3});
  EXPECT_THAT(refusal([&](at::Tensor x) {
                const bool is_first = !w.grad().defined();
                if (!is_first) w.mutable_grad().zero_();
                (x * w).sum().backward();
                return is_first ? x.sum() : x.sum().neg();
              }),
              HasSubstr("it returns other values"));
}

TEST_F(TraceGradients, SparseOnesAreRefusedToo) {
  at::Tensor table = parameter("table", {5, 3});
  const auto trained = [&](bool is_zeroed) {
    return refusal([&](at::Tensor x) {
      if (is_zeroed) table.mutable_grad() = at::Tensor();
      const at::Tensor ids = at::tensor({1, 3, 1}, at::kLong);
      (at::embedding(table, ids, -1, false, true) * x.sum()).sum().backward();
      return table.grad().to_dense();
    });
  };
  EXPECT_THAT(trained(false), HasSubstr("an earlier call"));
  EXPECT_EQ(trained(true), "no error");
}

// The body runs once more only if it leaves gradients.
TEST_F(TraceGradients, CostAThirdPassOnlyWhereTheyAreLeft) {
  at::Tensor w = parameter("w", {3});
  int calls = 0;
  const auto train = [&](bool is_left) {
    calls = 0;
    EXPECT_EQ(refusal([&](at::Tensor x) {
                ++calls;
                w.mutable_grad() = at::Tensor();
                (x * w).sum().backward();
                at::Tensor gradient = w.grad() * 2;
                if (!is_left) w.mutable_grad() = at::Tensor();
                return gradient;
              }),
              "no error");
    return calls;
  };
  EXPECT_EQ(train(false), 2);
  EXPECT_EQ(train(true), 3);
}

}  // namespace
}  // namespace cohort::function
