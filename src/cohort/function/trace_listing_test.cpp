// SPDX-License-Identifier: Apache-2.0
// The reports of a trace: the program as text, and gradients that nothing uses.
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>

#include "cohort/function/function.h"
#include "cohort/function/inspection.h"
#include "cohort/function/tracer/cases_for_tests.h"
#include "cohort/function/tracer/trace_notes.h"
#include "cohort/testing/throws_error.h"

namespace cohort::function {
namespace {

using cohort::testing::throws_error;
using ::testing::HasSubstr;
using ::testing::Not;

using Body = std::function<at::Tensor(at::Tensor)>;

class TraceListing : public TraceCase {
 protected:
  Traced traced_of(const Body& body) {
    return traced({normal({4, 3}, 0)}, {normal({4, 3}, 1)},
                  [&](const Tensors& inputs) { return Tensors{body(inputs[0])}; });
  }
  bool drops_gradients(const Body& body) { return traced_of(body).drops_gradients; }

  at::Tensor w = parameter("w", {3});
};

TEST_F(TraceListing, HasALineForEachOperator) {
  options_.lists_ops = true;
  const Traced made = traced_of([&](at::Tensor x) {
    const at::Tensor y = x.mul(w).add(2.5);
    Trace::current()->update(w,
                             internal::write_effect(internal::Effect::Kind::assign_add, y.sum(0)));
    return y;
  });
  EXPECT_EQ(made.listing,
            "%0 = input: float32[4, 3]\n"
            "%1 = variable #0 'w': float32[3]\n"
            "#0 %2 = aten::mul.Tensor(%0, %1): float32[4, 3]\n"
            "#1 %3 = aten::add.Scalar(%2, 2.5, 1): float32[4, 3]\n"
            "#2 %4 = aten::sum.dim_IntList(%3, [0], false, none): float32[3]\n"
            "#3 cohort::assign_add(0, %4)\n"
            "return %3\n");
}

TEST_F(TraceListing, IsMadeOnDemand) {
  EXPECT_EQ(traced_of([](at::Tensor x) { return x; }).listing, "");
}

// backward() alone changes nothing, and there was no warning.
TEST_F(TraceListing, GradientsThatNothingUsesAreNoted) {
  const auto loss = [&](const at::Tensor& x) { return x.mul(w).sum(); };
  EXPECT_TRUE(drops_gradients([&](at::Tensor x) {
    w.mutable_grad() = at::Tensor();
    const at::Tensor l = loss(x);
    l.backward();
    return l;
  }));
  EXPECT_TRUE(drops_gradients([&](at::Tensor x) {
    w.mutable_grad() = at::Tensor();
    const at::Tensor l = loss(x);
    l.backward();
    print(l, "loss");
    const at::Tensor norm = w.grad().norm();
    return l;
  }));
  EXPECT_FALSE(drops_gradients(loss));
}

TEST_F(TraceListing, GradientsThatSomethingUsesAreNotNoted) {
  const auto with = [&](const std::function<at::Tensor(at::Tensor)>& use) {
    return drops_gradients([&](at::Tensor x) {
      w.mutable_grad() = at::Tensor();
      x.mul(w).sum().backward();
      return use(w.grad());
    });
  };
  EXPECT_FALSE(with([](at::Tensor g) { return g.norm().mul(2); })) << "it is returned";
  EXPECT_FALSE(with([](at::Tensor g) {
    print(g, "gradient");
    return at::ones({});
  }));
  EXPECT_FALSE(with([&](at::Tensor g) {
    const at::Tensor rate = at::scalar_tensor(0.1);
    Trace::current()->update(w, internal::write_effect(internal::Effect::Kind::assign_sub, g));
    return at::ones({});
  }));
}

TEST_F(TraceListing, ABufferThatTheBodyWritesIsNoUseOfAGradient) {
  const at::Tensor counter = variable("counter", at::scalar_tensor(0, at::kLong));
  EXPECT_TRUE(drops_gradients([&](at::Tensor x) {
    counter.add_(1);
    w.mutable_grad() = at::Tensor();
    const at::Tensor l = x.mul(w).sum();
    l.backward();
    return l;
  }));
}

TEST(FunctionProgram, IsThereAfterATrace) {
  const Function step([](at::Tensor x) { return x; }, {.name = "step"});
  EXPECT_THAT([&] { step.program(); },
              throws_error(ErrorCode::failed_precondition, "'step' to be traced, got no trace"));
  step.state()->notes->add("return %0\n");
  EXPECT_EQ(step.program(), "program 1 of 1:\nreturn %0\n");
  EXPECT_THAT([] { Function::registered("eval").program(); },
              throws_error(ErrorCode::failed_precondition, "'eval' is registered"));
}

TEST(FunctionProgram, KeepsTheNewestOnes) {
  TraceNotes notes;
  for (int i = 1; i <= 40; ++i) notes.add("return " + std::to_string(i) + "\n");
  EXPECT_THAT(notes.programs(), HasSubstr("program 40 of 40:\nreturn 40\n"));
  EXPECT_THAT(notes.programs(), Not(HasSubstr("return 3\n")));
}

}  // namespace
}  // namespace cohort::function
