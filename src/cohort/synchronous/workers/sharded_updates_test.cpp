// SPDX-License-Identifier: Apache-2.0
// With shard_optimizer_state, training has the bits that it has without.
#include "cohort/synchronous/workers/sharded_updates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/synchronous/workers/workers_fixture.h"
#include "cohort/workers/shares.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::run_workers;
using testing::Tensors;
using testing::text_of;
using testing::WorkersOptions;

using Variables = std::vector<Variable>;
using TrainShares = std::function<Tensors(SynchronousStrategy&)>;
using MakeSharded = std::function<Optimizer(const Variables&)>;

std::vector<Tensors> trained_on(int workers, const WorkersOptions& options,
                                const TrainShares& train) {
  std::vector<Tensors> got(static_cast<std::size_t>(workers));
  const auto errors = run_workers(workers, options, [&](auto& strategy) {
    got[static_cast<std::size_t>(strategy.worker())] = train(strategy);
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
  return got;
}

void expect_bits_of_whole_updates(int workers, int replicas, const TrainShares& train) {
  const auto expected = trained_on(workers, {.replicas = replicas}, train);
  const auto got = trained_on(workers, {.replicas = replicas, .shards = true}, train);
  for (std::size_t worker = 0; worker < got.size(); ++worker) {
    ASSERT_EQ(got[worker].size(), expected[worker].size());
    ASSERT_FALSE(got[worker].empty());
    for (std::size_t i = 0; i < got[worker].size(); ++i) {
      EXPECT_TRUE(got[worker][i].equal(expected[worker][i]))
          << "worker " << worker << " of " << workers << ", " << replicas << " replicas, tensor "
          << i;
    }
  }
}

std::vector<MakeSharded> all_optimizers() {
  return {
      [](const auto& all) { return SGD(all, {.learning_rate = 0.05}); },
      [](const auto& all) { return SGD(all, {.learning_rate = 0.05, .weight_decay = 0.1}); },
      [](const auto& all) { return SGD(all, {.learning_rate = 0.05, .momentum = 0.9}); },
      [](const auto& all) {
        return SGD(all, {.learning_rate = 0.05, .momentum = 0.9, .nesterov = true});
      },
      [](const auto& all) {
        return SGD(all, {.learning_rate = 0.05, .momentum = 0.9, .weight_decay = 0.1});
      },
      [](const auto& all) { return Adam(all, {.learning_rate = 0.01}); },
      [](const auto& all) { return Adam(all, {.learning_rate = 0.01, .weight_decay = 0.1}); },
      [](const auto& all) { return AdamW(all, {.learning_rate = 0.01}); },
      [](const auto& all) { return Adagrad(all, {.learning_rate = 0.01}); },
      [](const auto& all) { return RMSprop(all, {.learning_rate = 0.01}); },
      [](const auto& all) {
        return SGD(all, {.learning_rate = 0.05, .momentum = 0.9, .dampening = 0.5});
      },
      [](const auto& all) {
        return RMSprop(all, {.learning_rate = 0.01, .momentum = 0.9, .centered = true});
      },
      [](const auto& all) { return AdamW(all, {.learning_rate = 0.01, .amsgrad = true}); },
  };
}

at::Tensor random_tensor(const Variable& like, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(*like.spec().sizes, generator, like.spec().dtype);
}

// The shapes are random; some have fewer elements than there are workers.
Variables random_variables(SynchronousStrategy& strategy, std::mt19937& random) {
  Variables all;
  for (int i = 0; i < 7; ++i) {
    std::vector<std::int64_t> sizes(random() % 4);
    for (std::int64_t& each : sizes) each = static_cast<std::int64_t>(random() % 9);
    const at::ScalarType type = random() % 3 == 0 ? at::kDouble : at::kFloat;
    at::Generator generator = at::detail::createCPUGenerator(random());
    all.push_back(strategy.variable("v" + std::to_string(i), at::randn(sizes, generator, type)));
  }
  return all;
}

// Gradients that come and go, on some replicas or on all.
Tensors train_with_random_gradients(SynchronousStrategy& strategy, const MakeSharded& make,
                                    std::uint32_t seed) {
  std::mt19937 random(seed);
  const Variables all = random_variables(strategy, random);
  const Optimizer optimizer = make(all);
  for (std::uint64_t step = 0; step < 6; ++step) {
    const std::uint64_t of_step = random();
    strategy.run([&] {
      const auto id = static_cast<std::uint64_t>(get_replica_context()->replica_id_in_sync_group());
      std::vector<std::pair<at::Tensor, Variable>> gradients;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const std::uint64_t choice = (of_step >> (2 * i)) % 4;
        const bool is_given = choice > 1 || i == 0 || (choice == 1 && id == 0);
        gradients.emplace_back(
            is_given ? random_tensor(all[i], 1000 * step + 10 * i + 100 * id) : at::Tensor(),
            all[i]);
      }
      optimizer.apply_gradients(gradients);
    });
  }
  return testing::values_of(all);
}

TEST(ShardedUpdates, HaveTheBitsOfWholeOnes) {
  std::uint32_t seed = 1;
  for (const MakeSharded& make : all_optimizers()) {
    for (const auto& [workers, replicas] : {std::pair(2, 1), {3, 1}, {2, 2}, {4, 1}}) {
      SCOPED_TRACE("seed " + std::to_string(++seed));
      expect_bits_of_whole_updates(workers, replicas, [&](auto& strategy) {
        return train_with_random_gradients(strategy, make, seed);
      });
    }
  }
}

TEST(ShardedUpdates, OfOneWorkerAreWhole) {
  const MakeSharded make = all_optimizers().back();
  for (const int replicas : {1, 2}) {
    expect_bits_of_whole_updates(1, replicas, [&](auto& strategy) {
      return train_with_random_gradients(strategy, make, 5);
    });
  }
}

torch::nn::Sequential small_net() {
  torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 4));
  const torch::NoGradGuard no_grad;
  double value = 0.1;
  for (at::Tensor& each : net->parameters()) each.fill_(value *= -1.5);
  return net;
}

Tensors train_net(SynchronousStrategy& strategy, const MakeSharded& make, bool is_traced,
                  bool clips) {
  const auto net = strategy.replicate(small_net);
  const Optimizer optimizer = make(net.parameters());
  const auto body = [&](const at::Tensor& x) {
    const at::Tensor loss = net->forward(x).square().mean();
    if (!clips) return optimizer.minimize(loss);
    optimizer.apply_gradients(
        clip_by_global_norm(optimizer.compute_gradients(loss), 0.1).gradients);
  };
  const auto step = strategy.function(body);
  for (int i = 0; i < 5; ++i) {
    std::vector<at::Tensor> own;
    for (std::size_t r = 0; r < strategy.devices().size(); ++r) {
      const auto id = static_cast<int>(r) + 10 * strategy.worker() + 100 * i;
      at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(id));
      own.push_back(at::randn({5, 6}, generator));
    }
    if (is_traced) {
      step(PerReplica<at::Tensor>(own));
    } else {
      strategy.run(body, PerReplica<at::Tensor>(own));
    }
  }
  return testing::values_of(net.variables());
}

TEST(ShardedUpdates, OfTracedStepsHaveTheBitsOfWholeOnes) {
  for (const MakeSharded& make : all_optimizers()) {
    for (const auto& [workers, replicas] : {std::pair(2, 1), {3, 2}}) {
      expect_bits_of_whole_updates(workers, replicas, [&](auto& strategy) {
        return train_net(strategy, make, /*is_traced=*/true, /*clips=*/false);
      });
    }
  }
}

TEST(ShardedUpdates, FollowClippedGradients) {
  const MakeSharded make = all_optimizers()[5];
  expect_bits_of_whole_updates(2, 2, [&](auto& strategy) {
    return train_net(strategy, make, /*is_traced=*/false, /*clips=*/true);
  });
}

TEST(ShardedUpdates, TakeSchedulesOfTheLearningRate) {
  const MakeSharded make = [](const auto& all) {
    return Adam(all, {.learning_rate = ExponentialDecay(
                          {.initial_learning_rate = 0.1, .decay_steps = 2, .decay_rate = 0.5})});
  };
  for (const bool is_traced : {false, true}) {
    expect_bits_of_whole_updates(2, 1, [&](auto& strategy) {
      return train_net(strategy, make, is_traced, /*clips=*/false);
    });
  }
}

TEST(ShardedUpdates, TakeRowsOfSparseGradients) {
  expect_bits_of_whole_updates(3, 1, [](auto& strategy) {
    const auto net = strategy.replicate([] {
      torch::nn::Embedding made(torch::nn::EmbeddingOptions(20, 3).sparse(true));
      const torch::NoGradGuard no_grad;
      made->weight.fill_(0.5);
      return made;
    });
    const Adam adam(net.parameters(), {.learning_rate = 0.1});
    for (std::int64_t step = 0; step < 4; ++step) {
      strategy.run([&] {
        const std::int64_t id = get_replica_context()->replica_id_in_sync_group();
        const at::Tensor rows = (at::arange(4) * (step + id + 1)).remainder(20);
        adam.minimize((net->forward(rows) * at::arange(3)).sum());
      });
    }
    return testing::values_of(net.variables());
  });
}

TEST(ShardedUpdates, LeaveVariablesThatAreSynchronizedOnReadWhole) {
  expect_bits_of_whole_updates(2, 2, [](auto& strategy) {
    const Variable a = strategy.variable("a", at::ones({5}));
    const Variable b = strategy.variable("b", at::ones({3}),
                                         {.is_trainable = true,
                                          .synchronization = VariableSynchronization::on_read,
                                          .aggregation = VariableAggregation::mean});
    const Adam adam({a, b}, {.learning_rate = 0.1});
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] {
        const int id = get_replica_context()->replica_id_in_sync_group();
        if (step == 1) b.assign(at::full({3}, 1.0 * id));
        adam.apply_gradients({{at::full({5}, 0.1 * (id + 1)), a}, {at::full({3}, 0.2 * id), b}});
      });
    }
    return testing::values_of({a, b});
  });
}

TEST(ShardedUpdates, DivideTheMemoryOfSlots) {
  for (const int replicas : {1, 2}) {
    const auto errors = run_workers(3, {.replicas = replicas, .shards = true}, [](auto& strategy) {
      const Variable v = strategy.variable("v", at::zeros({10, 30}));
      const Adam adam({v}, {.learning_rate = 0.1});
      strategy.run([&] { adam.apply_gradients({{at::ones({10, 30}), v}}); });
      std::int64_t elements = 0;
      const internal::MirroredVariable& whole = internal::target_of(v).variable;
      for (std::size_t i = 0; i < whole.size(); ++i) {
        for (const auto& [optimizer, slots] : whole.state(i).slots()) {
          for (const at::Tensor& each : slots.tensors) elements += each.numel();
        }
      }
      EXPECT_EQ(elements, 2 * 100 + 1);  // m, v and the step
    });
    for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
  }
}

// An optimizer whose slots were made outside of run() goes on with a share of them.
TEST(ShardedUpdates, CutSlotsThatAreWhole) {
  expect_bits_of_whole_updates(2, 2, [](auto& strategy) {
    const Variable v = strategy.variable("v", at::ones({2, 5}));
    const Adam adam({v}, {.learning_rate = 0.1});
    adam.apply_gradients({{at::arange(10, at::kFloat).view({2, 5}), v}});
    for (int step = 0; step < 3; ++step)
      strategy.run([&] { adam.apply_gradients({{at::full({2, 5}, 0.1 * step), v}}); });
    return testing::values_of({v});
  });
}

TEST(ShardedUpdates, RefuseUpdatesOutsideOfRunAfterwards) {
  const auto errors = run_workers(2, {.shards = true}, [](auto& strategy) {
    const Variable v = strategy.variable("v", at::ones({4}));
    const Adam adam({v}, {.learning_rate = 0.1});
    strategy.run([&] { adam.apply_gradients({{at::ones({4}), v}}); });
    const at::Tensor before = v.read();
    try {
      adam.apply_gradients({{at::ones({4}), v}});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("without shard_optimizer_state"));
    }
    EXPECT_TRUE(v.read().equal(before));
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

TEST(ShardedUpdates, AreRefusedForComponentsThatMayDiffer) {
  const auto errors = run_workers(2, {.shards = true}, [](auto& strategy) {
    const Variable v = strategy.variable("v", at::ones({4}));
    const SGD sgd({v}, {.learning_rate = 0.1, .momentum = 0.5});
    if (strategy.worker() == 1) strategy.local_results(v).at(0).assign(at::zeros({4}));
    strategy.run([&] { sgd.apply_gradients({{at::ones({4}), v}}); });
  });
  for (const auto& error : errors)
    EXPECT_THAT(text_of(error), HasSubstr("expected equal values of variable 'v'"));
}

// As without: all workers get the same error, and none has made half of the step.
TEST(ShardedUpdates, FindOutThatWorkersMakeOtherSteps) {
  const auto errors = run_workers(2, {.shards = true}, [](auto& strategy) {
    const Variable v = strategy.variable("v", at::ones({4}));
    SGD sgd({v}, {.learning_rate = 0.5, .momentum = 0.5});
    const auto step = [&] { strategy.run([&] { sgd.apply_gradients({{at::ones({4}), v}}); }); };
    step();
    step();
    const at::Tensor before = v.read();
    if (strategy.worker() == 1) sgd.set_learning_rate(0.25);
    try {
      step();
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("learning_rate 0.25"));
    }
    EXPECT_TRUE(v.read().equal(before));
    sgd.set_learning_rate(0.5);
    step();
    EXPECT_TRUE(v.read().equal(before - 0.5 * (2 + 0.5 * (2 + 0.5 * 2))));
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

TEST(ShardedUpdates, FindOutThatValuesDiffer) {
  const auto errors = run_workers(2, {.shards = true}, [](auto& strategy) {
    const Variable v = strategy.variable("v", at::ones({4}));
    const SGD sgd({v}, {.learning_rate = 0.5});
    const auto step = [&] { strategy.run([&] { sgd.apply_gradients({{at::ones({4}), v}}); }); };
    for (int i = 0; i < 5; ++i) step();
    v.assign(at::ones({4}));
    step();
    EXPECT_TRUE(v.read().equal(at::zeros({4})));
    if (strategy.worker() == 1) v.assign(at::ones({4}));
    step();
  });
  for (const auto& error : errors)
    EXPECT_THAT(text_of(error), HasSubstr("expected equal values of variable 'v'"));
}

// Regression: each part began from the old value, and only the last one counted.
TEST(ShardedUpdates, RefuseAVariableThatComesTwice) {
  const auto errors = run_workers(2, {.shards = true}, [](auto& strategy) {
    const Variable v = strategy.variable("v", at::zeros({8}));
    const SGD sgd({v}, {.learning_rate = 0.1});
    const at::Tensor g = at::ones({8});
    strategy.run([&] { sgd.apply_gradients({{g, v}, {g * 2, v}}); });
  });
  for (const auto& error : errors)
    EXPECT_THAT(text_of(error), HasSubstr("expected each variable once (shard_optimizer_state), "
                                          "got 'v' twice; add its gradients first"));
}

// Regression: the values became equal, made with other slots on each worker.
TEST(ShardedUpdates, FindOutThatWorkersUseOptimizersInAnotherOrder) {
  for (const bool shards : {true, false}) {
    const auto errors = run_workers(2, {.shards = shards}, [](auto& strategy) {
      const Variable v = strategy.variable("v", at::ones({8}));
      const Adam adams[] = {Adam({v}, {.learning_rate = 0.1}), Adam({v}, {.learning_rate = 0.1})};
      strategy.run([&] { adams[strategy.worker()].minimize(v.tensor().square().sum()); });
    });
    for (const auto& error : errors)
      EXPECT_THAT(text_of(error), HasSubstr("expected one call on all workers, got"));
  }
}

TEST(ShardedUpdates, AreOfAllWorkersOrOfNone) {
  const InProcessWorkers workers(2);
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        MultiWorkerMirroredStrategy strategy(
            workers.group(rank), {.devices = {"CPU:0"}, .shard_optimizer_state = rank == 1});
        strategy.variable("v", at::ones({4}));
      } catch (...) {
        texts[static_cast<std::size_t>(rank)] = text_of(std::current_exception());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts)
    EXPECT_THAT(text, HasSubstr("expected the same shard_optimizer_state on each worker"));
}

TEST(ShardedUpdates, RefuseGradientsAsBfloat16AndOptimizersOfLibTorch) {
  const auto both = run_workers(1, {.sends_bfloat16 = true, .shards = true}, [](auto&) {});
  EXPECT_THAT(text_of(both[0]), HasSubstr("got both"));
  const auto of_torch = run_workers(1, {.shards = true}, [](auto& strategy) {
    const auto net = strategy.replicate(small_net);
    const TorchOptimizer adam(net, [](std::vector<at::Tensor> parameters) {
      return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(1e-2));
    });
  });
  EXPECT_THAT(text_of(of_torch[0]), HasSubstr("shard_optimizer_state"));
}

TEST(Shares, CoverAllElementsOnce) {
  for (const std::int64_t elements : {0, 1, 2, 7, 100}) {
    for (const int workers : {1, 2, 3, 8}) {
      std::int64_t next = 0;
      for (int worker = 0; worker < workers; ++worker) {
        const ElementRange share = internal::share_of(elements, worker, workers);
        EXPECT_EQ(share.begin, next);
        EXPECT_LE(share.size(), elements / workers + 1);
        next = share.end;
      }
      EXPECT_EQ(next, elements);
    }
  }
}

}  // namespace
}  // namespace cohort
