// SPDX-License-Identifier: Apache-2.0
// Tensors whose memory is special: without elements, without an address, shared.
#include <ATen/ops/empty.h>
#include <ATen/ops/unsafe_chunk.h>
#include <ATen/ops/unsafe_split.h>
#include <ATen/ops/unsafe_split_with_sizes.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using TraceMemoryTest = TraceCase;

// The trace read memory at address 0: an empty part has no data pointer, but its storage has all
// bytes of its base.
TEST_F(TraceMemoryTest, EmptyPartsOfWhatAFactoryMade) {
  expect_equal_to_eager({3}, [](at::Tensor x) {
    return at::zeros({4}).slice(0, 2, 2).add(x.slice(0, 0, 0)).sum().add(x);
  });
}

// The reshape was refused as a write into an argument or a variable.
TEST_F(TraceMemoryTest, AViewReshapedInPlaceIsNoWrite) {
  at::Tensor w = parameter("w", {3, 2});
  expect_equal_to_eager({4, 3}, [&](at::Tensor x) {
    return w.detach().t_().matmul(x.view({4, 3}).t_()).unsqueeze_(0);
  });
}

TEST_F(TraceMemoryTest, WhatIsTheUsersKeepsItsShape) {
  at::Tensor w = parameter("w", {3, 2}), constant = at::zeros({2, 3});
  const auto tries = {refusal([&](at::Tensor x) { return w.squeeze_().sum().add(x); }),
                      refusal([&](at::Tensor x) { return constant.t_().sum().add(x); }),
                      refusal([&](at::Tensor x) { return x.t_(); })};
  for (const std::string& text : tries) EXPECT_THAT(text, ::testing::HasSubstr("it writes in"));
  EXPECT_EQ(w.dim(), 2);
  EXPECT_EQ(constant.size(0), 2);
}

// Their schemas do not say that the parts share the argument's memory. So a tensor that had been
// sent was overwritten, and writes through the parts were not seen.
TEST_F(TraceMemoryTest, PartsThatTheSchemaCallsNew) {
  const auto of = [](std::uint64_t seed) { return Tensors{normal({4, 6}, seed)}; };
  const auto splits = {+[](const at::Tensor& x) { return at::unsafe_split(x, 2, 1); },
                       +[](const at::Tensor& x) { return at::unsafe_chunk(x, 3, 1); },
                       +[](const at::Tensor& x) {
                         return at::unsafe_split_with_sizes(x, {2, 2, 2}, 1);
                       }};
  for (const auto& split : splits) {
    expect_equal_to_eager(of, [&](const Tensors& in) {
      at::Tensor value = in[0].mul(2);
      Tensors parts = split(value);
      parts[1].add_(1);
      at::Tensor kept = parts[0].mul(1);
      value.mul_(3);
      return Tensors{kept, parts[0], parts[2], value};
    });
  }
}

TEST_F(TraceMemoryTest, AnEffectKeepsAPartOfWhatIsWrittenLater) {
  at::Tensor w = parameter("w", {4, 2});
  const Traced result = traced({normal({4, 6}, 0)}, {normal({4, 6}, 1)}, [&](const Tensors& in) {
    at::Tensor value = in[0].mul(2);
    Trace::current()->update(w, internal::write_effect(internal::Effect::Kind::assign,
                                                       at::unsafe_split(value, 2, 1)[0]));
    value.zero_();
    return Tensors{value};
  });
  const at::Tensor x = normal({4, 6}, 2);
  replay(result, {x});
  ASSERT_EQ(host_.assigned.size(), 1);
  EXPECT_TRUE(bits_equal(host_.assigned[0].value, x.mul(2).slice(1, 0, 2).contiguous()));
}

// The user's own tensor got memory of the trace.
TEST_F(TraceMemoryTest, EmptyTensorsOfTheUserDoNotGrow) {
  at::Tensor captured = at::zeros({0}), w = variable("w", at::zeros({0}));
  const auto tries = {refusal([&](at::Tensor x) { return captured.resize_({3}).sum().add(x); }),
                      refusal([&](at::Tensor x) { return w.resize_({3}).sum().add(x); }),
                      refusal([&](at::Tensor x) {
                        at::Tensor one = at::empty({0}), other = one.view({0});
                        one.resize_({3}).fill_(1);
                        return other.resize_({3}).sum().add(x);
                      })};
  for (const std::string& text : tries)
    EXPECT_THAT(text, ::testing::HasSubstr("it would give new memory"));
  EXPECT_EQ(captured.numel(), 0);
  EXPECT_EQ(w.numel(), 0);
}

// Another function used the changed values of the second pass as a constant.
TEST_F(TraceMemoryTest, WhatEscapesFromATraceIsSaidAndRefusedElsewhere) {
  at::Tensor kept, seen;
  const auto of_kept = [&](at::Tensor x) { return kept + x; };
  const Traced leaves = traced({normal({3}, 0)}, {normal({3}, 1)}, [&](const Tensors& in) {
    kept = in[0] * 2;
    return Tensors{in[0].add(1)};
  });
  EXPECT_EQ(leaves.escaped, "aten::mul made it");
  EXPECT_THAT(refusal(of_kept), ::testing::AllOf(::testing::HasSubstr("left outside of itself"),
                                                 ::testing::HasSubstr("pass it as an argument")));
  const Traced keeps_argument = traced({normal({3}, 0)}, {normal({3}, 1)}, [&](const Tensors& in) {
    seen = in[0];
    return Tensors{in[0].add(1)};
  });
  EXPECT_EQ(keeps_argument.escaped, "it is an argument or an element there");
  kept = at::ones({3});
  EXPECT_EQ(refusal(of_kept), "no error");
}

TEST_F(TraceMemoryTest, WhatAFunctionReturnsOrMakesOfConstantsDoesNotEscape) {
  at::Tensor ones;
  const Traced result = traced({normal({3}, 0)}, {normal({3}, 1)}, [&](const Tensors& in) {
    ones = at::ones({3});
    return Tensors{in[0].mul(2)};
  });
  EXPECT_EQ(result.escaped, "");
}

// The trace itself held old gradients; LibTorch holds a tensor that is written with its own view.
TEST_F(TraceMemoryTest, WhatOnlyGraphsHoldDoesNotEscape) {
  at::Tensor w = parameter("w", {3});
  const auto escaped_from = [&](const std::function<void(const at::Tensor&)>& work) {
    return traced({normal({3}, 0)}, {normal({3}, 1)},
                  [&](const Tensors& in) {
                    work(in[0]);
                    return Tensors{in[0].mul(2)};
                  })
        .escaped;
  };
  EXPECT_EQ(escaped_from([&](const at::Tensor& x) {
              if (w.grad().defined()) w.mutable_grad().zero_();
              w.mul(x).sum().backward();
            }),
            "");
  EXPECT_EQ(escaped_from([](const at::Tensor& x) {
              const at::Tensor leaf = x.detach().clone().requires_grad_();
              leaf.mul(x).sum().backward();
              leaf.mutable_grad().mul_(leaf);
            }),
            "");
  at::Tensor buffer = variable("buffer", at::zeros({3}));
  const auto write = [&](const at::Tensor& x) { buffer.mul_(x.detach().clone().requires_grad_()); };
  EXPECT_THROW(static_cast<void>(escaped_from(write)), Error);
  EXPECT_TRUE(buffer.is_leaf());
  EXPECT_FALSE(buffer.requires_grad());
  EXPECT_EQ(escaped_from([&](const at::Tensor& x) {
              write(x);
              buffer.detach_();
            }),
            "");
  EXPECT_EQ(escaped_from([&](const at::Tensor& x) {
              at::Tensor base = w.mul(x);
              base.add_(base.view({3, 1}).sin().sum());
            }),
            "");
}

// They became constants without their gaps, but sums then round differently, and as_strided reads
// the gaps.
TEST_F(TraceMemoryTest, CapturedTensorsKeepTheirStrides) {
  const at::Tensor whole = normal({64, 6}, 5), gapped = whole.slice(1, 0, 6, 2);
  const at::Tensor expanded = normal({1, 5}, 6).expand({33, 5}), later = whole[3];
  expect_equal_to_eager({3}, [&](at::Tensor x) {
    return at::cat(
        {x * gapped.sum(), gapped.sum(0), expanded.t().sum(0), expanded.mean().view({1})});
  });
  expect_equal_to_eager({3}, [&](at::Tensor x) {
    return x + gapped.as_strided({3}, {1}) +
           later.as_strided({3}, {2}, later.storage_offset() + 1) + gapped[2].as_strided({3}, {4});
  });
  const at::Tensor far = normal({1000, 64}, 5).select(1, 0);
  EXPECT_THAT(refusal([&](at::Tensor x) { return x.sum() + far.sum(); }),
              ::testing::AllOf(::testing::HasSubstr("lies spread over"),
                               ::testing::HasSubstr("contiguous()")));
}

// On a server an input may have another offset in its memory; the bytes before it are foreign.
TEST_F(TraceMemoryTest, PlacesInGivenMemoryCountFromItsFirstElement) {
  at::Tensor w = parameter("w", {4, 3});
  const Traced made = traced({normal({4, 3}, 0)}, {normal({4, 3}, 1)}, [&](const Tensors& in) {
    const at::Tensor part = in[0].as_strided({2, 3}, {1, 2}, 4);
    return Tensors{part.mul(w.as_strided({2, 3}, {3, 1}, 2))};
  });
  const at::Tensor memory = normal({20}, 2), input = memory.slice(0, 8).view({4, 3});
  ASSERT_EQ(input.storage_offset(), 8);
  const at::Tensor expected =
      input.as_strided({2, 3}, {1, 2}, 8 + 4).mul(w.detach().as_strided({2, 3}, {3, 1}, 2));
  EXPECT_TRUE(bits_equal(replay(made, {input})[0], expected));
}

// The trace saw computed values, and a run failed: "view_as_real doesn't work on unresolved
// conjugated tensors".
TEST_F(TraceMemoryTest, ArgumentsMayBeLazilyConjugatedOrNegated) {
  const auto lazy = [](std::uint64_t seed) {
    const at::Tensor z = at::complex(normal({2, 3}, seed), normal({2, 3}, seed + 10)).conj();
    const at::Tensor negated = at::imag(z);
    EXPECT_TRUE(z.is_conj() && negated.is_neg());
    return Tensors{z, negated};
  };
  expect_equal_to_eager(lazy, [](const Tensors& in) {
    return Tensors{at::imag(in[0]) * in[1], at::real(in[0].conj()), in[0].conj(), in[1].neg(),
                   at::view_as_real(in[0].resolve_conj())};
  });
}

// Code that puts them together by copying their memory (a batch of elements) saw other numbers.
TEST_F(TraceMemoryTest, ResultsAreComputed) {
  const auto body = [](const Tensors& in) {
    const at::Tensor own = in[0].mul(2).conj();
    return Tensors{own, at::imag(own), in[0].mul(1)._neg_view()};
  };
  const Tensors inputs = {at::complex(normal({3}, 1), normal({3}, 2))};
  const Tensors expected = body(inputs), got = replay(traced(inputs, inputs, body), inputs);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(expected[i].is_conj() || expected[i].is_neg());
    EXPECT_FALSE(got[i].is_conj() || got[i].is_neg());
    EXPECT_TRUE(bits_equal(got[i], expected[i]));
  }
}

TEST_F(TraceMemoryTest, CapturedTensorsMayBeLazilyConjugatedOrNegated) {
  const at::Tensor z = at::complex(normal({3}, 5), normal({3}, 6)), number = z[0].conj();
  const at::Tensor conjugated = z.conj(), negated = at::imag(conjugated);
  ASSERT_TRUE(conjugated.is_conj() && negated.is_neg() && number.is_conj());
  expect_equal_to_eager({3}, [&](at::Tensor x) {
    return at::imag(conjugated) * x + at::real(conjugated) * negated + at::imag(number) +
           at::real(conjugated * x);
  });
}

}  // namespace
}  // namespace cohort::function
