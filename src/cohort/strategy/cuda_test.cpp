// SPDX-License-Identifier: Apache-2.0
// Training on GPUs: the numbers of the same program on CPUs, and equal bits in all replicas. These
// tests are skipped where there is no GPU.
#include <ATen/autocast_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include "cohort/core/detail/torch_error.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/internal/replica_devices.h"
#include "cohort/strategy/internal/whole_batch_fixture.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/saved_values.h"

namespace cohort::gpu_tests {
namespace {

using testing::Tensors;
using testing::throws_error;
using Devices = std::vector<std::string>;

constexpr double kTolerance = 1e-5;
constexpr std::int64_t kRows = 12;

int gpus() { return static_cast<int>(torch::cuda::device_count()); }

Tensors on_host(Tensors tensors) {
  for (at::Tensor& tensor : tensors) tensor = tensor.detach().cpu();
  return tensors;
}

void expect_close(const Tensors& got, const Tensors& expected, double tolerance = kTolerance) {
  testing::expect_close(on_host(got), on_host(expected), tolerance);
}

// All components have the same bits, and are on their replicas' devices.
void expect_equal_copies(Strategy& strategy, const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) {
    const std::vector<Variable> copies = strategy.local_results(variable);
    for (std::size_t i = 0; i < copies.size(); ++i) {
      EXPECT_TRUE(copies[i].read().cpu().equal(copies[0].read().cpu())) << variable.name() << i;
      EXPECT_EQ(copies[i].read().device(),
                internal::torch_device(Device::parse(strategy.worker_devices()[i])));
    }
  }
}

class OnGpus : public ::testing::TestWithParam<Devices> {
 protected:
  void SetUp() override {
    if (!has_device(at::kCUDA)) GTEST_SKIP() << "this host has no GPU";
    if (GetParam().back() == "GPU:1" && gpus() < 2) GTEST_SKIP() << "this host has one GPU";
    at::globalContext().setAllowTF32CuDNN(false);  // its convolutions have 10 bits of each number
    torch::manual_seed(7);
    strategy_ = std::make_unique<MirroredStrategy>(GetParam());
  }
  MirroredStrategy& strategy() { return *strategy_; }
  std::size_t replicas() const { return GetParam().size(); }
  // The same number of replicas, on CPUs.
  MirroredStrategy on_cpus() const {
    return MirroredStrategy(replicas() == 1 ? Devices{"CPU:0"} : Devices{"CPU:0", "CPU:1"});
  }
  // Uneven parts of a batch, each on its replica's device.
  static PerReplica<at::Tensor> parts(Strategy& strategy, const at::Tensor& whole) {
    const Devices devices = strategy.worker_devices();
    if (devices.size() == 1)
      return PerReplica<at::Tensor>(
          Tensors{whole.to(internal::torch_device(Device::parse(devices[0])))});
    Tensors parts = whole.split_with_sizes({kRows - 5, 5});
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[i] = parts[i].to(internal::torch_device(Device::parse(devices[i])));
    return PerReplica<at::Tensor>(std::move(parts));
  }

  std::unique_ptr<MirroredStrategy> strategy_;
};

INSTANTIATE_TEST_SUITE_P(Devices, OnGpus,
                         ::testing::Values(Devices{"GPU:0"}, Devices{"GPU:0", "CPU:0"},
                                           Devices{"CPU:0", "GPU:0"}, Devices{"GPU:0", "GPU:1"}),
                         [](const auto& test) {
                           std::string name;
                           for (const std::string& device : test.param)
                             name += device.substr(0, 3) + device.substr(4);
                           return name;
                         });

struct MlpImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& words) {
    return last->forward(first->forward(table->forward(words).flatten(1)).tanh());
  }
  torch::nn::Embedding table{register_module("table", torch::nn::Embedding(10, 4))};
  torch::nn::Linear first{register_module("first", torch::nn::Linear(12, 8))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(8, 3))};
};
TORCH_MODULE(Mlp);

at::Tensor words(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step) + 1);
  return torch::randint(10, {kRows, 3}, at::kLong);
}

template <class Norm>
struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() { dropout->eval(); }  // of which other devices draw other numbers
  at::Tensor forward(const at::Tensor& x) {
    return head->forward(dropout->forward(norm->forward(conv->forward(x)).relu()).flatten(1));
  }
  torch::nn::Conv2d conv{
      register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)))};
  Norm norm{register_module("norm", Norm(4))};
  torch::nn::Dropout dropout{register_module("dropout", torch::nn::Dropout(0.5))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(36, 3))};
};

at::Tensor images(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step) + 1);
  return torch::randn({kRows, 2, 5, 5}) * 2 + 3;
}

at::Tensor losses_of(const at::Tensor& outputs) { return (outputs - 0.5).square().mean(1); }

// The variables of a model after some steps. `step` minimizes the losses of one replica.
template <class M, class MakeOptimizer>
Tensors trained(Strategy& strategy, const std::function<M()>& factory,
                const std::function<PerReplica<at::Tensor>(int)>& batch, MakeOptimizer make,
                int steps = 6) {
  const auto model = strategy.replicate(factory);
  const auto optimizer = make(model);
  for (int step = 0; step < steps; ++step) {
    strategy.run(
        [&](const at::Tensor& x) {
          optimizer.minimize(average_loss(losses_of(model->forward(x))));
        },
        batch(step));
  }
  expect_equal_copies(strategy, model.parameters());
  return testing::values_of(model.variables());
}

TEST_P(OnGpus, EachOptimizerTrainsAsOnCpus) {
  const auto each = [&](const char* name, auto make) {
    SCOPED_TRACE(name);
    const auto values = [&](Strategy& on) {
      return trained<Mlp>(
          on, [] { return Mlp(); }, [&](int i) { return parts(on, words(i)); }, make);
    };
    MirroredStrategy cpus({"CPU:0", "CPU:1"});
    expect_close(values(strategy()), values(cpus));
  };
  each("SGD", [](const auto& m) { return SGD(m.parameters(), {.learning_rate = 0.1}); });
  each("SGD with decay", [](const auto& m) {
    return SGD(m.parameters(), {.learning_rate = 0.1, .weight_decay = 0.01});
  });
  each("momentum",
       [](const auto& m) { return SGD(m.parameters(), {.learning_rate = 0.1, .momentum = 0.9}); });
  each("Nesterov's momentum", [](const auto& m) {
    return SGD(m.parameters(),
               {.learning_rate = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01});
  });
  // With a small epsilon, tiny gradients would count as much as large ones.
  each("Adam", [](const auto& m) {
    return Adam(m.parameters(), {.learning_rate = 0.01, .epsilon = 1e-3});
  });
  each("Adam with decay", [](const auto& m) {
    return Adam(m.parameters(), {.learning_rate = 0.01, .epsilon = 1e-3, .weight_decay = 0.01});
  });
  each("AdamW", [](const auto& m) {
    return AdamW(m.parameters(), {.learning_rate = 0.01, .epsilon = 1e-3});
  });
  each("Adagrad", [](const auto& m) { return Adagrad(m.parameters(), {.learning_rate = 0.05}); });
  each("RMSprop", [](const auto& m) {
    return RMSprop(m.parameters(), {.learning_rate = 0.01, .epsilon = 1e-3});
  });
}

TEST_P(OnGpus, OptimizersOfLibTorchTrainAsOnCpus) {
  const auto each = [&](auto factory) {
    const auto values = [&](Strategy& on) {
      return trained<Mlp>(
          on, [] { return Mlp(); }, [&](int i) { return parts(on, words(i)); },
          [&](const auto& model) { return TorchOptimizer(model, factory); });
    };
    MirroredStrategy cpus({"CPU:0", "CPU:1"});
    expect_close(values(strategy()), values(cpus));
  };
  each([](Tensors parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  each([](Tensors parameters) {
    return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(0.01).eps(1e-3));
  });
}

TEST_P(OnGpus, SyncBatchNormIsThatOfTheWholeBatch) {
  using Net = torch::nn::ModuleHolder<ConvNetImpl<SyncBatchNorm<torch::nn::BatchNorm2d>>>;
  const auto make = [](const auto& m) { return SGD(m.parameters(), {.learning_rate = 0.05}); };
  const auto values = [&](Strategy& on) {
    return trained<Net>(
        on, [] { return Net(); }, [&](int i) { return parts(on, images(i)); }, make);
  };
  MirroredStrategy cpus({"CPU:0", "CPU:1"});
  expect_close(values(strategy()), values(cpus));
}

TEST_P(OnGpus, BatchNormIsThatOfTheReplicasRows) {
  using Net = torch::nn::ModuleHolder<ConvNetImpl<torch::nn::BatchNorm2d>>;
  const auto make = [](const auto& m) { return Adam(m.parameters(), {.epsilon = 1e-3}); };
  const auto values = [&](Strategy& on) {
    return trained<Net>(
        on, [] { return Net(); }, [&](int i) { return parts(on, images(i)); }, make);
  };
  MirroredStrategy cpus = on_cpus();
  expect_close(values(strategy()), values(cpus));
}

TEST_P(OnGpus, OneDeviceStrategyTrainsThere) {
  if (replicas() > 1) GTEST_SKIP() << "one device";
  const auto make = [](const auto& m) { return Adam(m.parameters(), {.epsilon = 1e-3}); };
  const auto values = [&](Strategy& on) {
    return trained<Mlp>(
        on, [] { return Mlp(); }, [&](int i) { return parts(on, words(i)); }, make);
  };
  OneDeviceStrategy gpu("GPU:0"), cpu("CPU:0");
  expect_close(values(gpu), values(cpu));
}

TEST_P(OnGpus, AllRunsUseTheStreamOfTheCaller) {
  const auto make = [](const auto& m) { return SGD(m.parameters(), {.learning_rate = 0.1}); };
  const auto values = [&](Strategy& on) {
    return trained<Mlp>(
        on, [] { return Mlp(); }, [&](int i) { return parts(on, words(i)); }, make);
  };
  MirroredStrategy cpus({"CPU:0", "CPU:1"});
  const Tensors expected = values(cpus);
  const c10::Device gpu(at::kCUDA, 0);
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  const c10::StreamGuard other(guard.getStreamFromGlobalPool(gpu));
  const c10::Stream here = guard.getStream(gpu);
  EXPECT_NE(here, guard.getDefaultStream(gpu));
  const auto same = strategy().run([&] { return at::scalar_tensor(guard.getStream(gpu) == here); });
  for (std::size_t i = 0; i < same.size(); ++i) EXPECT_TRUE(same[i].item<bool>()) << i;
  expect_close(values(strategy()), expected);
}

TEST_P(OnGpus, AReplicasDeviceIsTheCurrentOne) {
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  strategy().run([&] {
    const auto replica = static_cast<std::size_t>(get_replica_context()->local_replica_id());
    const Device device = Device::parse(GetParam()[replica]);
    if (device.type == "GPU") EXPECT_EQ(guard.getDevice().index(), device.index);
  });
  const Variable v = strategy().variable("v", at::zeros({2}));
  strategy().extended().update(v, [&](const Variable& component) {
    if (component.tensor().is_cuda()) EXPECT_EQ(guard.getDevice(), component.tensor().device());
    component.assign_add(at::ones({2}));
  });
  expect_close({v.read()}, {at::ones({2})});
}

TEST_P(OnGpus, GradientsOfCollectivesAreThoseOnCpus) {
  const auto gradient_and_value = [&](Strategy& on) {
    const Variable v = on.variable("v", at::arange(3, at::kFloat));
    const SGD sgd({v}, {.learning_rate = 0.1});
    const auto sums = on.run(
        [&](const at::Tensor& x) {
          ReplicaContext& here = *get_replica_context();
          const at::Tensor own = (x * v.tensor()).sum();
          const at::Tensor sum = here.all_reduce("sum", own.square());
          const at::Tensor rows = here.all_gather((x * v.tensor()).tanh(), 0);
          sgd.minimize((sum + rows.square().sum() + here.all_reduce("mean", own)) / 100);
          EXPECT_EQ(sum.device(), x.device());
          EXPECT_EQ(rows.device(), x.device());
          return sum.detach();
        },
        parts(on, images(0).flatten(1).narrow(1, 0, 3)));
    for (std::size_t i = 1; i < sums.size(); ++i) EXPECT_TRUE(sums[i].cpu().equal(sums[0].cpu()));
    return Tensors{v.read(), sums[0]};
  };
  MirroredStrategy cpus = on_cpus();
  expect_close(gradient_and_value(strategy()), gradient_and_value(cpus));
}

TEST_P(OnGpus, CodeInABackwardPassIsInItsReplica) {
  std::array<std::atomic<int>, 2> seen{-1, -1};
  std::array<std::atomic<int>, 2> device{-1, -1};
  const Variable v = strategy().variable("v", at::ones({2}));
  strategy().run([&] {
    const auto own = static_cast<std::size_t>(get_replica_context()->local_replica_id());
    const at::Tensor y = v.tensor() * 2;
    y.register_hook([&, own](const at::Tensor& gradient) {
      const ReplicaContext* const here = get_replica_context();
      seen[own] = here == nullptr ? -2 : here->replica_id_in_sync_group();
      device[own] = v.tensor().device() == gradient.device();
      return gradient;
    });
    (void)torch::autograd::grad({y.sum()}, {v.tensor()});
  });
  for (std::size_t i = 0; i < replicas(); ++i) {
    EXPECT_EQ(seen[i], static_cast<int>(i));
    EXPECT_EQ(device[i], 1);
  }
}

TEST_P(OnGpus, ACollectivesGradientOutsideOfItsRunThrows) {
  if (replicas() == 1) GTEST_SKIP() << "one replica meets none";
  const Variable v = strategy().variable("v", at::ones({2}));
  const auto sums =
      strategy().run([&] { return get_replica_context()->all_reduce("sum", v.tensor() * 2); });
  for (std::size_t i = 0; i < sums.size(); ++i) {
    EXPECT_THAT([&] { sums[i].sum().backward(); },
                throws_error(ErrorCode::failed_precondition, "expected a "))
        << i;
  }
}

TEST_P(OnGpus, ReplicasDrawFromGeneratorsOfTheirOwn) {
  const c10::Device gpu(at::kCUDA, 0);
  const auto draw = [&](std::uint64_t seed) {
    torch::manual_seed(seed);
    const at::Tensor before = at::globalContext().defaultGenerator(gpu).get_state();
    const auto drawn = strategy().run([&] {
      const auto replica = static_cast<std::size_t>(get_replica_context()->local_replica_id());
      const auto options =
          at::TensorOptions(internal::torch_device(Device::parse(GetParam()[replica])));
      at::Tensor dropped = at::dropout(at::ones({1000}, options).requires_grad_(), 0.25, true);
      return at::cat({at::rand({8}, options), at::empty({8}, options).normal_(), dropped.detach()});
    });
    const at::Tensor after = at::globalContext().defaultGenerator(gpu).get_state();
    if (replicas() > 1) EXPECT_TRUE(before.equal(after));
    Tensors values;
    for (std::size_t i = 0; i < drawn.size(); ++i) values.push_back(drawn[i].cpu());
    return values;
  };
  const Tensors first = draw(1), again = draw(1), other = draw(2);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(first[i].equal(again[i])) << i;
    EXPECT_FALSE(first[i].equal(other[i])) << i;
    const at::Tensor kept = first[i].narrow(0, 16, 1000);
    EXPECT_NEAR(kept.ne(0).to(at::kFloat).mean().item<double>(), 0.75, 0.07);
    EXPECT_NEAR(kept.max().item<double>(), 1 / 0.75, 1e-5);
  }
  if (replicas() > 1) EXPECT_FALSE(first[0].equal(first[1]));
}

TEST_P(OnGpus, ResultsAreReducedAndGatheredAsOnCpus) {
  const auto results = [&](Strategy& on) {
    const auto own = on.run([](const at::Tensor& x) { return x * 2; }, parts(on, words(0)));
    const auto sums = on.run([](const at::Tensor& x) { return x.sum().to(at::kFloat); }, own);
    const auto merged = on.run(
        [](const at::Tensor& x) {
          return get_replica_context()->merge_call(
              [](Strategy& in, const PerReplica<at::Tensor>& all) {
                return in.reduce(ReduceOp::mean, all);
              },
              x);
        },
        sums);
    return Tensors{on.gather(own, 0), on.reduce(ReduceOp::sum, sums),
                   on.reduce(ReduceOp::mean, own, 0).to(at::kFloat), merged[0]};
  };
  MirroredStrategy cpus = on_cpus();
  expect_close(results(strategy()), results(cpus));
}

TEST_P(OnGpus, DestinationsAreDevices) {
  StrategyExtended extended = strategy().extended();
  const auto ones = strategy().run([](const at::Tensor& x) { return x.sum() * 0 + 1; },
                                   parts(strategy(), words(0)));
  const Variable v = strategy().variable("v", at::zeros({}));
  const auto sums =
      extended.batch_reduce_to(ReduceOp::sum, {{ones, "CPU:0"}, {ones, "GPU:0"}, {ones, v}});
  EXPECT_TRUE(sums[0][0].is_cpu());
  EXPECT_TRUE(sums[1][0].is_cuda());
  for (std::size_t i = 0; i < replicas(); ++i) {
    EXPECT_EQ(sums[2][i].device(), strategy().local_results(v)[i].tensor().device());
    EXPECT_EQ(sums[2][i].item<double>(), static_cast<double>(replicas()));
  }
  const Mirrored<> copies = extended.broadcast_to(at::ones({2}), v);
  for (std::size_t i = 0; i < replicas(); ++i)
    EXPECT_EQ(copies[i].device(), strategy().local_results(v)[i].tensor().device());
}

TEST_P(OnGpus, VariablesAreAssignedAsOnCpus) {
  const auto results = [&](Strategy& on) {
    const Variable plain = on.variable("plain", at::arange(8, at::kFloat).view({4, 2}));
    const Variable mean =
        on.variable("mean", at::zeros({4, 2}), {.aggregation = VariableAggregation::mean});
    const Variable sum = on.variable("sum", at::zeros({}),
                                     {.synchronization = VariableSynchronization::on_read,
                                      .aggregation = VariableAggregation::sum});
    const Variable step =
        on.variable("step", at::scalar_tensor(3, at::kLong), {.is_trainable = false});
    step.assign_add(4);
    plain.assign_add(at::ones({4, 2}));
    plain.assign_sub(plain.read() * 0.5);
    plain.scatter_add(at::tensor({1, 3, 1}), at::ones({3, 2}));
    const c10::Device device = plain.tensor().device();
    plain.scatter_mul(at::tensor({0, 3}).to(device), at::full({2, 2}, 3).to(at::kFloat).to(device));
    plain.scatter_max(at::tensor({2}), at::full({1, 2}, 1.5));
    on.run(
        [&](const at::Tensor& x) {
          const at::Tensor values = x.narrow(0, 0, 4).narrow(1, 0, 2).to(at::kFloat);
          mean.assign(values);
          mean.assign_add(values.tanh());
          mean.scatter_sub(at::tensor({0, 2}).to(x.device()), values.narrow(0, 0, 2));
          sum.assign_add(values.sum());
        },
        parts(on, words(0)));
    expect_equal_copies(on, {plain, mean});
    return Tensors{plain.read(), mean.read(), sum.read(), step.read().to(at::kFloat)};
  };
  MirroredStrategy cpus = on_cpus();
  expect_close(results(strategy()), results(cpus));
}

TEST_P(OnGpus, ASyncOnReadScopeReadsOnTheReplicasDevice) {
  const Variable mean = strategy().variable("mean", at::ones({2}),
                                            {.synchronization = VariableSynchronization::on_read,
                                             .aggregation = VariableAggregation::mean});
  const Variable first =
      strategy().variable("first", at::ones({2}),
                          {.synchronization = VariableSynchronization::on_read,
                           .aggregation = VariableAggregation::only_first_replica});
  strategy().run([&] {
    const c10::Device device = mean.tensor().device();
    const SyncOnReadScope scope;
    EXPECT_EQ(mean.tensor().device(), device);
    EXPECT_EQ(first.tensor().device(), device);
  });
}

TEST_P(OnGpus, ValuesAreSavedRestoredAndCopiedToModules) {
  const auto model = strategy().replicate([] { return Mlp(); });
  std::map<std::string, Variable> named;
  for (const Variable& variable : model.variables()) named.emplace(variable.name(), variable);
  const testing::TemporaryFolder folder;
  save_values(folder.file("values"), named);
  Mlp copy = model.snapshot();
  const Tensors before = on_host(testing::values_of(model.variables()));
  EXPECT_TRUE(copy->parameters().front().is_cpu());
  expect_close(copy->parameters(), before, 0);
  for (const Variable& variable : model.variables())
    variable.assign(at::zeros_like(variable.read()));
  restore_values(folder.file("values"), named);
  expect_close(testing::values_of(model.variables()), before, 0);
  for (const Variable& variable : model.variables())
    variable.assign(at::zeros_like(variable.read()));
  model.load(copy);
  expect_close(testing::values_of(model.variables()), before, 0);
  expect_equal_copies(strategy(), model.variables());
}

TEST_P(OnGpus, DistributedElementsAreOnTheirDevices) {
  const auto rows = Dataset::from_tensor_slices(Nest(at::arange(9, at::kFloat)));
  auto batches = strategy().distribute_dataset(rows.batch(4));  // the last one has one row
  double sum = 0;
  for (const auto& batch : batches) {
    const auto sums = strategy().run(
        [&](const at::Tensor& x) {
          const auto replica = static_cast<std::size_t>(get_replica_context()->local_replica_id());
          EXPECT_EQ(x.device(), internal::torch_device(Device::parse(GetParam()[replica])));
          return x.sum();
        },
        batch);
    sum += strategy().reduce(ReduceOp::sum, sums).item<double>();
  }
  EXPECT_EQ(sum, 36);
}

TEST_P(OnGpus, ClippedGradientsAndThoseOfPartsAreThoseOnCpus) {
  const auto values = [&](Strategy& on) {
    const auto model = on.replicate([] { return Mlp(); });
    const SGD sgd(model.parameters(), {.learning_rate = 0.5});
    for (int step = 0; step < 3; ++step) {
      on.run(
          [&](const at::Tensor& x) {
            sgd.apply_gradients(clip_by_global_norm(
                gradients_in_parts(sgd, 2,
                                   [&](int i) {
                                     return average_loss(losses_of(model->forward(x.chunk(2)[i])),
                                                         {.global_batch_size = kRows});
                                   }),
                0.1));
          },
          parts(on, words(step)));
    }
    expect_equal_copies(on, model.parameters());
    return testing::values_of(model.variables());
  };
  MirroredStrategy cpus({"CPU:0", "CPU:1"});
  expect_close(values(strategy()), values(cpus));
}

TEST_P(OnGpus, AWriteIntoOneReplicaIsDetected) {
  if (replicas() == 1) GTEST_SKIP() << "one replica is equal to itself";
  const Variable v = strategy().variable("v", at::ones({3}));
  EXPECT_THAT(
      [&] {
        strategy().run([&] {
          if (get_replica_context()->local_replica_id() == 1) v.tensor().data().add_(1);
        });
      },
      throws_error(ErrorCode::failed_precondition, "expected equal values of variable 'v'"));
}

TEST_P(OnGpus, AutocastComputesWithTheWeightsOfTheStep) {
  const auto model = strategy().replicate([] { return torch::nn::Linear(3, 2); });
  const auto outputs = [&] {
    const auto all = strategy().run([&] {
      return model->forward(at::ones({1, 3}, model->weight.options().requires_grad(false)));
    });
    return all[0].detach().cpu().to(at::kFloat);
  };
#if TORCH_VERSION_MAJOR >= 2 && TORCH_VERSION_MINOR >= 4
  const auto enable = [](bool is_enabled) {
    at::autocast::set_autocast_enabled(at::kCUDA, is_enabled);
  };
#else
  const auto enable = [](bool is_enabled) { at::autocast::set_enabled(is_enabled); };
#endif
  enable(true);
  at::autocast::increment_nesting();
  const at::Tensor before = outputs();
  for (const Variable& variable : model.variables()) variable.assign(variable.read().detach() + 1);
  const at::Tensor after = outputs();
  at::autocast::decrement_nesting();
  at::autocast::clear_cache();
  enable(false);
  expect_close({after}, {before + 4}, 1e-2);
}

TEST_P(OnGpus, WhatDoesNotWorkIsRefused) {
  const std::string refused = "expected replicas on CPUs, got GPU:0";
  EXPECT_THAT([&] { CentralStorageStrategy(GetParam()).variable("v", at::ones({2})); },
              throws_error(ErrorCode::unimplemented, refused));
  EXPECT_THAT([&] { CentralStorageStrategy({"CPU:0"}, "GPU:0").variable("v", at::ones({2})); },
              throws_error(ErrorCode::unimplemented, refused));
  EXPECT_THAT([&] { strategy().function([](const at::Tensor& x) { return x; })(at::ones({2})); },
              throws_error(ErrorCode::unimplemented, refused));
  const Variable v = strategy().variable("v", at::ones({2}));
  const SGD sgd({v}, {.learning_rate = 0.1});
  EXPECT_THAT(
      [&] {
        strategy().run([&] {
          const c10::Device other =
              v.tensor().is_cuda() ? c10::Device(at::kCPU) : c10::Device(at::kCUDA, 0);
          sgd.apply_gradients({{at::ones({2}, other), v}});
        });
      },
      throws_error(ErrorCode::unimplemented, "move it with to()"));
}

}  // namespace
}  // namespace cohort::gpu_tests
