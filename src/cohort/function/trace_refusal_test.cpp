// SPDX-License-Identifier: Apache-2.0
// Functions that a trace refuses, and the texts of the errors.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/kron.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rrelu_with_noise.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <functional>
#include <utility>

#include "cohort/core/torch_error.h"
#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TraceRefusal : public TraceCase {};

TEST_F(TraceRefusal, Item) {
  std::string text = refusal([](at::Tensor x) { return x.sum().item<float>() > 0 ? x : -x; });
  EXPECT_THAT(text,
              HasSubstr("cannot trace 'aten::_local_scalar_dense': its result is a host value"));
  EXPECT_THAT(text,
              HasSubstr("[inside aten::item]; op #1 of the trace of 'function', after aten::sum"));
}

TEST_F(TraceRefusal, HostResults) {
  EXPECT_THAT(refusal([](at::Tensor x) { return at::equal(x, x.abs()) ? x : -x; }),
              HasSubstr("'aten::equal'"));
  EXPECT_THAT(refusal([](at::Tensor x) { return x.sum().is_nonzero() ? x : -x; }),
              HasSubstr("aten::is_nonzero"));
  EXPECT_THAT(refusal([](at::Tensor x) { return x.allclose(x) ? x : -x; }),
              HasSubstr("'aten::allclose'"));
}

TEST_F(TraceRefusal, ShapesThatDependOnData) {
  const char* reason = "the shape of its result depends on tensor data";
  EXPECT_THAT(refusal([](at::Tensor x) { return x.nonzero(); }),
              AllOf(HasSubstr("'aten::nonzero'"), HasSubstr(reason)));
  EXPECT_THAT(refusal([](at::Tensor x) { return x.masked_select(x > 0); }), HasSubstr(reason));
  EXPECT_THAT(refusal([](at::Tensor x) { return x.index({x > 0}); }),
              AllOf(HasSubstr("'aten::index'"), HasSubstr(reason)));
  EXPECT_THAT(refusal([](at::Tensor x) { return x.argwhere(); }), HasSubstr(reason));
}

TEST_F(TraceRefusal, OpsOutsideTheAllowList) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                return x.clone().resize_({20, 20});
              }),
              AllOf(HasSubstr("'aten::resize_'"), HasSubstr("not on the list")));
}

TEST_F(TraceRefusal, ReplacedMemoryOfVariables) {
  at::Tensor w = parameter("w", {3}, false);
  at::Tensor before = w.detach().clone();
  EXPECT_THAT(refusal([&](at::Tensor x) {
                at::Tensor y = x * w;
                w.set_data(at::ones({3}));
                return y;
              }),
              AllOf(HasSubstr("'w' got other memory"), HasSubstr("copy_()")));
  EXPECT_TRUE(bits_equal(w.detach(), before));
}

TEST_F(TraceRefusal, LargeConstants) {
  at::Tensor large = at::ones({200, 100});
  std::string text = refusal([&](at::Tensor x) { return x + large.sum(); });
  EXPECT_THAT(text, AllOf(HasSubstr("float32[200, 100]"), HasSubstr("80000 bytes"),
                          HasSubstr("'aten::sum'"), HasSubstr("must be arguments or variables")));
  options_.constant_bytes_max = 100 << 10;
  EXPECT_EQ(refusal([&](at::Tensor x) { return x + large.sum(); }), "no error");
}

// It was LibTorch's page about the kernels of aten::empty.
TEST_F(TraceRefusal, DevicesThatThisProcessDoesNotHave) {
  if (has_device(at::kCUDA)) GTEST_SKIP() << "this host has a GPU";
  const std::pair<const char*, std::function<at::Tensor(at::Tensor)>> rows[] = {
      {"aten::to", [](at::Tensor x) { return x.to(at::kCUDA); }},
      {"aten::to", [](at::Tensor x) { return x.cuda(); }},
      {"aten::zeros", [](at::Tensor x) { return x + at::zeros({3}, at::kCUDA); }},
      {"aten::ones_like", [](at::Tensor x) { return at::ones_like(x, at::kCUDA); }}};
  for (const auto& [name, body] : rows) {
    EXPECT_THAT(refusal(body),
                AllOf(HasSubstr(std::string("[function.trace] cannot trace '") + name +
                                "': expected the CPU, got the device cuda"),
                      HasSubstr("(argument 'device')"), HasSubstr("leave out .cuda()"),
                      Not(HasSubstr("registered at"))));
  }
}

TEST_F(TraceRefusal, TensorsOfOtherDevices) {
  const at::Tensor outside = at::zeros({3}, at::kMeta);
  EXPECT_THAT(refusal([&](at::Tensor x) { return x + outside; }),
              AllOf(HasSubstr("expected tensors on the CPU, got one on meta (float32[3])"),
                    HasSubstr("call to(torch::kCPU) on it")));
}

TEST_F(TraceRefusal, UnregisteredParameters) {
  at::Tensor w = at::ones({3}).requires_grad_();
  EXPECT_THAT(refusal([&](at::Tensor x) { return x * w; }),
              AllOf(HasSubstr("no registered variable"), HasSubstr("replicate()")));
}

TEST_F(TraceRefusal, WritesToUnregisteredBuffers) {
  at::Tensor mean = at::zeros({3}), var = at::ones({3}), count = at::scalar_tensor(0, at::kLong);
  const char* reason = "register parameters and buffers";
  EXPECT_THAT(refusal([&](at::Tensor x) { return count.add_(1) + x; }), HasSubstr(reason));
  EXPECT_THAT(refusal([&](at::Tensor x) { return mean.select(0, 1).add_(1) + x; }),
              HasSubstr(reason));
  EXPECT_THAT(refusal([&](at::Tensor x) {
                return std::get<0>(at::native_batch_norm(x, {}, {}, mean, var, true, 0.1, 1e-5));
              }),
              AllOf(HasSubstr("'aten::native_batch_norm'"), HasSubstr(reason)));
  EXPECT_TRUE(bits_equal(mean, at::zeros({3})));
}

// The program was accepted, and the worker failed because the memory was too small.
TEST_F(TraceRefusal, OutputsThatACompositeGivesMemory) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                at::Tensor out = at::empty({0});
                at::kron_out(out, x, x);
                return out;
              }),
              HasSubstr("call the form that returns its result"));
}

TEST_F(TraceRefusal, NoiseThatIsNotTheFunctionsOwn) {
  at::Tensor noise = at::ones({2, 3});
  EXPECT_THAT(
      refusal([&](at::Tensor x) { return at::rrelu_with_noise(x, noise, .1, .3, true); }),
      AllOf(HasSubstr("'aten::rrelu_with_noise'"), HasSubstr("register parameters and buffers")));
  EXPECT_THAT(refusal([&](at::Tensor x) { return at::rrelu_with_noise(x, x, .1, .3, true); }),
              HasSubstr("clone() it first"));
  EXPECT_TRUE(bits_equal(noise, at::ones({2, 3})));
}

TEST_F(TraceRefusal, WritesToNumbersThatAreShared) {
  at::Tensor a = at::scalar_tensor(1.0), b = at::scalar_tensor(1.0);
  EXPECT_THAT(refusal([&](at::Tensor x) { return x * a + b.add_(1); }),
              HasSubstr("register parameters and buffers"));
}

TEST_F(TraceRefusal, WritesToArguments) {
  EXPECT_THAT(refusal([](at::Tensor x) { return x.add_(1); }), HasSubstr("clone() it first"));
  EXPECT_THAT(refusal([](at::Tensor x) { return x.select(0, 1).zero_(); }),
              HasSubstr("clone() it first"));
}

TEST_F(TraceRefusal, WritesToRemoteParameters) {
  at::Tensor w = parameter("layer.weight", {3});
  at::Tensor before = w.detach().clone();
  EXPECT_THAT(refusal([&](at::Tensor x) { return w.data().sub_(x.sum(0)); }),
              AllOf(HasSubstr("'layer.weight'"), HasSubstr("assign/assign_add or an optimizer")));
  EXPECT_TRUE(bits_equal(w.detach(), before));
}

// The next eager call would differentiate through the first; the trace did not refuse that.
TEST_F(TraceRefusal, BuffersThatKeepAGraph) {
  at::Tensor w = parameter("w", {3}), average = variable("average", at::zeros({3}));
  const auto write = [&](const std::function<void(const at::Tensor&)>& into) {
    return [&, into](at::Tensor x) {
      into(x.mean(0).mul(w));
      return average.mul(w);
    };
  };
  const char* reason = "variable 'average' was written in place with a value that requires a grad";
  EXPECT_THAT(refusal(write([&](const at::Tensor& value) { average.mul_(0.9).add_(value, 0.1); })),
              AllOf(HasSubstr(reason), HasSubstr("value.detach()")));
  EXPECT_THAT(
      refusal(write([&](const at::Tensor& value) { average.select(0, 1).copy_(value[1]); })),
      HasSubstr(reason));
  EXPECT_FALSE(average.requires_grad());
  const std::function<void(const at::Tensor&)> fine[] = {
      [&](const at::Tensor& value) { average.mul_(0.9).add_(value.detach(), 0.1); },
      [&](const at::Tensor& value) {
        const at::NoGradGuard no_grad;
        average.mul_(0.9).add_(value, 0.1);
      },
      [&](const at::Tensor& value) { average.copy_(value).detach_(); }};
  for (const auto& into : fine) {
    EXPECT_NO_THROW(traced({normal({4, 3}, 0)}, {normal({4, 3}, 1)},
                           [&](const Tensors& in) { return Tensors{write(into)(in[0])}; }));
  }
}

TEST_F(TraceRefusal, WritesToCapturedInputs) {
  at::Tensor rate = at::scalar_tensor(0.1);
  EXPECT_THAT(refusal([&](at::Tensor x) {
                Trace::current()->capture_input(rate);
                return x * rate.mul_(0.9);
              }),
              HasSubstr("every call reads anew"));
}

TEST_F(TraceRefusal, ExplicitGenerators) {
  auto generator = at::detail::createCPUGenerator(3);
  EXPECT_THAT(refusal([&](at::Tensor x) { return x + at::rand({3}, generator); }),
              HasSubstr("argument 'generator' is a generator of your own"));
}

TEST_F(TraceRefusal, ValuesReadThroughPointers) {
  EXPECT_THAT(refusal([](at::Tensor x) { return x * x.data_ptr<float>()[0]; }),
              AllOf(HasSubstr("op #0 was %1 = aten::mul.Scalar(%0, 1.5"),
                    HasSubstr("in the first pass and"), HasSubstr("data_ptr()")));
}

TEST_F(TraceRefusal, CountersOfTheHost) {
  int calls = 0;
  EXPECT_THAT(refusal([&](at::Tensor x) { return x.sum(0).add(x, ++calls); }),
              AllOf(HasSubstr("op #1 was %2 = aten::add.Tensor(%1, %0, 1) in the first pass"),
                    HasSubstr("aten::add.Tensor(%1, %0, 2) in the second")));
}

TEST_F(TraceRefusal, AnotherNumberOfOps) {
  int calls = 0;
  EXPECT_THAT(refusal([&](at::Tensor x) { return ++calls == 1 ? x.mul(2) : x.mul(2).exp(); }),
              HasSubstr("op #1 was the end of the function in the first pass and"));
}

TEST_F(TraceRefusal, ConstantsThatChange) {
  float host[3] = {1, 2, 3};
  EXPECT_THAT(refusal([&](at::Tensor x) {
                host[1] += 1;
                return x * at::from_blob(host, {3});
              }),
              AllOf(HasSubstr("float32[3] {1, 3, 3}"), HasSubstr("{1, 4, 3}")));
}

TEST_F(TraceRefusal, TensorsMadeOnTheFirstCallAndKept) {
  at::Tensor kept;
  EXPECT_THAT(refusal([&](at::Tensor x) {
                if (!kept.defined()) kept = at::ones({3});
                return x * kept;
              }),
              HasSubstr("something made on the first call"));
}

TEST_F(TraceRefusal, OtherReturnedValues) {
  int calls = 0;
  EXPECT_THAT(refusal([&](at::Tensor x) {
                at::Tensor y = x * 2;
                return ++calls == 1 ? x : y;
              }),
              HasSubstr("returned other values"));
}

TEST_F(TraceRefusal, TensorsOfCodeThatWasNotSeen) {
  EXPECT_THAT(
      refusal([](at::Tensor x) {
        c10::impl::ExcludeDispatchKeyGuard hidden(c10::DispatchKey::TESTING_ONLY_GenericMode);
        at::Tensor y = x * 2;
        return y;
      }),
      AllOf(HasSubstr("the returned value 0"),
            HasSubstr("no LibTorch operator the trace could see")));
}

TEST_F(TraceRefusal, StaysRefusedWhenTheBodySwallowsIt) {
  EXPECT_THAT(refusal([](at::Tensor x) {
                try {
                  return x * x.sum().item<float>();
                } catch (const std::exception&) {
                  return x;
                }
              }),
              HasSubstr("_local_scalar_dense"));
}

TEST_F(TraceRefusal, UpdatesWithoutGradientOrVariable) {
  at::Tensor w = parameter("w", {3}), loose = at::ones({3});
  auto apply = [&](const at::Tensor& variable, const at::Tensor& gradient, const Tensors& hyper) {
    return refusal([&](at::Tensor x) {
      const at::Tensor given = gradient.defined() ? gradient : w.grad();
      Trace::current()->update(variable, internal::apply_effect({"sgd", "sgd"}, {}, given), hyper);
      return x;
    });
  };
  EXPECT_THAT(apply(w, {}, {}),
              AllOf(HasSubstr("'w' has no gradient"), HasSubstr("cohort::apply")));
  EXPECT_THAT(apply(loose, loose, {}), HasSubstr("no registered variable"));
  EXPECT_THAT(apply(w, at::ones({2}), {}), HasSubstr("does not fit variable 'w'"));
  EXPECT_THAT(apply(w, loose, {at::scalar_tensor(0.1)}), HasSubstr("capture_input()"));
}

TEST_F(TraceRefusal, AssignmentsOfOtherShapes) {
  at::Tensor w = parameter("w", {3});
  EXPECT_THAT(refusal([&](at::Tensor x) {
                Trace::current()->update(
                    w, internal::write_effect(internal::Effect::Kind::assign_add, x));
                return x;
              }),
              AllOf(HasSubstr("expected float32[3] for variable 'w'"), HasSubstr("float32[4, 3]")));
}

TEST_F(TraceRefusal, InputsCapturedTooLate) {
  at::Tensor rate = at::scalar_tensor(0.1);
  EXPECT_THAT(refusal([&](at::Tensor x) {
                at::Tensor y = x * rate;
                Trace::current()->capture_input(rate);
                return y;
              }),
              HasSubstr("capture it first"));
}

TEST_F(TraceRefusal, VariablesThatArePartsOfOtherTensors) {
  at::Tensor w = variable("w", at::ones({4, 4}).slice(1, 0, 2));
  EXPECT_THAT(refusal([&](at::Tensor x) { return x + w.sum(); }),
              HasSubstr("'w' is not contiguous"));
}

TEST_F(TraceRefusal, DrawsOfOtherShapes) {
  options_.draw = [](std::int64_t, int, int pass) { return Tensors{at::ones({2 + pass})}; };
  EXPECT_THAT(
      refusal([](at::Tensor x) { return x + Trace::current()->iterator_next(0).at(0).sum(); }),
      HasSubstr("drew elements of other shapes"));
}

TEST_F(TraceRefusal, DrawsWithoutIterators) {
  EXPECT_THAT(refusal([](at::Tensor) { return Trace::current()->iterator_next(0).at(0); }),
              HasSubstr("no iterators among its arguments"));
}

}  // namespace
}  // namespace cohort::function
