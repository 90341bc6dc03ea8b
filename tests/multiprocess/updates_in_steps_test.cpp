// SPDX-License-Identifier: Apache-2.0
// Steps that read variables after updating them, and buffers that several workers write, on real
// servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/core/clock.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/state_walk.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using testing::TestCluster;

constexpr int kSteps = 6;

at::Tensor ramp(std::int64_t count) { return torch::linspace(-1.0, 1.5, count); }

at::Tensor batch(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step));
  return torch::randn({4, 3});
}

// Reads after updates of each kind; w and b are trainable, `mean` is not.
struct Step {
  Variable w, b, mean;
  SGD optimizer{{w, b}, {.learning_rate = 0.5, .momentum = 0.9}};

  at::Tensor run(const at::Tensor& x) {
    for (int i = 0; i < 2; ++i)
      optimizer.minimize(x.mul(w.tensor()).sum(1).add(b.tensor()).tanh().mean());
    w.assign(w.tensor().detach().clamp(-0.75, 0.75));
    w.scatter_add(torch::tensor({2, 0, 2}, torch::kLong), x.mean(0));
    w.scatter_max(torch::tensor({1}, torch::kInt), x.mean().view({1}));
    mean.tensor().mul_(0.5);
    mean.assign_add(x.mean(0));
    mean.scatter_update(torch::tensor({1}, torch::kLong), w.tensor().detach().slice(0, 0, 1));
    mean.tensor().add_(w.tensor().detach());
    b.assign_sub(b.read() * 0.25);
    return torch::cat({w.tensor().detach(), b.tensor().detach(), mean.tensor()});
  }
};

class UpdatesInSteps : public ::testing::Test {
 protected:
  explicit UpdatesInSteps(int workers = 1)
      : cluster({.workers = workers, .ps = 2, .command = {COHORT_COMMAND, "server"}}),
        strategy(cluster.resolver()),
        coordinator(strategy) {}

  // Waits until the server has applied `count` pushes; returns false after a minute.
  bool await_pushes(const std::string& ps, std::uint64_t count) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (!deadline.has_expired()) {
      if (cluster.health(ps).pushes_applied >= count) return true;
    }
    return false;
  }

  TestCluster cluster;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
};

// Regression: a term of a loss that had read() in place of tensor() was not trained, without a
// word.
TEST_F(UpdatesInSteps, PenaltiesOfValuesThatWereReadAreTrained) {
  const Variable by_tensor = strategy.variable("by tensor", ramp(3)),
                 by_read = strategy.variable("by read", ramp(3)),
                 there = strategy.variable("in run()", ramp(3)),
                 here = local_variable("here", ramp(3));
  const SGD optimizer({by_tensor, by_read}, {.learning_rate = 0.5}),
      of_run({there}, {.learning_rate = 0.5}), local({here}, {.learning_rate = 0.5});
  const auto loss_of = [&](const Variable& v, const at::Tensor& x, const at::Tensor& term) {
    return x.mul(v.tensor()).sum() + term.square().sum() * 0.25;
  };
  const Function step([&](at::Tensor x) {
    optimizer.minimize(loss_of(by_tensor, x, by_tensor.tensor()) +
                       loss_of(by_read, x, by_read.read()));
  });
  for (int i = 0; i < 3; ++i) {
    coordinator.schedule(step, batch(i));
    local.minimize(loss_of(here, batch(i), here.read()));
    strategy.run([&] { of_run.minimize(loss_of(there, batch(i), there.read())); });
  }
  coordinator.join();
  for (const Variable& other : {by_read, there, here})
    EXPECT_TRUE(torch::equal(by_tensor.read(), other.read())) << other.name();
  EXPECT_FALSE(torch::equal(by_read.read(), ramp(3)));
}

// In a closure, in run(), and on this process; each step uses rows 3 to 6, some of them twice.
TEST_F(UpdatesInSteps, SparseGradientsAreSentAsRows) {
  constexpr std::int64_t kRows = 100'000;
  const auto pushed = [&] {
    return cluster.health("ps:0").pushed_bytes + cluster.health("ps:1").pushed_bytes;
  };
  for (const bool lazy_rows : {false, true}) {
    const std::string suffix = lazy_rows ? " lazy" : "";
    const at::Tensor start = torch::linspace(-1, 1, kRows * 2).view({kRows, 2});
    const Variable scheduled = strategy.variable("scheduled" + suffix, start),
                   there = strategy.variable("in run()" + suffix, start),
                   here = local_variable("here" + suffix, start.clone());
    const auto adam_of = [&](const Variable& v) {
      return Adam({v}, {.learning_rate = 0.5, .lazy_rows = lazy_rows});
    };
    const Adam of_closure = adam_of(scheduled), of_run = adam_of(there), local = adam_of(here);
    const auto loss_of = [&](const Variable& v, const at::Tensor& x) {
      const at::Tensor ids = torch::tensor({3, 5, 3, 6}, torch::kLong);
      return torch::embedding(v.tensor(), ids, -1, false, /*sparse=*/true).mul(x.sum()).square();
    };
    const Function step([&](at::Tensor x) { of_closure.minimize(loss_of(scheduled, x).sum()); });
    const std::uint64_t before = pushed();
    for (int i = 0; i < 3; ++i) {
      coordinator.schedule(step, batch(i));
      local.minimize(loss_of(here, batch(i)).sum());
      strategy.run([&] { of_run.minimize(loss_of(there, batch(i)).sum()); });
    }
    coordinator.join();
    EXPECT_EQ(pushed() - before, 6 * 3 * (2 * sizeof(float) + sizeof(std::int64_t)))
        << "six pushes of three rows with their ids";
    EXPECT_TRUE(torch::equal(scheduled.read(), here.read())) << suffix;
    EXPECT_TRUE(torch::equal(there.read(), here.read())) << suffix;
  }
}

// Saves and restores what a training has on servers, also on this process, and in chunks of rows.
TEST_F(UpdatesInSteps, TheStateOfATrainingGoesOnWhereItWasSaved) {
  const auto adam_of = [](const std::vector<Variable>& all) {
    return Adam(all, {.learning_rate = 0.1, .name = "adam of the test"});
  };
  const std::vector<Variable> there = {strategy.variable("table", ramp(60).view({20, 3})),
                                       strategy.variable("scale", torch::ones({}))},
                              here = {local_variable("table", torch::zeros({20, 3})),
                                      local_variable("scale", torch::zeros({}))};
  const Adam remote = adam_of(there), local = adam_of(here);
  const auto train = [&](const std::vector<Variable>& all, const Adam& adam, int begin) {
    for (int step = begin; step < begin + 3; ++step) {
      adam.minimize((all[0].tensor().matmul(batch(step).t()) * all[1].tensor()).square().sum());
    }
  };
  const auto train_there = [&](int begin) { strategy.run([&] { train(there, remote, begin); }); };
  train_there(0);
  for (const std::uint64_t chunk_bytes : {std::uint64_t{1} << 20, std::uint64_t{40}}) {
    const std::vector<VariableRecord> saved = whole_state(there, {.chunk_bytes = chunk_bytes});
    ASSERT_EQ(saved[0].values.at(0).slots.size(), 1U);
    EXPECT_EQ(saved[0].values[0].slots[0].optimizer, "adam of the test");
    EXPECT_EQ(saved[0].values[0].slots[0].tensors.size(), 3U);
    train_there(3);
    const at::Tensor expected = there[0].read();
    for (std::size_t i = 0; i < there.size(); ++i) import_state(there[i], saved[i]);
    train_there(3);
    EXPECT_TRUE(torch::equal(there[0].read(), expected)) << "chunks of " << chunk_bytes;
    for (std::size_t i = 0; i < here.size(); ++i) import_state(here[i], saved[i]);
    train(here, local, 3);
    EXPECT_TRUE(torch::equal(here[0].read(), expected)) << "chunks of " << chunk_bytes;
    for (std::size_t i = 0; i < there.size(); ++i) import_state(there[i], saved[i]);
  }
  const auto attached = there[0].impl()->home()->attached_states();
  ASSERT_EQ(attached.size(), 1U);
  EXPECT_EQ(attached[0]->id().name, "adam of the test");
}

// No step could use a gradient of it.
TEST_F(UpdatesInSteps, AVariableIsReadOutsideOfAStepAsAPlainValue) {
  const Variable w = strategy.variable("w", ramp(3));
  EXPECT_FALSE(w.read().requires_grad());
  const SGD optimizer({w}, {.learning_rate = 0.5});
  EXPECT_THAT([&] { optimizer.minimize(w.read().sum()); },
              testing::throws_error(ErrorCode::invalid_argument,
                                    "outside of a step, read() of a variable on a server"));
}

// Its tensor() stayed what it was at the start of run(), and writes into buffers were lost.
TEST_F(UpdatesInSteps, ARunOnTheCoordinatorSeesItsOwnUpdates) {
  const Variable w = strategy.variable("w", ramp(3)), here = local_variable("here", ramp(3)),
                 buffer = strategy.variable("buffer", ramp(1), {.is_trainable = false});
  const SGD optimizer({w}, {.learning_rate = 0.25}), local({here}, {.learning_rate = 0.25});
  const auto step = [](const SGD& sgd, const Variable& v) {
    sgd.minimize(v.tensor().square().sum());
    v.assign_add(v.tensor());
    sgd.minimize(v.tensor().square().sum() + v.read().sum());
  };
  for (int i = 0; i < 2; ++i) {
    strategy.run([&] {
      step(optimizer, w);
      buffer.tensor().add_(1);
      EXPECT_TRUE(torch::equal(w.tensor(), w.read()));
    });
    step(local, here);
  }
  EXPECT_TRUE(torch::equal(w.read(), here.read()));
  EXPECT_TRUE(torch::equal(buffer.read(), ramp(1) + 2));
  EXPECT_THAT([&] { strategy.run([&] { w.tensor().detach().add_(1); }); },
              testing::throws_error(ErrorCode::invalid_argument, "writes in place"));
}

// It trained with the gradient of the initial value, each time.
TEST_F(UpdatesInSteps, ALossOutsideOfAStepIsRefused) {
  const Variable w = strategy.variable("w", ramp(3));
  const SGD optimizer({w}, {.learning_rate = 0.5});
  EXPECT_THAT([&] { optimizer.minimize(w.tensor().square().sum()); },
              testing::throws_error(ErrorCode::failed_precondition, "variable 'w' is a stand-in"));
}

TEST_F(UpdatesInSteps, AStepOfSeveralSegmentsEqualsTheEagerOne) {
  Step here{local_variable("w", ramp(3)), local_variable("b", ramp(1)),
            local_variable("mean", ramp(3), false)};
  Step there{strategy.variable("w", ramp(3)), strategy.variable("b", ramp(1)),
             strategy.variable("mean", ramp(3), {.is_trainable = false})};
  const Function step([&](at::Tensor x) { return there.run(x); });
  for (int i = 0; i < kSteps; ++i) {
    const at::Tensor expected = here.run(batch(i)).clone();
    const at::Tensor actual = coordinator.schedule(step, batch(i)).fetch().tensor();
    EXPECT_TRUE(torch::equal(actual, expected)) << actual << " instead of " << expected;
  }
  coordinator.join();
  EXPECT_TRUE(torch::equal(there.w.read(), here.w.read()));
  EXPECT_TRUE(torch::equal(there.b.read(), here.b.read()));
  EXPECT_TRUE(torch::equal(there.mean.read(), here.mean.read()));
}

TEST_F(UpdatesInSteps, StatisticsCountThePushesAndPullsOfAllSegments) {
  Variable v = strategy.variable("v", torch::zeros({100}));
  const Function step([&] {
    v.assign_add(torch::ones({100}));
    v.assign_add(v.tensor().detach());
    return v.read().sum();
  });
  EXPECT_EQ(coordinator.schedule(step).fetch().tensor().item<float>(), 200);
  coordinator.join();
  EXPECT_EQ(coordinator.statistics().pushed_bytes, 2U * 400);
  EXPECT_EQ(coordinator.statistics().pulled_bytes, 2U * 400) << "nobody reads the first value";
}

// The worker is killed while it waits for the push of its second segment, because that parameter
// server is stopped. The retry of the closure must not add to `first` again.
TEST_F(UpdatesInSteps, AWorkerLostBetweenSegmentsAppliesEachOnce) {
  Variable first = strategy.variable("first", torch::zeros({2}));    // on ps:0
  Variable second = strategy.variable("second", torch::zeros({2}));  // on ps:1
  const Function step([&] {
    first.assign_add(torch::ones({2}));
    second.assign_add(first.tensor().detach());
    return second.read();
  });
  EXPECT_EQ(coordinator.schedule(step).fetch().tensor().sum().item<float>(), 2);
  const std::uint64_t before = cluster.health("ps:0").pushes_applied;
  cluster.stop("ps:1");
  coordinator.schedule(step);
  EXPECT_TRUE(await_pushes("ps:0", before + 1));
  cluster.kill("worker:0");
  cluster.resume("ps:1");
  cluster.restart("worker:0");
  coordinator.join();
  EXPECT_TRUE(first.read().eq(2).all().item<bool>()) << first.read();
  EXPECT_TRUE(second.read().eq(1 + 2).all().item<bool>()) << second.read();
  EXPECT_GE(cluster.health("ps:0").pushes_dropped, 1U);
}

class BuffersOfWorkers : public UpdatesInSteps {
 protected:
  BuffersOfWorkers() : UpdatesInSteps(3) {}
};

struct Net : torch::nn::Module {
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(3))};
  torch::Tensor forward(const torch::Tensor& x) {
    train();
    return norm(x);
  }
};

TEST_F(UpdatesInSteps, BatchNormOnOneWorkerHasTheStatisticsOfOneProcess) {
  torch::set_num_threads(1);  // as on a worker: LibTorch 2's order of additions depends on it
  auto net = strategy.replicate([] { return std::make_shared<Net>(); });
  const Function step([&](at::Tensor x) { return net->forward(x).sum(); });
  Net here;
  for (int i = 0; i < 10; ++i) {
    coordinator.schedule(step, batch(i));
    here.forward(batch(i));
  }
  coordinator.join();
  const auto there = net.snapshot();
  const auto got = there->named_buffers();
  for (const auto& entry : here.named_buffers())
    EXPECT_TRUE(torch::equal(got[entry.key()], entry.value())) << entry.key();
}

TEST_F(BuffersOfWorkers, BatchNormCountsEveryStep) {
  constexpr int kCalls = 200;
  auto net = strategy.replicate([] { return std::make_shared<Net>(); });
  const Function step([&](at::Tensor x) { return net->forward(x).sum(); });
  for (int i = 0; i < kCalls; ++i) coordinator.schedule(step, batch(i) * 0.5 + 2);
  coordinator.join();
  const auto buffers = net.snapshot()->named_buffers();
  EXPECT_EQ(buffers["norm.num_batches_tracked"].item<std::int64_t>(), kCalls);
  const at::Tensor mean = buffers["norm.running_mean"], variance = buffers["norm.running_var"];
  EXPECT_TRUE((mean - 2).abs().lt(0.5).all().item<bool>()) << mean;
  EXPECT_TRUE(variance.gt(0).logical_and(variance.lt(1)).all().item<bool>()) << variance;
}

}  // namespace
}  // namespace cohort
