// SPDX-License-Identifier: Apache-2.0
// Buffers on servers that a step writes in place: the effects with which the server combines the
// writes of several workers.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "cohort/function/program/wire.h"
#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

// Keeps the arguments of merge_average().
class MergingHost final : public internal::EffectHandler {
 public:
  struct Merged {
    at::Tensor value;
    at::Tensor statistic;
    double momentum;
  };
  Tensors iterator_next(std::int64_t) override { return {}; }
  void update(internal::Effect effect) override {
    if (effect.kind == internal::Effect::Kind::merge_average)
      merged.push_back({effect.tensors[0], effect.tensors[1], effect.hyper[0]});
    else
      assigned.emplace_back(effect.kind, effect.tensors[0]);
  }

  std::vector<std::pair<internal::Effect::Kind, at::Tensor>> assigned;
  std::vector<Merged> merged;
};

class TraceBuffers : public TraceCase {
 protected:
  Traced traced_one(const std::function<void(at::Tensor)>& body) {
    return traced({normal({4, 3}, 0)}, {normal({4, 3}, 1)}, [&](const Tensors& in) {
      body(in[0]);
      return Tensors{};
    });
  }
  std::vector<std::string> effects(const Traced& traced) {
    std::vector<std::string> names;
    for (const Op& op : decode_program(traced.bytes).ops) {
      if (op.name.starts_with("cohort::")) names.push_back(op.name.substr(8));
    }
    return names;
  }
  std::vector<std::string> op_names(const Traced& traced) {
    std::vector<std::string> names;
    for (const Op& op : decode_program(traced.bytes).ops) names.push_back(op.name);
    return names;
  }
  MergingHost run(const Traced& traced) {
    MergingHost host;
    auto program = PreparedProgram::decode(traced.bytes);
    program->run(Tensors{normal({4, 3}, 2)}, values_of(program->info()), host, 1);
    return host;
  }
  at::Tensor counter() { return variable("count", torch::zeros({}, torch::kLong)); }
  // The running averages of a batch norm of three features.
  void averages() {
    mean_ = variable("mean", normal({3}, 5));
    variance_ = variable("variance", normal({3}, 6).abs());
  }
  at::Tensor batch_norm(const at::Tensor& x, double momentum, bool is_training = true) {
    return torch::batch_norm(x, {}, {}, mean_, variance_, is_training, momentum, 1e-5, false);
  }

  at::Tensor mean_, variance_;
};

TEST_F(TraceBuffers, IntegersSendTheDifference) {
  at::Tensor count = counter();
  Traced result = traced_one([&](at::Tensor) { count.add_(3).sub_(1); });
  EXPECT_THAT(effects(result), ElementsAre("assign_add"));
  count.fill_(40);
  MergingHost host = run(result);
  EXPECT_TRUE(bits_equal(host.assigned.at(0).second, torch::full({}, 2, torch::kLong)));
}

TEST_F(TraceBuffers, PartsOfIntegersSendTheDifferenceToo) {
  at::Tensor counts = variable("counts", torch::zeros({3}, torch::kInt));
  Traced result = traced_one([&](at::Tensor) {
    counts.select(0, 1).add_(2);
    counts.select(0, 2).add_(counts.select(0, 1));
  });
  EXPECT_THAT(effects(result), ElementsAre("assign_add"));
  EXPECT_TRUE(bits_equal(run(result).assigned.at(0).second, torch::tensor({0, 2, 2}, torch::kInt)));
}

TEST_F(TraceBuffers, OtherWritesSendTheValueAlone) {
  at::Tensor count = counter(), real = variable("real", torch::zeros({3}));
  Traced result = traced_one([&](at::Tensor x) {
    count.add_(1);
    count.mul_(2);
    real.add_(x.sum(0));
  });
  EXPECT_THAT(effects(result), ElementsAre("assign", "assign"));
  EXPECT_THAT(op_names(result), Not(Contains("aten::clone"))) << "nobody needs the old value";
}

TEST_F(TraceBuffers, BatchNormSendsTheBatchsStatistics) {
  averages();
  Traced result = traced_one([&](at::Tensor x) { batch_norm(x, 0.1); });
  EXPECT_THAT(effects(result), ElementsAre("merge_average", "merge_average"));
  const auto program = PreparedProgram::decode(result.bytes);
  for (const auto& used : program->info().variables) EXPECT_TRUE(used.is_merged) << used.name;
  const at::Tensor x = normal({4, 3}, 2);
  MergingHost host = run(result);
  ASSERT_EQ(host.merged.size(), 2);
  EXPECT_EQ(host.merged[0].momentum, 0.1);
  EXPECT_TRUE(torch::allclose(host.merged[0].statistic, x.mean(0), 1e-4, 1e-5));
  EXPECT_TRUE(torch::allclose(host.merged[1].statistic, x.var(0), 1e-4, 1e-5));
  batch_norm(x, 0.1);
  EXPECT_TRUE(bits_equal(host.merged[0].value, mean_));
  EXPECT_TRUE(bits_equal(host.merged[1].value, variance_));
}

TEST_F(TraceBuffers, SeveralBatchesOfAStepAreOneMove) {
  averages();
  Traced result = traced_one([&](at::Tensor x) {
    batch_norm(x, 0.1);
    batch_norm(x * 3, 0.5);
  });
  const at::Tensor x = normal({4, 3}, 2);
  MergingHost host = run(result);
  ASSERT_EQ(host.merged.size(), 2);
  EXPECT_DOUBLE_EQ(host.merged[0].momentum, 0.55);
  const at::Tensor expected = (x.mean(0) * 0.1 * 0.5 + x.mul(3).mean(0) * 0.5) / 0.55;
  EXPECT_TRUE(torch::allclose(host.merged[0].statistic, expected, 1e-4, 1e-5));
}

TEST_F(TraceBuffers, InstanceNormIsAnAverageToo) {
  averages();
  Traced result = traced({normal({4, 3, 5}, 0)}, {normal({4, 3, 5}, 1)}, [&](const Tensors& in) {
    return Tensors{torch::instance_norm(in[0], {}, {}, mean_, variance_, true, 0.25, 1e-5, false)};
  });
  EXPECT_THAT(effects(result), ElementsAre("merge_average", "merge_average"));
}

TEST_F(TraceBuffers, WhatStaysAsItIsIsNotSent) {
  averages();
  Traced result = traced_one([&](at::Tensor x) {
    batch_norm(x, 0.1, false);
    batch_norm(x, 0);
  });
  EXPECT_THAT(effects(result), IsEmpty());
}

TEST_F(TraceBuffers, AnAverageThatIsWrittenOtherwiseToo) {
  averages();
  Traced result = traced_one([&](at::Tensor x) {
    batch_norm(x, 0.1);
    mean_.mul_(2);
  });
  EXPECT_THAT(effects(result), ElementsAre("assign", "merge_average"));
}

// Rounding of the running variance in float32 must not make a statistic negative.
TEST_F(TraceBuffers, AVariancesStatisticIsNeverNegative) {
  averages();
  Traced result = traced({torch::full({4, 3}, 1.0)}, {torch::full({4, 3}, 2.0)},
                         [&](const Tensors& in) { return Tensors{batch_norm(in[0], 0.1)}; });
  auto program = PreparedProgram::decode(result.bytes);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    MergingHost host;
    const Tensors values{normal({3}, seed), normal({3}, seed + 100).abs().mul(1e6)};
    program->run(Tensors{torch::full({4, 3}, 3.0)}, values, host, 1);
    EXPECT_TRUE(host.merged.at(1).statistic.ge(0).all().item<bool>());
  }
}

}  // namespace
}  // namespace cohort::function
