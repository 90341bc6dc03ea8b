// SPDX-License-Identifier: Apache-2.0
// Training on several workers has the bits of MirroredStrategy with all their replicas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/synchronous/workers/workers_fixture.h"

namespace cohort {
namespace {

using testing::own_parts;
using testing::run_workers;
using testing::SeededThread;
using testing::Tensors;
using testing::text_of;

constexpr std::int64_t kRowsOfStep = 13;  // not a multiple: replicas have uneven batches
constexpr int kTrainingSteps = 6;

// The global batch of one step.
std::tuple<at::Tensor, at::Tensor> batch_of(int step) {
  at::Generator generator = at::detail::createCPUGenerator(100 + static_cast<std::uint64_t>(step));
  return {at::rand({kRowsOfStep, 6}, generator), at::randint(4, {kRowsOfStep}, generator)};
}

// Given values, since random ones depend on which thread draws first.
void set_values(const std::vector<Variable>& variables) {
  at::Generator generator = at::detail::createCPUGenerator(3);
  for (const Variable& each : variables) {
    if (each.spec().dtype != at::kLong) each.assign(at::rand(*each.spec().sizes, generator) - 0.5);
  }
}

using Train = std::function<Tensors(SynchronousStrategy&)>;

// Trains on one process and on several workers, and compares.
void expect_bits_of_one_process(int workers, int replicas, const Train& train) {
  Tensors expected;
  {
    MirroredStrategy one(testing::cpu_devices(workers * replicas));
    expected = train(one);
  }
  std::vector<Tensors> got(static_cast<std::size_t>(workers));
  const auto errors = run_workers(workers, {.replicas = replicas}, [&](auto& strategy) {
    got[static_cast<std::size_t>(strategy.worker())] = train(strategy);
  });
  for (std::size_t worker = 0; worker < errors.size(); ++worker) {
    ASSERT_EQ(text_of(errors[worker]), "") << worker;
    ASSERT_EQ(got[worker].size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(got[worker][i].equal(expected[i])) << "worker " << worker << ", tensor " << i;
  }
}

using MakeOptimizer = std::function<Optimizer(const std::vector<Variable>&)>;

std::vector<MakeOptimizer> optimizers() {
  return {[](const auto& all) { return SGD(all, {.learning_rate = 0.05, .momentum = 0.9}); },
          [](const auto& all) { return Adam(all, {.learning_rate = 0.003}); }};
}

torch::nn::Sequential net_with_dropout() {
  return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::ReLU(), torch::nn::Dropout(0.5),
                               torch::nn::Linear(8, 4));
}

torch::nn::Sequential net_without_dropout() {
  return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::ReLU(), torch::nn::Linear(8, 4));
}

at::Tensor losses_of(const at::Tensor& logits, const at::Tensor& y) {
  return torch::cross_entropy_loss(logits, y, {}, at::Reduction::None);
}

Train net_training(const MakeOptimizer& make, bool clips = false) {
  return [&make, clips](SynchronousStrategy& strategy) {
    const auto net = strategy.replicate(net_with_dropout);
    set_values(net.variables());
    const Optimizer optimizer = make(net.parameters());
    const SeededThread seeded(7);
    for (int step = 0; step < kTrainingSteps; ++step) {
      const auto [x, y] = batch_of(step);
      strategy.run(
          [&](const at::Tensor& images, const at::Tensor& labels) {
            const at::Tensor loss = average_loss(losses_of(net->forward(images), labels));
            if (!clips) return optimizer.minimize(loss);
            optimizer.apply_gradients(
                clip_by_global_norm(optimizer.compute_gradients(loss), 0.1).gradients);
          },
          own_parts(x, strategy), own_parts(y, strategy));
    }
    return testing::values_of(net.variables());
  };
}

TEST(MultiWorkerTraining, HasTheBitsOfOneProcess) {
  for (const MakeOptimizer& make : optimizers()) {
    expect_bits_of_one_process(2, 1, net_training(make));
    expect_bits_of_one_process(2, 2, net_training(make));
    expect_bits_of_one_process(3, 1, net_training(make));
    expect_bits_of_one_process(4, 1, net_training(make));
  }
}

// Rounded, but alike on all workers.
TEST(MultiWorkerTraining, CanSendGradientsAsBfloat16) {
  const MakeOptimizer make = optimizers()[0];  // net_training() refers to it
  const Train train = net_training(make);
  std::vector<Tensors> exact(2), rounded(2);
  const auto train_all = [&](std::vector<Tensors>& got, bool sends_bfloat16) {
    const auto errors = run_workers(2, {.sends_bfloat16 = sends_bfloat16}, [&](auto& strategy) {
      got[static_cast<std::size_t>(strategy.worker())] = train(strategy);
    });
    for (const auto& error : errors) ASSERT_EQ(text_of(error), "");
  };
  train_all(exact, false);
  train_all(rounded, true);
  bool has_difference = false;
  for (std::size_t i = 0; i < exact[0].size(); ++i) {
    EXPECT_TRUE(rounded[0][i].equal(rounded[1][i])) << i;
    EXPECT_TRUE(rounded[0][i].allclose(exact[0][i], 0.02, 0.002)) << i;
    has_difference = has_difference || !rounded[0][i].equal(exact[0][i]);
  }
  EXPECT_TRUE(has_difference);
}

// Steps of function(). In some of them one worker has another number of rows than before.
TEST(MultiWorkerTraining, OfTracedStepsHasTheBitsOfOneProcess) {
  for (const MakeOptimizer& make : optimizers()) {
    const Train train = [&](SynchronousStrategy& strategy) {
      const auto net = strategy.replicate(net_without_dropout);
      set_values(net.variables());
      const Variable seen =
          strategy.variable("seen", torch::zeros({}), {.aggregation = VariableAggregation::sum});
      const Optimizer optimizer = make(net.parameters());
      const auto step = strategy.function([&](const at::Tensor& x, const at::Tensor& y) {
        const at::Tensor loss = average_loss(losses_of(net->forward(x), y));
        optimizer.minimize(loss);
        seen.assign_add(loss.detach());
        const ReplicaContext& replica = *get_replica_context();
        const at::Tensor rows = replica.all_gather(y, 0);
        return replica.all_reduce(ReduceOp::sum, loss.detach()) + rows.sum();
      });
      Tensors values;
      for (const std::int64_t rows : {13, 12, 13, 8, 12, 13}) {
        const auto [x, y] = batch_of(static_cast<int>(values.size()));
        const PerReplica<at::Tensor> losses = step(own_parts(x.narrow(0, 0, rows), strategy),
                                                   own_parts(y.narrow(0, 0, rows), strategy));
        values.push_back(losses[0]);
      }
      const Tensors of_net = testing::values_of(net.variables());
      values.insert(values.end(), of_net.begin(), of_net.end());
      values.push_back(seen.read());
      return values;
    };
    expect_bits_of_one_process(2, 1, train);
    expect_bits_of_one_process(2, 2, train);
    expect_bits_of_one_process(3, 1, train);
  }
}

TEST(MultiWorkerTraining, OfTracedStepsDrawsOtherRandomNumbersInEachReplica) {
  const Train train = [&](SynchronousStrategy& strategy) {
    const auto step = strategy.function([&](const at::Tensor& x) {
      return get_replica_context()->all_gather(torch::dropout(x, 0.5, true), 0);
    });
    const PerReplica<at::Tensor> x =
        own_parts(torch::ones({strategy.num_replicas_in_sync() * 64}), strategy);
    step(x);  // a trace draws numbers too
    const SeededThread seeded(7);
    const at::Tensor first = step(x)[0];
    EXPECT_FALSE(first.narrow(0, 0, 64).equal(first.narrow(0, 64, 64)));
    return Tensors{first, step(x)[0]};
  };
  expect_bits_of_one_process(2, 1, train);
  expect_bits_of_one_process(2, 2, train);
}

// Regression: a worker without rows took no number from the default generator, and its replicas had
// other random numbers from then on.
TEST(MultiWorkerTraining, DrawsTheNumbersOfOneProcessAfterAnUnevenBatch) {
  const Train train = [&](SynchronousStrategy& strategy) {
    const SeededThread seeded(7);
    const Variable v = strategy.variable("v", torch::zeros({3}));
    const SGD sgd({v}, {.learning_rate = 1.0});
    for (const std::int64_t rows : {1, 8, 2, 8}) {
      strategy.run(
          [&](const at::Tensor& x) {
            sgd.minimize((v.tensor() * torch::dropout(x, 0.5, true)).sum());
          },
          own_parts(torch::ones({rows, 3}), strategy));
    }
    return Tensors{v.read()};
  };
  expect_bits_of_one_process(2, 1, train);
  expect_bits_of_one_process(2, 2, train);
}

TEST(MultiWorkerTraining, OfOtherTracedStepsIsRefusedOnAll) {
  const auto errors = run_workers(2, {}, [](auto& strategy) {
    const Variable v = strategy.variable("v", torch::ones({}));
    const SGD sgd({v}, {.learning_rate = 1.0});
    const auto step = strategy.function([&](const at::Tensor& x) {
      if (strategy.worker() == 1) get_replica_context()->all_reduce(ReduceOp::sum, x);
      sgd.minimize(v.tensor() * x.sum());
    });
    step(PerReplica<at::Tensor>({torch::ones({2})}));
  });
  for (const auto& error : errors) {
    EXPECT_THAT(text_of(error), ::testing::HasSubstr("all_reduce(sum)"));
    EXPECT_THAT(text_of(error), ::testing::HasSubstr("worker:1"));
  }
}

TEST(MultiWorkerTraining, ClipsTheGradientsOfAllReplicas) {
  const MakeOptimizer make = optimizers()[0];
  expect_bits_of_one_process(2, 1, net_training(make, /*clips=*/true));
  expect_bits_of_one_process(2, 2, net_training(make, /*clips=*/true));
}

// Regression: a norm is added in the order of memory, which was another one with several workers.
TEST(MultiWorkerTraining, ClipsTransposedGradients) {
  const Train train = [](SynchronousStrategy& strategy) {
    at::Generator generator = at::detail::createCPUGenerator(5);
    const Variable v = strategy.variable("v", at::rand({61, 37}, generator));
    const SGD sgd({v}, {.learning_rate = 0.1});
    const at::Tensor x = at::rand({37, 61}, generator);
    for (int step = 0; step < 3; ++step) {
      strategy.run([&] {
        const int id = get_replica_context()->replica_id_in_sync_group();
        const auto gradients =
            sgd.compute_gradients((v.tensor().t() * x).square().sum() * (id + 1));
        sgd.apply_gradients(clip_by_global_norm(gradients, 1.0).gradients);
      });
    }
    return Tensors{v.read()};
  };
  expect_bits_of_one_process(2, 1, train);
  expect_bits_of_one_process(4, 1, train);
}

TEST(MultiWorkerTraining, AddsTheRowsOfSparseGradients) {
  const Train train = [](SynchronousStrategy& strategy) {
    const auto net = strategy.replicate(
        [] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 3).sparse(true)); });
    set_values(net.variables());
    const SGD sgd(net.parameters(), {.learning_rate = 0.5});
    for (int step = 0; step < kTrainingSteps; ++step) {
      const at::Tensor ids = std::get<1>(batch_of(step)) * 3;
      strategy.run(
          [&](const at::Tensor& own) {
            // In some steps a single replica has rows.
            const int id = get_replica_context()->replica_id_in_sync_group();
            std::vector<std::pair<at::Tensor, Variable>> gradients;
            if (step % 3 == 0 || id == step % 3 - 1) {
              gradients = sgd.compute_gradients((net->forward(own) * at::arange(3)).sum());
            } else {
              gradients = {{at::Tensor(), net.parameters()[0]}};
            }
            sgd.apply_gradients(gradients);
          },
          own_parts(ids, strategy));
    }
    return testing::values_of(net.variables());
  };
  expect_bits_of_one_process(2, 1, train);
  expect_bits_of_one_process(2, 2, train);
}

TEST(MultiWorkerTraining, TakesGradientsThatOnlySomeWorkersHave) {
  const Train train = [](SynchronousStrategy& strategy) {
    const Variable a = strategy.variable("a", torch::ones({3}));
    const Variable b = strategy.variable("b", torch::ones({2}));
    const Variable c = strategy.variable("c", torch::ones({1}));
    const SGD sgd({a, b, c}, {.learning_rate = 0.5, .momentum = 0.5});
    for (int step = 0; step < 8; ++step) {
      strategy.run([&] {
        const int id = get_replica_context()->replica_id_in_sync_group();
        const int all = get_replica_context()->num_replicas_in_sync();
        const auto gradient = [&](const Variable& v, bool is_given) {
          return std::pair(
              is_given ? at::full(*v.spec().sizes, 0.1 * (step + id + 1)) : at::Tensor(), v);
        };
        sgd.apply_gradients({gradient(a, true), gradient(b, step % all == id),
                             gradient(c, step >= 4 && step < 6 && id == all - 1)});
      });
    }
    return testing::values_of({a, b, c});
  };
  expect_bits_of_one_process(2, 1, train);
  expect_bits_of_one_process(2, 2, train);
  expect_bits_of_one_process(3, 1, train);
}

// The sum of a value, with a gradient in memory of the caller.
struct InOwnMemory : torch::autograd::Function<InOwnMemory> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& value,
                            float* memory) {
    context->saved_data["memory"] = reinterpret_cast<std::int64_t>(memory);
    return value.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list&) {
    auto* const memory = reinterpret_cast<float*>(context->saved_data["memory"].toInt());
    return {torch::from_blob(memory, {3}), at::Tensor()};
  }
};

// The sum over the workers may be written over a gradient of minimize() that nobody else has.
TEST(MultiWorkerTraining, LeavesGradientsAloneThatOthersHave) {
  const auto errors = run_workers(2, {}, [&](MultiWorkerMirroredStrategy& strategy) {
    const std::vector<std::string> names = {"kept",  "viewed", "shared",
                                            "alike", "based",  "own_memory"};
    std::vector<Variable> all;
    for (const std::string& name : names) all.push_back(strategy.variable(name, at::zeros({3})));
    const SGD optimizer(all, {.learning_rate = 1.0});
    const at::Tensor own = at::arange(1, 4).to(at::kFloat).mul(strategy.worker() + 1);
    std::vector<float> memory(own.data_ptr<float>(), own.data_ptr<float>() + 3);
    at::Tensor kept, viewed, base;
    strategy.run([&] {
      std::vector<at::Tensor> values;
      // A gradient passes through the sum as it is.
      for (const Variable& each : all) values.push_back(each.tensor() + 0);
      values[0].register_hook([&](const at::Tensor& gradient) { kept = gradient; });
      values[1].register_hook([&](const at::Tensor& gradient) { viewed = gradient.view({1, 3}); });
      const at::Tensor column = values[4].view({3, 1});
      column.register_hook([&](const at::Tensor& gradient) { base = gradient; });
      const at::Tensor products = (values[0] + values[1] + values[2] + values[3]) * own;
      optimizer.minimize(products.sum() + (column * own.view({3, 1})).sum() +
                         InOwnMemory::apply(values[5], memory.data()));
    });
    EXPECT_TRUE(kept.equal(own));
    EXPECT_TRUE(viewed.equal(own.view({1, 3})));
    EXPECT_TRUE(base.equal(own.view({3, 1})));
    EXPECT_TRUE(torch::from_blob(memory.data(), {3}).equal(own));
    for (const Variable& each : all)
      EXPECT_TRUE(each.read().equal(at::arange(1, 4).to(at::kFloat).mul(-3))) << each.name();
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

TEST(MultiWorkerTraining, LeavesGradientsAloneThatATracedStepReturns) {
  const auto errors = run_workers(2, {}, [&](MultiWorkerMirroredStrategy& strategy) {
    const Variable returned = strategy.variable("returned", at::zeros({3}));
    const Variable viewed = strategy.variable("viewed", at::zeros({3}));
    const SGD optimizer({returned, viewed}, {.learning_rate = 1.0});
    const auto step = strategy.function([&](const at::Tensor& own) {
      const auto gradients = optimizer.compute_gradients((returned.tensor() * own).sum() +
                                                         (viewed.tensor() * own).sum());
      const at::Tensor view = gradients[1].first.view({1, 3});
      optimizer.apply_gradients(gradients);
      return std::make_tuple(gradients[0].first, view, view.sum());
    });
    const at::Tensor own = at::arange(1, 4).to(at::kFloat).mul(strategy.worker() + 1);
    for (int number = 1; number <= 3; ++number) {
      const auto results = step(own);
      const auto& [gradient, view, sum] = results[0];
      EXPECT_TRUE(gradient.equal(own));
      EXPECT_TRUE(view.equal(own.view({1, 3})));
      EXPECT_TRUE(sum.equal(own.sum()));
      for (const Variable& each : {returned, viewed})
        EXPECT_TRUE(each.read().equal(at::arange(1, 4).to(at::kFloat).mul(-3 * number)));
    }
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

// A random loss of square matrices, whose gradients are views, shared, kept by hooks, and so on.
class RandomLoss {
 public:
  explicit RandomLoss(unsigned seed) : random_(seed) {}
  // Keeps some gradients in `kept`, each with a copy.
  at::Tensor operator()(const std::vector<at::Tensor>& variables, const at::Tensor& x,
                        Tensors& kept) {
    std::vector<at::Tensor> values = {x};
    at::Tensor loss = x.sum();
    for (const at::Tensor& variable : variables) {
      if (random_() % 2 == 0) {
        values.push_back(variable);
      } else {  // its gradient is that of this term
        loss = loss + (hooked(variable, kept) * (x - 0.5)).sum();
      }
    }
    for (int op = 0; op < 8; ++op) values.push_back(next(values, kept));
    loss = loss + values.back().square().mean();
    for (const at::Tensor& value : values) loss = loss + value.sum() * 0.01;
    return loss;
  }

 private:
  at::Tensor any(const std::vector<at::Tensor>& values) {
    return values[random_() % values.size()];
  }
  at::Tensor next(const std::vector<at::Tensor>& values, Tensors& kept) {
    const at::Tensor a = any(values), b = any(values);
    switch (random_() % 9) {
      case 0:
        return at::mm(a, b);
      case 1:
        return at::addmm(a[0], b, any(values).t());
      case 2:
        return a.t();
      case 3:
        return a + b;
      case 4:
        return a.reshape({2, 8}).t().reshape({4, 4});
      case 5:
        return a.sum(0).expand({4, 4});
      case 6:
        return at::cat({a.narrow(0, 0, 1), b.narrow(0, 1, 3)}).tanh();
      case 7:
        return a * 0.5;
      default:
        return hooked(a, kept);
    }
  }
  // The gradient of the sum is that of the value.
  static at::Tensor hooked(const at::Tensor& value, Tensors& kept) {
    const at::Tensor same = value + 0;
    if (same.requires_grad()) {
      same.register_hook([&kept](const at::Tensor& gradient) {
        kept.insert(kept.end(), {gradient, gradient.clone()});
      });
    }
    return same;
  }

  std::mt19937 random_;
};

TEST(MultiWorkerTraining, OfRandomLossesHasTheBitsOfOneProcess) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    for (const bool is_traced : {false, true}) {
      const Train train = [&](SynchronousStrategy& strategy) {
        std::vector<Variable> all;
        for (int i = 0; i < 4; ++i)
          all.push_back(strategy.variable("w" + std::to_string(i), at::zeros({4, 4})));
        set_values(all);
        const SGD first({all[0], all[1]}, {.learning_rate = 0.1, .momentum = 0.9});
        const Adam second({all[2], all[3]}, {.learning_rate = 0.01});
        const auto step = [&](const at::Tensor& x) {
          Tensors kept, values;
          for (const Variable& each : all) values.push_back(each.tensor());
          const at::Tensor loss = RandomLoss(seed)(values, x, kept);
          const auto others = second.compute_gradients(loss);
          first.minimize(loss);
          second.apply_gradients(others);
          for (std::size_t i = 0; i < kept.size() && !is_traced; i += 2)
            EXPECT_TRUE(kept[i].equal(kept[i + 1]));
        };
        const auto traced = strategy.function(step);
        for (int number = 0; number < 3; ++number) {
          at::Generator generator = at::detail::createCPUGenerator(seed + 1);
          const at::Tensor x = at::rand({8, 4}, generator);
          is_traced ? traced(own_parts(x, strategy)) : strategy.run(step, own_parts(x, strategy));
        }
        return testing::values_of(all);
      };
      SCOPED_TRACE(::testing::Message() << "seed " << seed << (is_traced ? ", traced" : ""));
      expect_bits_of_one_process(2, 1, train);
    }
  }
}

TEST(MultiWorkerTraining, HasStatisticsOfBatchNormOfAllReplicas) {
  const Train train = [](SynchronousStrategy& strategy) {
    const auto net = strategy.replicate([] {
      return torch::nn::Sequential(torch::nn::Linear(6, 5),
                                   SyncBatchNorm<torch::nn::BatchNorm1d>(5),
                                   torch::nn::Linear(5, 4));
    });
    set_values(net.parameters());
    const Adam adam(net.parameters(), {.learning_rate = 0.01});
    for (int step = 0; step < kTrainingSteps; ++step) {
      const auto [x, y] = batch_of(step);
      strategy.run(
          [&](const at::Tensor& images, const at::Tensor& labels) {
            adam.minimize(average_loss(losses_of(net->forward(images), labels)));
          },
          own_parts(x, strategy), own_parts(y, strategy));
    }
    return testing::values_of(net.variables());
  };
  expect_bits_of_one_process(2, 1, train);
  expect_bits_of_one_process(2, 2, train);
}

TEST(MultiWorkerTraining, WorksWithOptimizersOfLibTorch) {
  const Train train = [](SynchronousStrategy& strategy) {
    const auto net = strategy.replicate(net_with_dropout);
    set_values(net.variables());
    const TorchOptimizer adam(net, [](std::vector<at::Tensor> parameters) {
      return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(1e-2));
    });
    const SeededThread seeded(7);
    for (int step = 0; step < kTrainingSteps; ++step) {
      const auto [x, y] = batch_of(step);
      strategy.run(
          [&](const at::Tensor& images, const at::Tensor& labels) {
            average_loss(losses_of(net->forward(images), labels)).backward();
            adam.step([&](torch::optim::Adam&) {
              torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
            });
          },
          own_parts(x, strategy), own_parts(y, strategy));
    }
    return testing::values_of(net.variables());
  };
  expect_bits_of_one_process(2, 1, train);
  expect_bits_of_one_process(2, 2, train);
}

TEST(MultiWorkerTraining, AddsGradientsInPartsInOneTree) {
  const auto train_in = [](int parts) -> Train {
    return [parts](SynchronousStrategy& strategy) {
      const auto net = strategy.replicate([] { return torch::nn::Linear(6, 4); });
      set_values(net.variables());
      const SGD sgd(net.parameters(), {.learning_rate = 0.1, .momentum = 0.9});
      for (int step = 0; step < kTrainingSteps; ++step) {
        const auto [x, y] = batch_of(step);
        const int own = parts / strategy.num_replicas_in_sync();
        strategy.run(
            [&](const at::Tensor& images, const at::Tensor& labels) {
              const auto of_x = images.chunk(own), of_y = labels.chunk(own);
              sgd.apply_gradients(gradients_in_parts(sgd, own, [&](int part) {
                const auto i = static_cast<std::size_t>(part);
                return average_loss(losses_of(net->forward(of_x[i]), of_y[i]),
                                    {.global_batch_size = 8});
              }));
            },
            own_parts(x.narrow(0, 0, 8), strategy), own_parts(y.narrow(0, 0, 8), strategy));
      }
      return testing::values_of(net.variables());
    };
  };
  expect_bits_of_one_process(2, 1, train_in(4));
  expect_bits_of_one_process(2, 2, train_in(8));
  MirroredStrategy one({"CPU:0"}), four(testing::cpu_devices(4));
  const Tensors of_one = train_in(8)(one), of_four = train_in(8)(four);
  for (std::size_t i = 0; i < of_one.size(); ++i) EXPECT_TRUE(of_one[i].equal(of_four[i]));
}

}  // namespace
}  // namespace cohort
