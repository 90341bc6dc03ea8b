// SPDX-License-Identifier: Apache-2.0
// Updates of local variables inside run() are applied if there is one replica, and refused if there
// are several, since nothing reduces them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using testing::throws_error;

class ReplicaUpdates : public ::testing::Test {
 protected:
  at::Tensor loss(const at::Tensor& x) const { return w.tensor().mul(x).sum(); }
  double value() const { return w.read().item().toDouble(); }

  Variable w = local_variable("w", at::ones({1}));
  SGD sgd{{w}, {.learning_rate = 0.5}};
  MirroredStrategy two{{"CPU:0", "CPU:1"}};
  const PerReplica<at::Tensor> parts{{at::tensor({1.0F}), at::tensor({3.0F})}};
};

// Regression: each replica's update was applied to the result of the one before.
TEST_F(ReplicaUpdates, OfSeveralReplicasAreRefused) {
  const auto refused = [&](const std::function<void(const at::Tensor&)>& update,
                           const std::string& call) {
    EXPECT_THAT(
        [&] { two.run([&](const at::Tensor& x) { update(x); }, parts); },
        throws_error(ErrorCode::unimplemented, call + "] expected variables of the strategy"));
  };
  refused([&](const at::Tensor& x) { sgd.minimize(loss(x)); }, "[optimizer.minimize");
  refused([&](const at::Tensor& x) { sgd.apply_gradients(sgd.compute_gradients(loss(x))); },
          "[optimizer.apply_gradients");
  refused([&](const at::Tensor& x) { w.assign(x); }, "[variable.assign");
  refused([&](const at::Tensor& x) { w.assign_add(x); }, "[variable.assign");
  refused([&](const at::Tensor& x) { w.assign_sub(x); }, "[variable.assign");
  refused(
      [&](const at::Tensor& x) {
        apply_updates({sgd.rule(), sgd.name()}, std::vector{Update{w, x}}, {});
      },
      "[variable.apply");
  EXPECT_EQ(value(), 1) << "nothing was written";
}

// Regression: replicas read the learning rate of the next update before the first one had counted
// the last, and the update failed because they had other ones.
TEST_F(ReplicaUpdates, OfARunFollowItsScheduleInAllReplicas) {
  MirroredStrategy four({"CPU:0", "CPU:1", "CPU:2", "CPU:3"});
  const Variable v = four.variable("v", at::ones({1}));
  const SGD decayed({v},
                    {.learning_rate = ExponentialDecay(
                         {.initial_learning_rate = 0.1, .decay_steps = 10, .decay_rate = 0.5})});
  for (std::int64_t run = 0; run < 300; ++run) {
    four.run([&] {
      for (std::int64_t update = 1; update <= 2; ++update) {
        decayed.minimize(v.tensor().sum() * 1e-6);
        EXPECT_EQ(decayed.iterations(), 2 * run + update);
      }
    });
  }
}

// The alternative that the error message suggests.
TEST_F(ReplicaUpdates, ReducedGradientsAreAppliedOutsideOfRun) {
  const auto gradients = two.run(
      [&](const at::Tensor& x) { return sgd.compute_gradients(loss(x)).at(0).first; }, parts);
  const at::Tensor sum = two.reduce(ReduceOp::sum, gradients);
  sgd.apply_gradients({{sum, w}});
  EXPECT_EQ(value(), 1 - 0.5 * 4);
}

TEST_F(ReplicaUpdates, OfOneReplicaAndOutsideOfReplicasAreApplied) {
  OneDeviceStrategy one("CPU:0");
  one.run([&] { sgd.minimize(loss(at::ones({1}))); });
  EXPECT_EQ(value(), 0.5);
  MirroredStrategy mirrored({"CPU:0"});
  mirrored.run([&] { w.assign_add(at::ones({1})); });
  EXPECT_EQ(value(), 1.5);
  const StrategyScope scope = two.scope();
  w.assign_sub(at::ones({1}));
  EXPECT_EQ(value(), 0.5);
}

TEST_F(ReplicaUpdates, WorkersOfOneReplicaEachAreSeveral) {
  InProcessWorkers workers(2);
  // After the error the worker waits for the other one, which does not come, to tell it.
  MultiWorkerMirroredStrategy strategy(
      workers.group(0), {.devices = {"CPU:0"}, .timeout = std::chrono::milliseconds(20)});
  EXPECT_THAT([&] { strategy.run([&] { w.assign_add(at::ones({1})); }); },
              throws_error(ErrorCode::unimplemented, "of 2 replicas"));
}

// Regression: the optimizer of replica 0 made the step, and what another replica's was told had no
// effect; with another rule the replicas got different values.
TEST_F(ReplicaUpdates, OfOtherOptimizersInSomeReplicasAreRefused) {
  const Variable v = two.variable("v", at::ones({1}));
  const SGD slow({v}, {.learning_rate = 0.1}), fast({v}, {.learning_rate = 1});
  const Adam adam({v});
  const auto minimize_with = [&](const Optimizer& first, const Optimizer& second) {
    two.run(
        [&](const at::Tensor& x) {
          const bool is_first = get_replica_context()->replica_id_in_sync_group() == 0;
          (is_first ? first : second).minimize(v.tensor().mul(x).sum());
        },
        parts);
  };
  const std::string text =
      "expected the same optimizer with the same hyperparameters in all replicas";
  EXPECT_THAT([&] { minimize_with(slow, fast); }, throws_error(ErrorCode::invalid_argument, text));
  EXPECT_THAT([&] { minimize_with(adam, slow); }, throws_error(ErrorCode::invalid_argument, text));
  EXPECT_EQ(v.read().item<float>(), 1) << "nothing was written";
  minimize_with(fast, fast);
  EXPECT_EQ(v.read().item<float>(), -3);
}

// Regression: the error named merge_call(), which the program does not call, and no other call.
TEST_F(ReplicaUpdates, ThatMeetABackwardPassAreNamed) {
  const Variable v = two.variable("v", at::ones({1}));
  const SGD one({v}, {.learning_rate = 1});
  const auto step = [&](const at::Tensor& x) {
    const ReplicaContext& replica = *get_replica_context();
    const at::Tensor own = v.tensor().mul(x);
    const bool is_first = replica.replica_id_in_sync_group() == 0;
    const at::Tensor all = replica.all_reduce(ReduceOp::sum, is_first ? own : own.detach());
    one.minimize(all.sum().add(own.sum()));
  };
  EXPECT_THAT([&] { two.run(step, parts); },
              throws_error(ErrorCode::invalid_argument,
                           "[strategy.run] expected the same call in all replicas, got gradient of "
                           "all_reduce(sum) in replica 0 and apply_gradients in replica 1"));
}

}  // namespace
}  // namespace cohort
