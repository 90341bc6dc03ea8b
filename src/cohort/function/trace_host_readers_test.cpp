// SPDX-License-Identifier: Apache-2.0
// Operators that read their arguments on the host: constants are fine, everything else is refused.
#include <ATen/ops/_pack_padded_sequence.h>
#include <ATen/ops/_pad_packed_sequence.h>
#include <ATen/ops/ctc_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/tensor_split.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr const char* kOnTheHost = "on the host, where it would be frozen";

class TraceHostReaders : public TraceCase {
 protected:
  std::string refusal_with(const Tensors& inputs, const TraceBody& body) {
    try {
      traced(inputs, inputs, body);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

at::Tensor integers(std::initializer_list<std::int64_t> values) {
  return at::tensor(std::vector<std::int64_t>(values), at::kLong);
}

at::Tensor ctc(const at::Tensor& x, const at::Tensor& lengths) {
  const at::Tensor targets = at::ones({2, 3}, at::kLong);
  return at::ctc_loss(x.log_softmax(2), targets, lengths, at::full({2}, 3, at::kLong));
}

TEST_F(TraceHostReaders, CtcLoss) {
  EXPECT_THAT(refusal_with({normal({8, 2, 5}, 1), integers({8, 7})},
                           [](const Tensors& in) { return Tensors{ctc(in[0], in[1])}; }),
              AllOf(HasSubstr("'aten::ctc_loss'"), HasSubstr("'input_lengths'"),
                    HasSubstr(kOnTheHost), HasSubstr("torch::full")));
  expect_equal_to_eager({8, 2, 5},
                        [](at::Tensor x) { return ctc(x, at::full({2}, 8, at::kLong)); });
}

// If it depends on constants only, the shape of a result is the same in every run.
TEST_F(TraceHostReaders, ShapesThatDependOnConstants) {
  const at::Tensor mask = at::tensor(std::vector<std::int64_t>{1, 0, 1, 1}).to(at::kBool);
  const auto rows = [](std::uint64_t seed) { return Tensors{normal({4, 3}, seed)}; };
  const auto gradient_of = [](const at::Tensor& result, const at::Tensor& x) {
    return torch::autograd::grad({result.pow(2).sum()}, {x})[0];
  };
  for (const auto& select : std::vector<std::function<at::Tensor(const at::Tensor&)>>{
           [](const at::Tensor& x) { return x.repeat_interleave(3, 0); },
           [](const at::Tensor& x) { return x.repeat_interleave(2); },
           [=](const at::Tensor& x) { return x.index({mask}); },
           [=](const at::Tensor& x) {
             return x.transpose(0, 1).index({at::indexing::Slice(), mask});
           }}) {
    expect_equal_to_eager(rows, [&](const Tensors& in) {
      const at::Tensor x = in[0].clone().requires_grad_();
      const at::Tensor result = select(x);
      return Tensors{result.detach(), gradient_of(result, x)};
    });
  }
}

// Lengths that an op makes from constants are constants; those from a variable are not.
TEST_F(TraceHostReaders, WhatComesOfConstantsIsConstant) {
  const at::Tensor outside = integers({1, 3});
  expect_equal_to_eager({4, 3}, [=](at::Tensor x) {
    at::Tensor places = outside.clone();
    places.select(0, 0).add_(1);
    return at::tensor_split(x, places, 0)[1].sum();
  });
  at::Tensor counter = variable("counter", integers({1, 3}));
  const auto split = [&](const at::Tensor& places) {
    return refusal_with({normal({4, 3}, 1)}, [&](const Tensors& in) {
      return Tensors{at::tensor_split(in[0], places.clone(), 0)[1].sum()};
    });
  };
  EXPECT_THAT(split(counter), AllOf(HasSubstr("'aten::tensor_split'"), HasSubstr(kOnTheHost)));
  EXPECT_EQ(split(outside), "no error");
  EXPECT_THAT(refusal_with({normal({4, 3}, 1)},
                           [&](const Tensors& in) {
                             at::Tensor places = outside.clone();
                             places.select(0, 0).copy_(in[0].sum().to(at::kLong).clamp(1, 2));
                             return Tensors{at::tensor_split(in[0], places, 0)[1].sum()};
                           }),
              HasSubstr(kOnTheHost));
}

TEST_F(TraceHostReaders, PackedSequences) {
  const auto roundtrip = [](const at::Tensor& x, const at::Tensor& lengths) {
    auto [data, sizes] = at::_pack_padded_sequence(x, lengths, true);
    return std::get<0>(at::_pad_packed_sequence(data * 2, sizes, true, 0, 3));
  };
  expect_equal_to_eager({2, 3, 4}, [&](at::Tensor x) { return roundtrip(x, integers({3, 2})); });
  EXPECT_THAT(refusal_with({normal({2, 3, 4}, 1), integers({3, 2})},
                           [&](const Tensors& in) { return Tensors{roundtrip(in[0], in[1])}; }),
              AllOf(HasSubstr("'aten::_pack_padded_sequence'"), HasSubstr("'lengths'")));
}

TEST_F(TraceHostReaders, RepeatInterleave) {
  EXPECT_THAT(refusal_with({integers({1, 2, 1})},
                           [](const Tensors& in) { return Tensors{at::repeat_interleave(in[0])}; }),
              AllOf(HasSubstr("'aten::repeat_interleave'"),
                    AnyOf(HasSubstr(kOnTheHost), HasSubstr("depends on tensor data"))));
}

// data() returns a tensor that the trace recognises only by its memory.
TEST_F(TraceHostReaders, SparseTensorsOfTheSameValuesDifferByTheirIndices) {
  expect_equal_to_eager({3}, [](at::Tensor x) {
    const at::Tensor first = at::sparse_coo_tensor(integers({0, 2, 3}).view({1, 3}), x, {4});
    const at::Tensor second = at::sparse_coo_tensor(integers({3, 0, 1}).view({1, 3}), x, {4});
    return first.data().to_dense() * 10 + second.data().to_dense();
  });
}

TEST_F(TraceHostReaders, SparseTensors) {
  const Tensors inputs{integers({0, 2, 2}).view({1, 3}), normal({3}, 1)};
  EXPECT_THAT(refusal_with(inputs,
                           [](const Tensors& in) {
                             return Tensors{at::sparse_coo_tensor(in[0], in[1]).to_dense()};
                           }),
              AllOf(HasSubstr("'aten::sparse_coo_tensor'"), HasSubstr(kOnTheHost)));
  const auto coalesced = [](const Tensors& in) {
    return at::sparse_coo_tensor(in[0], in[1], {4}).coalesce();
  };
  EXPECT_THAT(
      refusal_with(inputs, [&](const Tensors& in) { return Tensors{coalesced(in).values()}; }),
      AllOf(HasSubstr("'aten::values'"), HasSubstr("number of values of a coalesced")));
  EXPECT_THAT(
      refusal_with(inputs, [&](const Tensors& in) { return Tensors{coalesced(in)._indices()}; }),
      HasSubstr("number of values of a coalesced"));
  EXPECT_EQ(
      refusal_with(inputs, [&](const Tensors& in) { return Tensors{coalesced(in).to_dense()}; }),
      "no error");
}

}  // namespace
}  // namespace cohort::function
