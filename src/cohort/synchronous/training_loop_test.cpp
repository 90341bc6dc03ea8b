// SPDX-License-Identifier: Apache-2.0
// The work of a real loop, in run() and in function(): clipping by the global norm, groups of
// parameters, gradients in parts, and gradients of several steps. Both have the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/replicas/step_call.h"
#include "cohort/strategy/replica_trace.h"
#include "cohort/strategy/strategy_function.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/synchronous/workers/workers_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::own_parts;
using testing::run_workers;
using testing::Tensors;
using testing::text_of;
using testing::throws_error;

constexpr int kLoopSteps = 5;
constexpr std::int64_t kLoopRows = 8;

torch::nn::Sequential loop_net() {
  return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 4));
}

// The rows of all replicas in one step.
at::Tensor loop_batch(int step) {
  at::Generator generator = at::detail::createCPUGenerator(40 + static_cast<std::uint64_t>(step));
  return at::randn({kLoopRows, 6}, generator);
}

using LoopNet = Replicated<torch::nn::Sequential>;
// The step of a loop, and what it returns: one number of each replica.
using LoopStep = std::function<at::Tensor(const LoopNet&, const Optimizer&, const at::Tensor& x)>;

at::Tensor loop_loss(const LoopNet& net, const at::Tensor& x) {
  return average_loss(net->forward(x).square().mean(1), {.global_batch_size = kLoopRows});
}

AdamW loop_optimizer(const LoopNet& net) {
  return AdamW(net.parameters(),
               {.learning_rate = ExponentialDecay(
                    {.initial_learning_rate = 0.05, .decay_steps = 3, .decay_rate = 0.5}),
                .weight_decay = 0.1,
                .groups = {{.pattern = "*bias", .weight_decay = 0},
                           {.pattern = "*/2.weight", .learning_rate_factor = 0.5}}});
}

// The numbers of each step, and the values at the end.
Tensors looped(SynchronousStrategy& strategy, const LoopStep& step, bool is_traced) {
  const LoopNet net = strategy.replicate(loop_net);
  at::Generator generator = at::detail::createCPUGenerator(3);
  for (const Variable& each : net.variables())
    each.assign(at::rand(*each.spec().sizes, generator) - 0.5);
  const AdamW optimizer = loop_optimizer(net);
  const auto body = [&](const at::Tensor& x) { return step(net, optimizer, x); };
  auto traced = strategy.function(body);
  Tensors results;
  for (int i = 0; i < kLoopSteps; ++i) {
    const auto batch = own_parts(loop_batch(i), strategy);
    const PerReplica<at::Tensor> numbers = is_traced ? traced(batch) : strategy.run(body, batch);
    for (const at::Tensor& each : numbers.local_results()) results.push_back(each.detach());
  }
  for (const at::Tensor& value : testing::values_of(net.variables())) results.push_back(value);
  return results;
}

void expect_equal_bits(const Tensors& got, const Tensors& expected, const std::string& where) {
  ASSERT_EQ(got.size(), expected.size()) << where;
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << where << i;
}

// function() has the bits of run(), on 1, 2 and 3 replicas, and on 2 workers with 1 and 2.
void expect_one_result(const LoopStep& step) {
  for (int replicas = 1; replicas <= 3; ++replicas) {
    MirroredStrategy strategy(testing::cpu_devices(replicas));
    MirroredStrategy other(testing::cpu_devices(replicas));
    expect_equal_bits(looped(other, step, true), looped(strategy, step, false),
                      std::to_string(replicas) + " replicas, tensor ");
  }
  for (int replicas = 1; replicas <= 2; ++replicas) {
    const auto errors = run_workers(2, {.replicas = replicas}, [&](auto& strategy) {
      const Tensors expected = looped(strategy, step, false);
      expect_equal_bits(looped(strategy, step, true), expected,
                        std::to_string(replicas) + " replicas of 2 workers, tensor ");
    });
    for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
  }
}

TEST(TrainingLoop, GroupsOfParametersInRunAndFunction) {
  expect_one_result([](const LoopNet& net, const Optimizer& optimizer, const at::Tensor& x) {
    const at::Tensor loss = loop_loss(net, x);
    optimizer.minimize(loss);
    return loss.detach();
  });
}

// Each worker updates a share of each variable, by the numbers of its group.
TEST(TrainingLoop, GroupsOfParametersWithSharedOutSlots) {
  const LoopStep step = [](const LoopNet& net, const Optimizer& optimizer, const at::Tensor& x) {
    const at::Tensor loss = loop_loss(net, x);
    optimizer.minimize(loss);
    return loss.detach();
  };
  for (const bool is_traced : {false, true}) {
    std::vector<Tensors> whole(2);
    for (const bool shards : {false, true}) {
      const auto errors = run_workers(2, {.replicas = 2, .shards = shards}, [&](auto& strategy) {
        const auto own = static_cast<std::size_t>(strategy.worker());
        const Tensors results = looped(strategy, step, is_traced);
        if (shards) expect_equal_bits(results, whole[own], "tensor ");
        if (!shards) whole[own] = results;
      });
      for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
    }
  }
}

TEST(TrainingLoop, ClippingByTheGlobalNormInRunAndFunction) {
  expect_one_result([](const LoopNet& net, const Optimizer& optimizer, const at::Tensor& x) {
    const auto [clipped, norm] =
        clip_by_global_norm(optimizer.compute_gradients(loop_loss(net, x)), 0.05);
    optimizer.apply_gradients(clipped);
    return norm;
  });
}

TEST(TrainingLoop, GradientsInPartsInRunAndFunction) {
  expect_one_result([](const LoopNet& net, const Optimizer& optimizer, const at::Tensor& x) {
    const auto gradients = gradients_in_parts(optimizer, 2, [&](int part) {
      return loop_loss(net, at::tensor_split(x, 2)[static_cast<std::size_t>(part)]);
    });
    const auto [clipped, norm] = clip_by_global_norm(gradients, 0.05);
    optimizer.apply_gradients(clipped);
    return norm;
  });
}

// The norm of the replicas' sum is that of one process.
TEST(TrainingLoop, TheNormIsThatOfTheWholeBatch) {
  const LoopStep step = [](const LoopNet& net, const Optimizer& optimizer, const at::Tensor& x) {
    const auto [clipped, norm] =
        clip_by_global_norm(optimizer.compute_gradients(loop_loss(net, x)), 0.05);
    optimizer.apply_gradients(clipped);
    return norm;
  };
  MirroredStrategy one({"CPU:0"}), two({"CPU:0", "CPU:1"});
  const Tensors expected = looped(one, step, false), got = looped(two, step, true);
  for (int i = 0; i < kLoopSteps; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_TRUE(got[2 * at].equal(got[2 * at + 1])) << i;
    EXPECT_TRUE(at::allclose(got[2 * at], expected[at], 1e-5)) << i;
  }
}

TEST(TrainingLoop, AFunctionRefusesGradientsThatOnlySomeReplicasHave) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const Variable v = two.variable("v", torch::ones({})), w = two.variable("w", torch::ones({}));
  const SGD sgd({v, w}, {.learning_rate = 1.0});
  auto step = two.function([&] {
    at::Tensor loss = v.tensor() * 2;
    if (get_replica_context()->local_replica_id() == 0) loss = loss + w.tensor();
    sgd.apply_gradients(clip_by_global_norm(sgd.compute_gradients(loss), 1.0).gradients);
  });
  EXPECT_THAT([&] { step(); },
              throws_error(ErrorCode::invalid_argument, "'w' without a gradient in replica 1"));
}

// A call that returns with how many threads a replica computes.
class LoopThreadsCall final : public internal::StepCall {
 public:
  std::string text() const override { return "threads of the loop"; }
  std::unique_ptr<const internal::JoinedCall> join(
      const std::vector<const internal::StepCall*>&) const override {
    return std::make_unique<Joined>();
  }

 private:
  class Joined final : public internal::JoinedCall {
    std::vector<at::Tensor> run(internal::StepReplica&, std::vector<at::Tensor>) const override {
      return {torch::full({}, at::get_num_threads(), torch::kFloat)};
    }
  };
};

TEST(TrainingLoop, PartsOfAFunctionAreComputedWithOneThreadAndTheRestIsNot) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  OneDeviceStrategy one("CPU:0");
  const Variable v = one.variable("v", torch::zeros({}));
  const SGD sgd({v}, {.learning_rate = 1.0});
  const auto threads = [] {
    return internal::ReplicaTrace::current()
        ->record(std::make_shared<LoopThreadsCall>(), {}, {},
                 [] { return std::vector<at::Tensor>{torch::ones({})}; })
        .at(0);
  };
  auto step = one.function([&] {
    sgd.apply_gradients(gradients_in_parts(sgd, 2, [&](int) { return v.tensor() * threads(); }));
    return threads();
  });
  EXPECT_EQ(step()[0].item<float>(), 3);
  EXPECT_EQ(v.read().item<float>(), -2);
  EXPECT_EQ(at::get_num_threads(), 3);
  at::set_num_threads(before);
}

// Two steps add up, the third one clips and updates.
Tensors accumulated(SynchronousStrategy& strategy, bool is_traced) {
  const LoopNet net = strategy.replicate(loop_net);
  at::Generator generator = at::detail::createCPUGenerator(3);
  for (const Variable& each : net.variables())
    each.assign(at::rand(*each.spec().sizes, generator) - 0.5);
  const AdamW optimizer = loop_optimizer(net);
  const AccumulatedGradients sums(strategy, optimizer);
  const auto loss_of = [&](const at::Tensor& x) { return loop_loss(net, x) / 3; };
  const auto add = [&](const at::Tensor& x) { sums.add(loss_of(x)); };
  const auto update = [&](const at::Tensor& x) {
    sums.add(loss_of(x));
    const auto [clipped, norm] = clip_by_global_norm(sums.take(), 0.05);
    optimizer.apply_gradients(clipped);
    return norm;
  };
  auto traced_add = strategy.function(add);
  auto traced_update = strategy.function(update);
  Tensors results;
  for (int i = 0; i < 6; ++i) {
    const auto batch = own_parts(loop_batch(i), strategy);
    if (i % 3 == 2) {
      results.push_back((is_traced ? traced_update(batch) : strategy.run(update, batch))[0]);
    } else if (is_traced) {
      traced_add(batch);
    } else {
      strategy.run(add, batch);
    }
  }
  EXPECT_EQ(optimizer.iterations(), 2);
  for (const at::Tensor& value : testing::values_of(net.variables())) results.push_back(value);
  return results;
}

// Regression: function() refused them, since their rows were read while the step was traced.
TEST(TrainingLoop, SparseGradientsAreClippedAndAccumulatedInRunAndFunction) {
  enum class Use : std::uint8_t { clip, accumulate, parts };
  const auto trained = [](Use use, int replicas, bool is_traced, bool is_sparse) {
    MirroredStrategy strategy(testing::cpu_devices(replicas));
    const auto net = strategy.replicate([is_sparse] {
      return torch::nn::Embedding(torch::nn::EmbeddingOptions(11, 3).sparse(is_sparse));
    });
    net.parameters()[0].assign(at::arange(33, at::TensorOptions(at::kFloat)).view({11, 3}) * 0.1);
    const SGD sgd(net.parameters(), {.learning_rate = 0.1});
    const AccumulatedGradients sums(strategy, sgd);
    const auto loss_of = [&net](const at::Tensor& ids) {
      return average_loss(net->forward(ids).square().sum({1, 2}), {.global_batch_size = 8});
    };
    const auto step = [&](const at::Tensor& ids) {
      if (use == Use::clip)
        return sgd.apply_gradients(
            clip_by_global_norm(sgd.compute_gradients(loss_of(ids)), 0.5).gradients);
      if (use == Use::parts) {
        const auto halves = ids.tensor_split(2);
        return sgd.apply_gradients(gradients_in_parts(
            sgd, 2, [&](int i) { return loss_of(halves[static_cast<std::size_t>(i)]); }));
      }
      sums.add(loss_of(ids));
      sgd.apply_gradients(sums.take());
    };
    auto traced = strategy.function(step);
    for (int i = 0; i < 3; ++i) {
      const at::Tensor ids =
          at::arange(8 * 5, at::TensorOptions(at::kLong)).mul(i + 2).remainder(11 - i).view({8, 5});
      const auto batch = own_parts(ids, strategy);
      if (is_traced) {
        traced(batch);
      } else {
        strategy.run(step, batch);
      }
    }
    return net.parameters()[0].read();
  };
  for (const Use use : {Use::clip, Use::accumulate, Use::parts}) {
    for (const int replicas : {1, 2}) {
      const at::Tensor expected = trained(use, replicas, false, false);
      for (const bool is_traced : {false, true})
        EXPECT_TRUE(trained(use, replicas, is_traced, true).allclose(expected, 1e-6))
            << static_cast<int>(use) << ", " << replicas << ", " << is_traced;
    }
  }
}

TEST(TrainingLoop, GradientsOfSeveralStepsInRunAndFunction) {
  MirroredStrategy one({"CPU:0"});
  const Tensors of_one = accumulated(one, false);
  for (int replicas = 1; replicas <= 3; ++replicas) {
    MirroredStrategy strategy(testing::cpu_devices(replicas));
    MirroredStrategy other(testing::cpu_devices(replicas));
    const Tensors expected = accumulated(strategy, false);
    expect_equal_bits(accumulated(other, true), expected, std::to_string(replicas) + " replicas, ");
    testing::expect_close(expected, of_one, 1e-5);
  }
  const auto errors = run_workers(2, {}, [&](auto& strategy) {
    testing::expect_close(accumulated(strategy, strategy.worker() >= 0), of_one, 1e-5);
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

// The sums of several steps are the gradient of one batch with their rows.
TEST(TrainingLoop, GradientsOfSeveralStepsAreThoseOfOneBatch) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const Variable v = two.variable("v", torch::ones({3}, torch::kDouble));
  const SGD sgd({v}, {.learning_rate = 1.0});
  const AccumulatedGradients sums(two, sgd);
  const at::Tensor rows_of_all = torch::arange(1, 7, torch::kDouble).view({2, 3});
  const PerReplica<at::Tensor> x({rows_of_all[0], rows_of_all[1]});
  const at::Tensor expected = 1 - 3 * rows_of_all.sum(0);
  for (int i = 0; i < 3; ++i)
    two.run([&](const at::Tensor& rows) { sums.add((v.tensor() * rows).sum()); }, x);
  EXPECT_TRUE(v.read().equal(torch::ones({3}, torch::kDouble)));
  two.run([&] { sgd.apply_gradients(sums.take()); });
  EXPECT_TRUE(v.read().equal(expected));
  two.run([&] { sgd.apply_gradients(sums.take()); });
  EXPECT_TRUE(v.read().equal(expected)) << "they begin again with zero";
}

TEST(TrainingLoop, SumsOfSeveralStepsRefuseSharedValuesAndOtherContexts) {
  CentralStorageStrategy central({"CPU:0", "CPU:1"});
  const Variable shared = central.variable("v", torch::ones({}));
  const SGD of_shared({shared}, {.learning_rate = 1.0});
  EXPECT_THAT([&] { AccumulatedGradients(central, of_shared); },
              throws_error(ErrorCode::unimplemented, "of which 2 replicas share one"));
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const Variable v = two.variable("v", torch::ones({}));
  const SGD sgd({v}, {.learning_rate = 1.0});
  const AccumulatedGradients sums(two, sgd);
  const auto scope = two.scope();
  EXPECT_THAT([&] { sums.take(); },
              throws_error(ErrorCode::failed_precondition, "a replica context for take()"));
  EXPECT_THAT([&] { AccumulatedGradients(two, sgd); },
              throws_error(ErrorCode::already_exists, "accumulated/v"));
}

}  // namespace
}  // namespace cohort
