// SPDX-License-Identifier: Apache-2.0
// Variables, effects, draws and inputs of a trace, and the state that it restores.
#include "cohort/function/trace.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <thread>

#include "cohort/function/program/wire.h"
#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TraceTest : public TraceCase {
 protected:
  Tensors inputs(std::uint64_t seed) { return {normal({4, 3}, seed)}; }
  Traced traced_one(const std::function<at::Tensor(at::Tensor)>& body) {
    return traced(inputs(0), inputs(1), [&](const Tensors& in) { return Tensors{body(in[0])}; });
  }
  std::vector<std::string> op_names(const Traced& traced) {
    std::vector<std::string> names;
    for (const Op& op : decode_program(traced.bytes).ops) names.push_back(op.name);
    return names;
  }
  void draw_normal() {
    options_.draw = [](std::int64_t resource, int draw, int pass) {
      return Tensors{normal({3, 2}, 100 * pass + 10 * draw + resource)};
    };
  }
};

TEST_F(TraceTest, RecordsTheOpsOfTheBody) {
  Traced result = traced_one([](at::Tensor x) { return x.mul(2).sum(); });
  EXPECT_THAT(op_names(result), ElementsAre("aten::mul", "aten::sum"));
  EXPECT_EQ(result.info.op_count, 2);
  EXPECT_EQ(result.info.output_count, 1);
  EXPECT_EQ(result.info.inputs, std::vector<TensorSpec>{TensorSpec::of(inputs(0)[0])});
  EXPECT_FALSE(result.info.is_random);
}

TEST_F(TraceTest, ExampleOutputsAreThoseOfTheFirstPass) {
  Traced result = traced_one([](at::Tensor x) { return x.mul(2); });
  EXPECT_TRUE(bits_equal(result.example_outputs.at(0), inputs(0)[0].mul(2)));
}

TEST_F(TraceTest, InfoIsThatOfTheDecodedProgram) {
  at::Tensor w = parameter("w", {3});
  draw_normal();
  Traced result =
      traced_one([&](at::Tensor x) { return x + w + Trace::current()->iterator_next(2)[0].sum(); });
  ProgramInfo decoded = PreparedProgram::decode(result.bytes)->info();
  EXPECT_EQ(decoded.inputs, result.info.inputs);
  EXPECT_EQ(decoded.op_count, result.info.op_count);
  ASSERT_EQ(decoded.variables.size(), 1);
  EXPECT_EQ(decoded.variables[0].name, "w");
  EXPECT_EQ(decoded.variables[0].is_read, result.info.variables[0].is_read);
  EXPECT_EQ(decoded.variables[0].is_updated, result.info.variables[0].is_updated);
  ASSERT_EQ(decoded.draws.size(), 1);
  EXPECT_EQ(decoded.draws[0].resource, 2);
  EXPECT_EQ(decoded.draws[0].fields, result.info.draws[0].fields);
}

TEST_F(TraceTest, VariablesAreReadWhereTheProgramRuns) {
  at::Tensor w = parameter("w", {3});
  auto body = [&](const Tensors& in) { return Tensors{in[0] * w}; };
  Traced result = traced(inputs(0), inputs(1), body);
  w.data().fill_(5);
  EXPECT_TRUE(bits_equal(replay(result, inputs(2))[0], inputs(2)[0] * 5));
  ASSERT_EQ(result.info.variables.size(), 1);
  EXPECT_TRUE(result.info.variables[0].is_read);
  EXPECT_FALSE(result.info.variables[0].is_updated);
}

TEST_F(TraceTest, PartsAndShallowCopiesOfVariablesAreReadsToo) {
  at::Tensor w = parameter("w", {4, 3});
  at::Tensor part = w.data().slice(0, 1, 3);
  Traced result = traced_one([&](at::Tensor x) { return part + w.detach().sum() + x.sum(); });
  w.data().fill_(5);
  EXPECT_TRUE(
      bits_equal(replay(result, inputs(2))[0], at::full({2, 3}, 5) + 60 + inputs(2)[0].sum()));
}

TEST_F(TraceTest, PartsOfVariablesDoNotDependOnWhereAServerHoldsThem) {
  at::Tensor w = parameter("w", {4, 3});
  at::Tensor part = w.data().slice(0, 1, 3), columns = w.data().t();
  Traced result = traced([&](const Tensors&) { return Tensors{part * 2, columns * 2}; });
  at::Tensor held = normal({20}, 5).slice(0, 3, 15).view({4, 3});
  auto program = PreparedProgram::decode(result.bytes);
  Tensors outputs = program->run({}, Tensors{held}, host_, 1);
  EXPECT_TRUE(bits_equal(outputs[0], held.slice(0, 1, 3) * 2));
  EXPECT_TRUE(bits_equal(outputs[1], held.t() * 2));
}

TEST_F(TraceTest, ApplyUpdatesWithTheGradientAndTheHyperparameters) {
  at::Tensor w = parameter("w", {3});
  at::Tensor rate = at::scalar_tensor(0.1, at::kDouble);
  Traced result = traced_one([&](at::Tensor x) {
    w.mutable_grad() = at::Tensor();
    (x * w).sum().backward();
    Trace::current()->capture_input(rate);
    Trace::current()->update(w, internal::apply_effect({"sgd", "sgd_1"}, {}, w.grad()),
                             std::vector<at::Tensor>{rate});
    return x.sum();
  });
  rate.fill_(0.5);
  replay(result, inputs(2));
  ASSERT_EQ(host_.applied.size(), 1);
  EXPECT_EQ(host_.applied[0].rule, "sgd");
  EXPECT_EQ(host_.applied[0].optimizer, "sgd_1");
  EXPECT_EQ(host_.applied[0].variable, 0);
  EXPECT_TRUE(bits_equal(host_.applied[0].gradient, inputs(2)[0].sum(0)));
  EXPECT_EQ(host_.applied[0].hyper, std::vector<double>{0.5});
  EXPECT_TRUE(result.info.variables[0].is_updated);
}

TEST_F(TraceTest, CapturedInputsComeAfterTheArgumentsInTheirOrder) {
  at::Tensor a = at::scalar_tensor(1.0), b = at::scalar_tensor(2.0);
  Traced result = traced_one([&](at::Tensor x) {
    for (const at::Tensor& one : {b, a, b}) Trace::current()->capture_input(one);
    return x * a + b;
  });
  ASSERT_EQ(result.captured_inputs.size(), 2);
  EXPECT_TRUE(result.captured_inputs[0].is_same(b));
  EXPECT_EQ(result.info.inputs.size(), 3);
  a.fill_(10);
  EXPECT_TRUE(bits_equal(replay(result, inputs(2))[0], inputs(2)[0] * 10 + 2));
}

TEST_F(TraceTest, AssignmentsAreEffectsAndNoReads) {
  at::Tensor w = parameter("w", {3});
  Traced result = traced_one([&](at::Tensor x) {
    Trace::current()->update(w, internal::write_effect(internal::Effect::Kind::assign, x.sum(0)));
    Trace::current()->update(
        w, internal::write_effect(internal::Effect::Kind::assign_add, x.sum(0) * 2));
    Trace::current()->update(w,
                             internal::write_effect(internal::Effect::Kind::assign_sub, x.mean(0)));
    return at::Tensor();
  });
  EXPECT_FALSE(result.info.variables.at(0).is_read);
  EXPECT_TRUE(result.info.variables.at(0).is_updated);
  replay(result, inputs(2));
  ASSERT_EQ(host_.assigned.size(), 3);
  EXPECT_EQ(host_.assigned[1].kind, internal::Effect::Kind::assign_add);
  EXPECT_TRUE(bits_equal(host_.assigned[1].value, inputs(2)[0].sum(0) * 2));
}

TEST_F(TraceTest, WritesToRemoteBuffersBecomeOneAssignmentAtTheEnd) {
  at::Tensor mean = variable("mean", at::zeros({3}));
  Traced result = traced_one([&](at::Tensor x) {
    mean.mul_(0.9).add_(x.mean(0), 0.1);
    mean.add_(1);
    return mean * 2;
  });
  EXPECT_THAT(op_names(result).back(), "cohort::assign");
  replay(result, inputs(2));
  ASSERT_EQ(host_.assigned.size(), 1);
  EXPECT_TRUE(bits_equal(host_.assigned[0].value,
                         at::zeros({3}).mul_(0.9).add_(inputs(2)[0].mean(0), 0.1).add_(1)));
}

TEST_F(TraceTest, WritesToLocalVariablesAreJustOps) {
  at::Tensor w = parameter("w", {3}, false);
  Traced result = traced_one([&](at::Tensor x) {
    w.data().sub_(x.sum(0), 0.5);
    return at::Tensor();
  });
  at::Tensor expected = w.detach() - 0.5 * inputs(2)[0].sum(0);
  auto program = PreparedProgram::decode(result.bytes);
  program->run(inputs(2), values_of(program->info(), true), host_, 1);
  EXPECT_TRUE(bits_equal(w.detach(), expected));
  EXPECT_TRUE(host_.assigned.empty());
}

TEST_F(TraceTest, DrawsComeFirstAndAreDrawnAnewByEachRun) {
  draw_normal();
  Traced result = traced_one([](at::Tensor x) {
    at::Tensor sum = x.sum();
    auto first = Trace::current()->iterator_next(0);
    auto second = Trace::current()->iterator_next(1);
    return at::cat({first.at(0) * 2 + sum, second.at(0)});
  });
  auto names = op_names(result);
  EXPECT_EQ(names[0], "cohort::iterator_next");
  EXPECT_EQ(names[1], "cohort::iterator_next");
  EXPECT_EQ(names[2], "aten::sum");
  ASSERT_EQ(result.info.draws.size(), 2);
  EXPECT_EQ(result.info.draws[1].resource, 1);
  at::Tensor expected =
      at::cat({normal({3, 2}, 500) * 2 + inputs(2)[0].sum(), normal({3, 2}, 511)});
  EXPECT_TRUE(bits_equal(replay(result, inputs(2))[0], expected));
}

TEST_F(TraceTest, DrawnElementsMayBeWritten) {
  at::Tensor element = at::ones({3});
  options_.draw = [&](std::int64_t, int, int) { return Tensors{element}; };
  Traced result =
      traced([](const Tensors&) { return Tensors{Trace::current()->iterator_next(0)[0].add_(1)}; });
  EXPECT_TRUE(bits_equal(element, at::ones({3})));
  EXPECT_TRUE(bits_equal(result.example_outputs[0], at::full({3}, 2.0)));
}

TEST_F(TraceTest, ReturnedVariablesAndConstantsAreOutputs) {
  at::Tensor w = variable("w", at::ones({3}));
  at::Tensor constant = at::full({2}, 4.0);
  Traced result = traced([&](const Tensors&) { return Tensors{w, constant, w}; });
  w.fill_(9);
  Tensors outputs = replay(result, {});
  EXPECT_TRUE(bits_equal(outputs.at(0), at::full({3}, 9.0)));
  EXPECT_TRUE(bits_equal(outputs.at(1), constant));
  EXPECT_TRUE(bits_equal(result.example_outputs.at(0), at::ones({3})));
}

TEST_F(TraceTest, ArgumentsKeepTheirGradientFlag) {
  auto leaf = [](std::uint64_t seed) { return Tensors{normal({3}, seed).requires_grad_()}; };
  Traced result = traced(leaf(0), leaf(1), [](const Tensors& in) {
    in[0].pow(2).sum().backward();
    return Tensors{in[0].grad()};
  });
  EXPECT_TRUE(bits_equal(replay(result, {normal({3}, 2)})[0], normal({3}, 2) * 2));
}

TEST_F(TraceTest, PartsOfOneTensorCanBeArguments) {
  auto halves = [](std::uint64_t seed) {
    at::Tensor whole = normal({4, 6}, seed);
    return Tensors{whole.slice(1, 0, 3), whole.slice(1, 3, 6)};
  };
  expect_equal_to_eager(halves, [](const Tensors& in) {
    return Tensors{in[0].data().select(0, 1) + in[1].data().t()[2].sum()};
  });
}

TEST_F(TraceTest, NonContiguousConstantsKeepTheirLayout) {
  at::Tensor constant = normal({3, 5}, 77).t();
  expect_equal_to_eager({3, 3}, [=](at::Tensor x) { return constant.matmul(x); });
}

// A trace restores all state.

TEST_F(TraceTest, PutsBackContentsOfVariables) {
  at::Tensor w = parameter("w", {3}, false);
  at::Tensor before = w.detach().clone();
  traced_one([&](at::Tensor x) {
    w.data().slice(0, 1, 2).add_(1);
    w.data().mul_(x.sum());
    return w;
  });
  EXPECT_TRUE(bits_equal(w.detach(), before));
}

TEST_F(TraceTest, PutsBackGradients) {
  at::Tensor w = parameter("w", {3}), other = parameter("other", {3});
  w.mutable_grad() = at::ones({3});
  auto result = traced_one([&](at::Tensor x) {
    w.mutable_grad() = other.mutable_grad() = at::Tensor();
    ((w + other) * x).sum().backward();
    return w.grad();
  });
  EXPECT_TRUE(bits_equal(w.grad(), at::ones({3})));
  EXPECT_FALSE(other.grad().defined());
  EXPECT_TRUE(bits_equal(replay(result, inputs(3))[0], inputs(3)[0].sum(0)));
}

TEST_F(TraceTest, ListedLeavesHaveNoGradientInside) {
  at::Tensor w = parameter("w", {3});
  w.mutable_grad() = at::ones({3});
  options_.leaves = {w};
  traced_one([&](at::Tensor x) {
    EXPECT_FALSE(w.grad().defined());
    return x + w;
  });
  EXPECT_TRUE(w.grad().defined());
}

TEST_F(TraceTest, PutsBackTheDefaultGenerator) {
  seed_default_generator(7);
  at::Tensor expected = at::randn({3});
  seed_default_generator(7);
  Traced result = traced_one([](at::Tensor x) { return x + at::randn({3}); });
  EXPECT_TRUE(bits_equal(at::randn({3}), expected));
  EXPECT_TRUE(result.info.is_random);
}

TEST_F(TraceTest, PutsBackEverythingAfterAnException) {
  at::Tensor w = parameter("w", {3}, false);
  at::Tensor before = w.detach().clone();
  w.mutable_grad() = at::ones({3});
  auto failing = [&](at::Tensor x) -> at::Tensor {
    w.data().add_(1);
    (w * x).sum().backward();
    throw std::runtime_error("user error");
  };
  EXPECT_THROW(traced_one(failing), Error);
  EXPECT_TRUE(bits_equal(w.detach(), before));
  EXPECT_TRUE(bits_equal(w.grad(), at::ones({3})));
  EXPECT_EQ(Trace::current(), nullptr);
  EXPECT_NO_THROW(traced_one([](at::Tensor x) { return x * 2; }));
}

TEST_F(TraceTest, RunsTheBodyTwiceAndLeavesTheArgumentsAlone) {
  int calls = 0;
  Tensors mine = inputs(0);
  traced(mine, inputs(1), [&](const Tensors& in) {
    ++calls;
    return Tensors{in[0] * 2};
  });
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(bits_equal(mine[0], inputs(0)[0]));
}

TEST_F(TraceTest, CurrentIsSetOnTheTracingThreadOnly) {
  EXPECT_EQ(Trace::current(), nullptr);
  traced_one([](at::Tensor x) {
    EXPECT_NE(Trace::current(), nullptr);
    Trace* elsewhere = Trace::current();
    std::thread([&] { elsewhere = Trace::current(); }).join();
    EXPECT_EQ(elsewhere, nullptr);
    return x * 2;
  });
  EXPECT_EQ(Trace::current(), nullptr);
}

TEST_F(TraceTest, CurrentIsSetInHooksOfTheBackwardPass) {
  at::Tensor w = parameter("w", {3});
  int calls = 0;
  Traced result = traced_one([&](at::Tensor x) {
    at::Tensor y = w * 2;
    y.register_hook([&](const at::Tensor& gradient) {
      ++calls;
      Trace::current()->update(
          w, internal::write_effect(internal::Effect::Kind::assign_add, gradient * 3));
      return gradient;
    });
    w.mutable_grad() = at::Tensor();
    (y * x).sum().backward();
    w.mutable_grad() = at::Tensor();
    return at::Tensor();
  });
  EXPECT_EQ(calls, 2);
  replay(result, inputs(2));
  EXPECT_TRUE(bits_equal(host_.assigned.at(0).value, inputs(2)[0].sum(0) * 3));
}

TEST_F(TraceTest, OtherThreadsComputeUntraced) {
  Traced result = traced_one([](at::Tensor x) {
    at::Tensor other;
    std::thread([&] { other = at::ones({3}).mul(2); }).join();
    return x + other;
  });
  EXPECT_THAT(op_names(result), ElementsAre("aten::add"));
}

TEST_F(TraceTest, TracesOfTwoThreadsWaitForEachOther) {
  auto one = [&] { return traced_one([](at::Tensor x) { return x.mul(2).sum(); }).bytes; };
  Bytes first, second;
  std::thread other([&] { second = one(); });
  first = one();
  other.join();
  EXPECT_EQ(first, second);
}

TEST_F(TraceTest, ANestedTraceIsAnError) {
  try {
    traced_one([&](at::Tensor x) {
      return traced([](const Tensors& in) { return in; }).example_outputs.empty() ? x : -x;
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
    EXPECT_THAT(error.what(), HasSubstr("call the function directly"));
  }
}

TEST_F(TraceTest, ExamplesOfOtherSpecsAreAnError) {
  EXPECT_THROW(traced({normal({3}, 0)}, {normal({4}, 1)}, [](const Tensors& in) { return in; }),
               Error);
  EXPECT_THROW(traced({normal({3}, 0)}, {}, [](const Tensors& in) { return in; }), Error);
}

TEST_F(TraceTest, ErrorsOfTheBodyKeepTheirText) {
  try {
    traced_one([](at::Tensor x) { return x.view({7}); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("shape '[7]' is invalid"));
    EXPECT_THAT(error.what(), HasSubstr("trace of 'function'"));
  }
}

}  // namespace
}  // namespace cohort::function
