// SPDX-License-Identifier: Apache-2.0
// Tensors that share memory with another one and were made without an operator: data(),
// variable_data().
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <array>

#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using ::testing::HasSubstr;

using Alias = at::Tensor (*)(const at::Tensor&);
constexpr std::array<Alias, 2> kAliases = {
    +[](const at::Tensor& tensor) -> at::Tensor { return tensor.data(); },
    +[](const at::Tensor& tensor) -> at::Tensor { return tensor.variable_data(); }};

using Reshape = void (*)(at::Tensor&);
constexpr std::array<Reshape, 9> kReshapes = {
    +[](at::Tensor& alias) { alias.t_(); },
    +[](at::Tensor& alias) { alias.transpose_(0, 1); },
    +[](at::Tensor& alias) { alias.swapaxes_(0, 1); },
    +[](at::Tensor& alias) { alias.swapdims_(0, 1); },
    +[](at::Tensor& alias) { alias.unsqueeze_(0); },
    +[](at::Tensor& alias) { alias.unsqueeze_(1).squeeze_(1).t_(); },
    +[](at::Tensor& alias) { alias.as_strided_({3}, {2}); },
    +[](at::Tensor& alias) { alias.resize_({5}); },
    +[](at::Tensor& alias) { alias.resize_as_(at::zeros({6})); }};

class TraceAliases : public TraceCase {
 protected:
  // Runs the program on the variables themselves, as strategy.function() does.
  Tensors replay_here(const Traced& traced, const Tensors& inputs) {
    auto program = PreparedProgram::decode(traced.bytes);
    return program->run(inputs, values_of(program->info(), /*is_shared=*/true), host_, 1);
  }
};

// The program reshaped the variable's own tensor: the next call found it in the other shape.
TEST_F(TraceAliases, OfVariablesChangeTheirShapeAlone) {
  for (const Alias alias_of : kAliases) {
    for (std::size_t i = 0; i < kReshapes.size(); ++i) {
      const at::Tensor v = variable("v", normal({2, 3}, 7), /*is_remote=*/false);
      const auto body = [&](const Tensors& in) {
        at::Tensor alias = alias_of(v);
        kReshapes.at(i)(alias);
        return Tensors{alias * in[0], v * in[0], alias.contiguous()};
      };
      const Traced made = traced({normal({}, 0)}, {normal({}, 1)}, body);
      EXPECT_EQ(v.sizes(), at::IntArrayRef({2, 3})) << "reshape " << i;
      const auto program = PreparedProgram::decode(made.bytes);
      const Tensors variables = {v};
      for (std::uint64_t seed : {2, 3}) {
        const Tensors expected = body({normal({}, seed)});
        const Tensors got = program->run(Tensors{normal({}, seed)}, variables, host_, 1);
        for (std::size_t k = 0; k < expected.size(); ++k)
          EXPECT_TRUE(bits_equal(got[k], expected[k])) << "reshape " << i << ", output " << k;
        EXPECT_EQ(variables[0].sizes(), at::IntArrayRef({2, 3})) << "reshape " << i;
        EXPECT_TRUE(variables[0].is_contiguous()) << "reshape " << i;
      }
    }
  }
}

// On a server the values came back transposed.
TEST_F(TraceAliases, WritesThroughATransposedOneReachTheServerInOrder) {
  const at::Tensor buffer = variable("buffer", normal({3, 3}, 7));
  const Traced made = traced({normal({3, 3}, 0)}, {normal({3, 3}, 1)}, [&](const Tensors& in) {
    at::Tensor alias = buffer.data();
    alias.t_();
    alias.copy_(in[0]);
    return Tensors{alias + 0, buffer + 0};
  });
  const at::Tensor x = normal({3, 3}, 2);
  const Tensors got = replay(made, {x});
  EXPECT_TRUE(bits_equal(got[0], x));
  EXPECT_TRUE(bits_equal(got[1], x.t().contiguous()));
  ASSERT_EQ(host_.assigned.size(), 1);
  EXPECT_TRUE(bits_equal(host_.assigned[0].value, x.t().contiguous()));
}

// It was refused as a write in place into the variable, of which only a copy would change.
TEST_F(TraceAliases, OfParametersOfAServerMayBeReshaped) {
  const at::Tensor w = parameter("w", {4, 3});
  expect_equal_to_eager({2, 3}, [&](at::Tensor x) {
    at::Tensor alias = w.data();
    return x.matmul(alias.t_()) + w.sum();
  });
  EXPECT_THAT(refusal([&](at::Tensor x) {
                at::Tensor alias = w.data();
                alias.t_();
                alias.add_(1);
                return x.sum();
              }),
              HasSubstr("writes in place into variable 'w'"));
  EXPECT_EQ(w.sizes(), at::IntArrayRef({4, 3}));
}

TEST_F(TraceAliases, OfResultsAndArgumentsChangeTheirShapeAlone) {
  expect_equal_to_eager({2, 3}, [](at::Tensor x) {
    at::Tensor y = x * 2, alias = y.data(), other = y.data(), of_x = x.data();
    at::Tensor first = other + 1;
    alias.t_();
    of_x.t_();
    alias.add_(1);
    other.unsqueeze_(0);
    return at::cat({first.flatten(), y.flatten(), alias.flatten(), other.flatten(), x.flatten(),
                    of_x.flatten()});
  });
}

TEST_F(TraceAliases, AnOutArgumentThatIsResizedKeepsTheOtherTensor) {
  expect_equal_to_eager({2, 3}, [](at::Tensor x) {
    at::Tensor y = x * 2, alias = y.data();
    const at::Tensor before = alias + 1;
    at::add_out(alias, x[0], x[1]);
    return at::cat({y.flatten(), alias.flatten(), before.flatten()});
  });
}

TEST_F(TraceAliases, TheVariableItselfKeepsItsShape) {
  at::Tensor v = variable("v", normal({2, 3}, 7), /*is_remote=*/false);
  EXPECT_THAT(refusal([&](at::Tensor x) { return v.t_().sum() + x; }),
              HasSubstr("got other memory or another shape inside the function"));
  EXPECT_EQ(v.sizes(), at::IntArrayRef({2, 3}));
}

}  // namespace
}  // namespace cohort::function
