// SPDX-License-Identifier: Apache-2.0
// Training on GPUs: the numbers of the same program on CPUs, and equal bits in all replicas. These
// tests are skipped where there is no GPU.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/synchronous/gpu_fixture.h"

namespace cohort::gpu_training {
namespace {

using testing::Devices;
using testing::expect_close_on_host;
using testing::expect_equal_copies;
using testing::images;
using testing::kRows;
using testing::losses_of;
using testing::Mlp;
using testing::Tensors;
using testing::words;

class GpuTraining : public testing::OnGpus {};

INSTANTIATE_TEST_SUITE_P(Devices, GpuTraining, ::testing::ValuesIn(testing::gpu_devices()),
                         testing::name_of_devices);

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

TEST_P(GpuTraining, EachOptimizerTrainsAsOnCpus) {
  const auto each = [&](const char* name, auto make) {
    SCOPED_TRACE(name);
    const auto values = [&](Strategy& on) {
      return trained<Mlp>(
          on, [] { return Mlp(); }, [&](int i) { return parts(on, words(i)); }, make);
    };
    MirroredStrategy cpus({"CPU:0", "CPU:1"});
    expect_close_on_host(values(strategy()), values(cpus));
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
  each("Adam",
       [](const auto& m) { return Adam(m.parameters(), {.learning_rate = 0.01, .eps = 1e-3}); });
  each("Adam with decay", [](const auto& m) {
    return Adam(m.parameters(), {.learning_rate = 0.01, .eps = 1e-3, .weight_decay = 0.01});
  });
  each("AdamW",
       [](const auto& m) { return AdamW(m.parameters(), {.learning_rate = 0.01, .eps = 1e-3}); });
  each("Adagrad", [](const auto& m) {
    return Adagrad(m.parameters(), {.learning_rate = 0.05, .initial_accumulator = 0.1});
  });
  each("RMSprop",
       [](const auto& m) { return RMSprop(m.parameters(), {.learning_rate = 0.01, .eps = 1e-3}); });
}

TEST_P(GpuTraining, OptimizersOfLibTorchTrainAsOnCpus) {
  const auto each = [&](auto factory) {
    const auto values = [&](Strategy& on) {
      return trained<Mlp>(
          on, [] { return Mlp(); }, [&](int i) { return parts(on, words(i)); },
          [&](const auto& model) { return TorchOptimizer(model, factory); });
    };
    MirroredStrategy cpus({"CPU:0", "CPU:1"});
    expect_close_on_host(values(strategy()), values(cpus));
  };
  each([](Tensors parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  each([](Tensors parameters) {
    return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(0.01).eps(1e-3));
  });
}

TEST_P(GpuTraining, SyncBatchNormIsThatOfTheWholeBatch) {
  using Net = torch::nn::ModuleHolder<ConvNetImpl<SyncBatchNorm<torch::nn::BatchNorm2d>>>;
  const auto make = [](const auto& m) { return SGD(m.parameters(), {.learning_rate = 0.05}); };
  const auto values = [&](Strategy& on) {
    return trained<Net>(
        on, [] { return Net(); }, [&](int i) { return parts(on, images(i)); }, make);
  };
  MirroredStrategy cpus({"CPU:0", "CPU:1"});
  expect_close_on_host(values(strategy()), values(cpus));
}

TEST_P(GpuTraining, BatchNormIsThatOfTheReplicasRows) {
  using Net = torch::nn::ModuleHolder<ConvNetImpl<torch::nn::BatchNorm2d>>;
  const auto make = [](const auto& m) { return Adam(m.parameters(), {.eps = 1e-3}); };
  const auto values = [&](Strategy& on) {
    return trained<Net>(
        on, [] { return Net(); }, [&](int i) { return parts(on, images(i)); }, make);
  };
  MirroredStrategy cpus = on_cpus();
  expect_close_on_host(values(strategy()), values(cpus));
}

struct RecurrentImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return head->forward(std::get<0>(lstm->forward(x.flatten(2))).flatten(1));
  }
  torch::nn::LSTM lstm{
      register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(25, 4).batch_first(true)))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(8, 3))};
};
TORCH_MODULE(Recurrent);

TEST_P(GpuTraining, ALayerOfCudnnTrainsAsOnCpus) {
  const auto make = [](const auto& m) { return SGD(m.parameters(), {.learning_rate = 0.1}); };
  const auto values = [&](Strategy& on) {
    return trained<Recurrent>(
        on, [] { return Recurrent(); }, [&](int i) { return parts(on, images(i)); }, make);
  };
  MirroredStrategy cpus({"CPU:0", "CPU:1"});
  expect_close_on_host(values(strategy()), values(cpus));
}

TEST_P(GpuTraining, OneDeviceStrategyTrainsThere) {
  if (replicas() > 1) GTEST_SKIP() << "one device";
  const auto make = [](const auto& m) { return Adam(m.parameters(), {.eps = 1e-3}); };
  const auto values = [&](Strategy& on) {
    return trained<Mlp>(
        on, [] { return Mlp(); }, [&](int i) { return parts(on, words(i)); }, make);
  };
  OneDeviceStrategy gpu("GPU:0"), cpu("CPU:0");
  expect_close_on_host(values(gpu), values(cpu));
}

TEST_P(GpuTraining, DevicesThatAddInPairsGiveTheSameBits) {
  const auto values = [&](CrossDeviceOps ops) {
    MirroredStrategy on(GetParam(), {.cross_device_ops = ops});
    return trained<Mlp>(
        on, [] { return Mlp(); }, [&](int i) { return parts(on, words(i)); },
        [](const auto& m) { return SGD(m.parameters(), {.learning_rate = 0.1}); });
  };
  expect_close_on_host(values(CrossDeviceOps::hierarchical_copy),
                       values(CrossDeviceOps::reduction_to_one_device), 0);
}

TEST_P(GpuTraining, AllRunsUseTheStreamOfTheCaller) {
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
  expect_close_on_host(values(strategy()), expected);
}

TEST_P(GpuTraining, GradientsOfCollectivesAreThoseOnCpus) {
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
  expect_close_on_host(gradient_and_value(strategy()), gradient_and_value(cpus));
}

TEST_P(GpuTraining, AValueThatWasReadBeforeTheRunHasItsGradient) {
  const auto values = [&](Strategy& on) {
    const Variable v = on.variable("v", at::arange(3, at::kFloat));
    const SGD sgd({v}, {.learning_rate = 0.1});
    const at::Tensor before = v.read();
    on.run(
        [&](const at::Tensor& x) {
          sgd.minimize(average_loss((before.to(x.device()) * x.to(at::kFloat)).tanh().sum(1)));
        },
        parts(on, words(0)));
    expect_equal_copies(on, {v});
    return Tensors{v.read()};
  };
  MirroredStrategy cpus = on_cpus();
  expect_close_on_host(values(strategy()), values(cpus));
}

TEST_P(GpuTraining, RunsOfTwoThreadsAtATimeDoNotDisturbEachOther) {
  if (GetParam().back() == "GPU:1") GTEST_SKIP() << "refused on several GPUs";
  const auto values = [&](Strategy& on, const std::string& name) {
    const Variable v = on.variable(name, at::arange(3, at::kFloat));
    const SGD sgd({v}, {.learning_rate = 0.1});
    for (int step = 0; step < 50; ++step) {
      on.run([&] {
        const at::Tensor sum = get_replica_context()->all_reduce("sum", v.tensor().tanh());
        sgd.minimize(get_replica_context()->all_reduce("mean", sum.square()).sum() / 10);
      });
    }
    return v.read();
  };
  Tensors got(2);
  std::thread other([&] { got[1] = values(strategy(), "other"); });
  got[0] = values(strategy(), "own");
  other.join();
  MirroredStrategy cpus = on_cpus();
  const at::Tensor expected = values(cpus, "v");
  expect_close_on_host(got, {expected, expected});
}

TEST_P(GpuTraining, ClippedGradientsAndThoseOfPartsAreThoseOnCpus) {
  const auto values = [&](Strategy& on) {
    const auto model = on.replicate([] { return Mlp(); });
    const SGD sgd(model.parameters(), {.learning_rate = 0.5});
    for (int step = 0; step < 3; ++step) {
      on.run(
          [&](const at::Tensor& x) {
            sgd.apply_gradients(
                clip_by_global_norm(
                    gradients_in_parts(sgd, 2,
                                       [&](int i) {
                                         return average_loss(
                                             losses_of(model->forward(x.chunk(2)[i])),
                                             {.global_batch_size = kRows});
                                       }),
                    0.1)
                    .gradients);
          },
          parts(on, words(step)));
    }
    expect_equal_copies(on, model.parameters());
    return testing::values_of(model.variables());
  };
  MirroredStrategy cpus({"CPU:0", "CPU:1"});
  expect_close_on_host(values(strategy()), values(cpus));
}

}  // namespace
}  // namespace cohort::gpu_training
