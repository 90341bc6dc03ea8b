// SPDX-License-Identifier: Apache-2.0
// Variables, results, input and random numbers of replicas on GPUs. These tests are skipped where
// there is no GPU.
#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <atomic>

#include "cohort/optimizer/optimizers.h"
#include "cohort/synchronous/gpu_fixture.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/saved_values.h"

namespace cohort::gpu_values {
namespace {

using testing::Devices;
using testing::expect_close_on_host;
using testing::expect_equal_copies;
using testing::Mlp;
using testing::Tensors;
using testing::throws_error;
using testing::words;

class GpuValues : public testing::OnGpus {};

INSTANTIATE_TEST_SUITE_P(Devices, GpuValues, ::testing::ValuesIn(testing::gpu_devices()),
                         testing::name_of_devices);

TEST_P(GpuValues, AReplicasDeviceIsTheCurrentOne) {
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  strategy().run([&] {
    const auto replica = static_cast<std::size_t>(get_replica_context()->local_replica_id());
    const Device device = Device::parse(GetParam()[replica]);
    if (device.type == "GPU") {
      EXPECT_EQ(guard.getDevice().index(), device.index);
    }
  });
  const Variable v = strategy().variable("v", at::zeros({2}));
  strategy().extended().update(v, [&](const Variable& component) {
    if (component.tensor().is_cuda()) {
      EXPECT_EQ(guard.getDevice(), component.tensor().device());
    }
    component.assign_add(at::ones({2}));
  });
  expect_close_on_host({v.read()}, {at::ones({2})});
}

// The graph of the value that was read is that of the first component, for all replicas.
TEST_P(GpuValues, CodeInABackwardPassIsInItsReplica) {
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

TEST_P(GpuValues, ACollectivesGradientOutsideOfItsRunThrows) {
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

TEST_P(GpuValues, ReplicasDrawFromGeneratorsOfTheirOwn) {
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
    if (replicas() > 1) {
      EXPECT_TRUE(before.equal(after));
    }
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
  if (replicas() > 1) {
    EXPECT_FALSE(first[0].equal(first[1]));
  }
}

TEST_P(GpuValues, ResultsAreReducedAndGatheredAsOnCpus) {
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
  expect_close_on_host(results(strategy()), results(cpus));
}

TEST_P(GpuValues, DestinationsAreDevices) {
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

TEST_P(GpuValues, VariablesAreAssignedAsOnCpus) {
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
  expect_close_on_host(results(strategy()), results(cpus));
}

TEST_P(GpuValues, ASyncOnReadScopeReadsOnTheReplicasDevice) {
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

TEST_P(GpuValues, ValuesAreSavedRestoredAndCopiedToModules) {
  const auto model = strategy().replicate([] { return Mlp(); });
  std::map<std::string, Variable> named;
  for (const Variable& variable : model.variables()) named.emplace(variable.name(), variable);
  const testing::TemporaryFolder folder;
  save_values(folder.file("values"), named);
  Mlp copy = model.snapshot();
  const Tensors before = testing::on_host(testing::values_of(model.variables()));
  EXPECT_TRUE(copy->parameters().front().is_cpu());
  expect_close_on_host(copy->parameters(), before, 0);
  for (const Variable& variable : model.variables())
    variable.assign(at::zeros_like(variable.read()));
  restore_values(folder.file("values"), named);
  expect_close_on_host(testing::values_of(model.variables()), before, 0);
  for (const Variable& variable : model.variables())
    variable.assign(at::zeros_like(variable.read()));
  model.load(copy);
  expect_close_on_host(testing::values_of(model.variables()), before, 0);
  expect_equal_copies(strategy(), model.variables());
}

TEST_P(GpuValues, DistributedElementsAreOnTheirDevices) {
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

TEST_P(GpuValues, AWriteIntoOneReplicaIsDetected) {
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

TEST_P(GpuValues, AutocastComputesWithTheWeightsOfTheStep) {
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
  expect_close_on_host({after}, {before + 4}, 1e-2);
}

TEST_P(GpuValues, WhatDoesNotWorkIsRefused) {
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
}  // namespace cohort::gpu_values
