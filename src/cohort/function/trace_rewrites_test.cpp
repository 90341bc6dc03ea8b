// SPDX-License-Identifier: Apache-2.0
// Operators that read tensor data on the host, or whose backward passes do: compares their programs
// with eager execution.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <torch/version.h>

#include <limits>

#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using ::testing::HasSubstr;

// Special values for operators that branch on data: ties, zeros and NaN, depending on the seed.
at::Tensor special(at::IntArrayRef sizes, std::uint64_t seed) {
  at::Tensor values = normal(sizes, seed);
  if (seed % 5 == 1) values = values.mul(2).round();  // ties and some zeros
  at::Tensor flat = values.view({-1});
  if (seed % 5 == 2) flat[0] = 0;
  if (seed % 5 == 3) flat[1] = std::numeric_limits<double>::quiet_NaN();
  if (seed % 5 == 4) flat.slice(0, 0, 3).zero_();
  return values;
}

class TraceRewrites : public TraceCase {
 protected:
  using Body = std::function<at::Tensor(const Tensors&)>;
  // The body's value for inputs that may need gradients, and the gradients of the floating ones.
  static TraceBody with_gradients(Body body) {
    return [body](const Tensors& inputs) {
      Tensors leaves;
      for (const at::Tensor& input : inputs) {
        leaves.push_back(input.clone());
        if (input.is_floating_point()) leaves.back().requires_grad_();
      }
      at::Tensor value = body(leaves);
      at::Tensor weights = at::arange(1, value.numel() + 1, value.options()).view(value.sizes());
      (value * weights).sum().backward();
      Tensors outputs{value.detach()};
      for (const at::Tensor& leaf : leaves)
        if (leaf.requires_grad()) outputs.push_back(leaf.grad());
      return outputs;
    };
  }
  using Inputs = std::function<Tensors(std::uint64_t)>;

  void compare(const Inputs& inputs, const TraceBody& body, bool is_exact) {
    const Traced result = traced(inputs(10), inputs(15), body);
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const Tensors expected = body(inputs(seed));
      const Tensors actual = replay(result, inputs(seed), seed);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (is_exact || !expected[i].defined()) {
          EXPECT_TRUE(bits_equal(actual[i], expected[i]))
              << "output " << i << ", seed " << seed << '\n'
              << actual[i] << '\n'
              << expected[i];
        } else {
          EXPECT_TRUE(actual[i].allclose(expected[i], 1e-6, 1e-6, true))
              << "output " << i << ", seed " << seed << '\n'
              << actual[i] << '\n'
              << expected[i];
        }
      }
    }
  }
  void expect_equal(const Inputs& inputs, const Body& body) {
    compare(inputs, with_gradients(body), true);
  }
  void expect_near(const Inputs& inputs, const Body& body) {
    compare(inputs, with_gradients(body), false);
  }
  static Inputs of(std::vector<std::int64_t> sizes) {
    return [sizes](std::uint64_t seed) { return Tensors{special(sizes, seed)}; };
  }
};

TEST_F(TraceRewrites, FullReductionsToOneElement) {
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::max(in[0]); });
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::min(in[0]); });
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::median(in[0]); });
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::nanmedian(in[0]); });
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::max(in[0].t()) * in[0].sum(); });
}

TEST_F(TraceRewrites, Products) {
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::prod(in[0]); });
  expect_equal(of({6}), [](const Tensors& in) { return at::prod(in[0], at::kDouble); });
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::prod(in[0], 1); });
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::prod(in[0], -2, true); });
  expect_equal(of({3, 4}),
               [](const Tensors& in) { return at::prod(in[0], 0, false, at::kDouble); });
  expect_equal(of({4, 1}), [](const Tensors& in) { return at::prod(in[0], 1); });
  expect_equal(of({3, 2}), [](const Tensors& in) { return at::prod(in[0].sum()); });
}

TEST_F(TraceRewrites, CumulativeProducts) {
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::cumprod(in[0], 0); });
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::cumprod(in[0], -1); });
  expect_equal(of({3, 4}), [](const Tensors& in) { return (in[0] * 2).cumprod_(1); });
}

TEST_F(TraceRewrites, Signs) {
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::sgn(in[0]); });
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::sgn(in[0]) * in[0] + in[0]; });
  // A plain zero would become NaN where log's derivative is infinite.
  expect_equal(of({3, 4}), [](const Tensors& in) { return at::sgn(at::log(at::abs(in[0]))); });
}

TEST_F(TraceRewrites, GradientsWithoutMemoryReachUpdates) {
  const at::Tensor w = parameter("w", {3});
  const Traced result = traced({normal({4, 3}, 0)}, {normal({4, 3}, 1)}, [&](const Tensors& in) {
    w.mutable_grad() = at::Tensor();
    at::sgn(w * in[0]).sum().backward();
    Trace::current()->update(w, internal::apply_effect({"sgd", "sgd"}, {}, w.grad()));
    return Tensors{};
  });
  replay(result, {normal({4, 3}, 2)});
  ASSERT_EQ(host_.applied.size(), 1);
  EXPECT_FALSE(host_.applied[0].gradient._is_zerotensor());
  EXPECT_TRUE(bits_equal(host_.applied[0].gradient, at::zeros({3})));
}

Tensors masked(std::uint64_t seed) {
  return {special({3, 4}, seed), normal({3, 4}, seed + 30).gt(0), normal({20}, seed + 50)};
}

TEST_F(TraceRewrites, MaskedScatterWithDifferentiableSource) {
  expect_equal(masked, [](const Tensors& in) { return in[0].masked_scatter(in[1], in[2]); });
  expect_equal(masked, [](const Tensors& in) {
    return (in[0] * 2).masked_scatter_(in[1], in[2].view({2, 10}));
  });
  expect_equal(masked, [](const Tensors& in) {
    return at::zeros({3, 4}).masked_scatter_(in[1].select(0, 1), in[2].narrow(0, 0, 12));
  });
}

TEST_F(TraceRewrites, MaskedFillWithDifferentiableValue) {
  expect_near(masked, [](const Tensors& in) { return in[0].masked_fill(in[1], in[2].sum()); });
  expect_near(masked, [](const Tensors& in) { return (in[0] * 2).masked_fill_(in[1], in[2][3]); });
}

at::Tensor put_at(const at::Tensor& self, const at::Tensor& mask, const at::Tensor& values,
                  bool accumulates = false) {
  return at::index_put(self, c10::List<c10::optional<at::Tensor>>({mask}), values, accumulates);
}

TEST_F(TraceRewrites, IndexPutWithMaskAndDifferentiableValues) {
  expect_near(masked, [](const Tensors& in) { return put_at(in[0], in[1], in[2][0]); });
  expect_near(masked,
              [](const Tensors& in) { return put_at(in[0], in[1], in[2].narrow(0, 0, 1), true); });
  // Rows, with a value for each column.
  expect_near(masked, [](const Tensors& in) {
    return put_at(in[0], in[1].select(1, 0), in[2].narrow(0, 0, 4));
  });
  expect_near(masked, [](const Tensors& in) {
    at::Tensor self = in[0] * 2;
    self.index_put_(c10::List<c10::optional<at::Tensor>>({in[1]}), in[2].sum());
    return self;
  });
}

TEST_F(TraceRewrites, IndexPutWithAValueForEachElementOfTheMask) {
  // Five of twelve elements, or two of three rows, wherever they are.
  auto inputs = [](std::uint64_t seed) {
    at::Tensor order = normal({12}, seed + 30).argsort();
    return Tensors{special({3, 4}, seed), order.lt(5).view({3, 4}),
                   normal({3}, seed + 40).argsort().lt(2), normal({2, 5}, seed + 50)};
  };
  expect_equal(inputs, [](const Tensors& in) { return put_at(in[0], in[1], in[3].select(0, 1)); });
  expect_equal(inputs,
               [](const Tensors& in) { return put_at(in[0], in[1], in[3].select(0, 1), true); });
  expect_equal(inputs,
               [](const Tensors& in) { return put_at(in[0], in[2], in[3].narrow(1, 1, 4)); });
  expect_equal(inputs,
               [](const Tensors& in) { return put_at(in[0], in[2], in[3].narrow(1, 1, 1)); });
}

TEST_F(TraceRewrites, IndexPutOfAnotherCountFailsAsInEagerExecution) {
  auto body = with_gradients(
      [](const Tensors& in) { return put_at(in[0], in[0] > 0, in[1].narrow(0, 0, 2)); });
  auto inputs = [](int positive) {
    at::Tensor x = at::full({5}, -1.0);
    x.slice(0, 0, positive).fill_(1);
    return Tensors{x, at::ones({5})};
  };
  const Traced result = traced(inputs(2), inputs(2), body);
  EXPECT_THROW(replay(result, inputs(3)), Error);
}

TEST_F(TraceRewrites, CrossEntropyWithLabelSmoothing) {
  auto inputs = [](std::uint64_t seed) {
    at::Tensor labels = normal({6}, seed + 60).abs().mul(100).to(at::kLong).remainder(5);
    return Tensors{normal({6, 5}, seed), labels, normal({5}, seed + 70).abs()};
  };
  auto loss = [](at::Tensor y, at::Tensor labels, c10::optional<at::Tensor> weight, int ignored) {
    return at::cross_entropy_loss(y, labels, weight, 1, ignored, 0.1);
  };
  expect_near(inputs, [&](const Tensors& in) { return loss(in[0], in[1], {}, -100); });
  expect_near(inputs, [&](const Tensors& in) { return loss(in[0], in[1], {}, 2); });
  expect_near(inputs, [&](const Tensors& in) { return loss(in[0], in[1], in[2].detach(), -100); });
  expect_near(inputs, [&](const Tensors& in) { return loss(in[0], in[1], in[2].detach(), 2); });
  expect_near(inputs, [&](const Tensors& in) {
    return loss(in[0].view({2, 5, 3}), in[1].view({2, 3}), in[2].detach(), 2);
  });
}

TEST_F(TraceRewrites, CovariancesAndCorrelations) {
  auto inputs = [](std::uint64_t seed) {
    return Tensors{normal({3, 6}, seed), normal({6}, seed + 60).abs().mul(9).to(at::kLong).add(1),
                   normal({6}, seed + 70).abs()};
  };
  expect_equal(inputs, [](const Tensors& in) { return at::cov(in[0]); });
  expect_equal(inputs, [](const Tensors& in) { return at::cov(in[0], 0, in[1]); });
  expect_equal(inputs, [](const Tensors& in) { return at::cov(in[0], 1, in[1], in[2].detach()); });
  expect_equal(inputs, [](const Tensors& in) { return at::corrcoef(in[0]); });
}

TEST_F(TraceRewrites, ACheckThatARunDoesNotPassFailsIt) {
  auto inputs = [](double weight) {
    return Tensors{normal({3, 6}, 1), at::full({6}, weight, at::kDouble)};
  };
  const Traced result = traced(inputs(1), inputs(2), [](const Tensors& in) {
    return Tensors{at::cov(in[0], 1, {}, in[1])};
  });
  EXPECT_THROW(replay(result, inputs(-1)), Error);
}

TEST_F(TraceRewrites, Quantiles) {
  // Without ties, because LibTorch's versions give the gradient to different ones of them.
  auto inputs = [](std::uint64_t seed) {
    const bool has_ties = seed % 5 == 1 || seed % 5 == 4;
    return Tensors{special({3, 5}, has_ties ? 5 * seed : seed), normal({2}, seed + 9).sigmoid()};
  };
  // LibTorch 2 rounds once between two values; the result depends on their alignment in memory.
  const bool is_exact = TORCH_VERSION_MAJOR < 2;
  const auto expect_alike = [&](const Body& body) {
    compare(inputs, with_gradients(body), is_exact);
  };
  expect_alike([](const Tensors& in) { return at::quantile(in[0], 0.3); });
  expect_alike([](const Tensors& in) { return at::quantile(in[0], in[1].detach(), 1); });
  for (const char* how : {"linear", "lower", "higher", "midpoint", "nearest"}) {
    expect_alike(
        [how](const Tensors& in) { return at::nanquantile(in[0], in[1].detach(), 0, true, how); });
    expect_alike([how](const Tensors& in) {
      return at::quantile(in[0], in[1].detach(), c10::nullopt, true, how);
    });
    expect_alike([how](const Tensors& in) {
      return at::quantile(in[0].view({3, 5, 1}), 0.7, 1, false, how);
    });
  }
}

TEST_F(TraceRewrites, QuantilesOutsideOfTheirRangeFailAsInEagerExecution) {
  auto inputs = [](double q) { return Tensors{normal({1}, 1), at::full({1}, q)}; };
  const Traced result = traced(inputs(0.5), inputs(0.6), [](const Tensors& in) {
    return Tensors{at::quantile(in[0], in[1])};
  });
  EXPECT_THROW(replay(result, inputs(1.5)), Error);
}

TEST_F(TraceRewrites, QuantilesOfOtherDtypesFailAsInEagerExecution) {
  auto inputs = [](std::uint64_t seed) { return Tensors{normal({3}, seed).to(at::kBFloat16)}; };
  const auto body = [](const Tensors& in) { return Tensors{at::quantile(in[0], 0.3)}; };
  EXPECT_THROW(body(inputs(1)), c10::Error);
  EXPECT_THROW(traced(inputs(1), inputs(2), body), Error);
}

TEST_F(TraceRewrites, FreshMemoryThatIsResized) {
  expect_equal(of({3, 4}), [](const Tensors& in) {
    at::Tensor square = at::empty({0});
    square.resize_as_(in[0].detach());
    square.copy_(in[0].detach()).mul_(in[0].detach());
    at::Tensor counts = at::zeros({6});
    counts.resize_({2, 2}).add_(1);
    return square.sum() * in[0] + counts.sum();
  });
}

TEST_F(TraceRewrites, MemoryThatGrowsIsRefused) {
  EXPECT_THAT(refusal([](at::Tensor x) { return x.clone().resize_({100}); }),
              HasSubstr("'aten::resize_'"));
}

TEST_F(TraceRewrites, EqualityOfValuesIsRefused) {
  EXPECT_THAT(refusal([](at::Tensor x) { return at::equal(x, x.clone()) ? x : -x; }),
              HasSubstr("'aten::equal'"));
  // False where there is a NaN.
  EXPECT_THAT(refusal([](at::Tensor x) { return at::equal(x, x) ? x : -x; }),
              HasSubstr("'aten::equal'"));
}

TEST_F(TraceRewrites, SecondDerivatives) {
  auto twice = [](Body body) {
    return [body](const Tensors& inputs) {
      at::Tensor x = inputs[0].clone().requires_grad_();
      body({x}).backward({}, true, true);
      at::Tensor first = x.grad();
      x.mutable_grad() = at::Tensor();
      first.pow(2).sum().backward();
      return Tensors{first.detach(), x.grad()};
    };
  };
  compare(of({3, 2}), twice([](const Tensors& in) { return at::max(in[0] * in[0]); }), false);
  compare(of({3, 2}), twice([](const Tensors& in) { return at::prod(in[0] + 9); }), false);
}

}  // namespace
}  // namespace cohort::function
