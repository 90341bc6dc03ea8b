// SPDX-License-Identifier: Apache-2.0
// For tests only: programs on GPUs, to be compared with the same programs on CPUs.
#pragma once

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <vector>

#include "cohort/core/torch_error.h"
#include "cohort/replicas/replica_devices.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/synchronous/whole_batch_fixture.h"

namespace cohort::testing {

using Devices = std::vector<std::string>;

inline constexpr double kTolerance = 1e-5;
inline constexpr std::int64_t kRows = 12;

inline int gpus() { return static_cast<int>(torch::cuda::device_count()); }

inline Tensors on_host(Tensors tensors) {
  for (at::Tensor& tensor : tensors) tensor = tensor.detach().cpu();
  return tensors;
}

inline void expect_close_on_host(const Tensors& got, const Tensors& expected,
                                 double tolerance = kTolerance) {
  expect_close(on_host(got), on_host(expected), tolerance);
}

// All components have the same bits, and are on their replicas' devices.
inline void expect_equal_copies(Strategy& strategy, const std::vector<Variable>& variables) {
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
    at::manual_seed(7);
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

// The devices with which tests on GPUs run.
inline std::vector<Devices> gpu_devices() {
  return {{"GPU:0"}, {"GPU:0", "CPU:0"}, {"CPU:0", "GPU:0"}, {"GPU:0", "GPU:1"}};
}

// "GPU0CPU0"
inline std::string name_of_devices(const ::testing::TestParamInfo<Devices>& test) {
  std::string name;
  for (const std::string& device : test.param) name += device.substr(0, 3) + device.substr(4);
  return name;
}

// Takes words().
struct MlpImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(first->forward(table->forward(x).flatten(1)).tanh());
  }
  torch::nn::Embedding table{register_module("table", torch::nn::Embedding(10, 4))};
  torch::nn::Linear first{register_module("first", torch::nn::Linear(12, 8))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(8, 3))};
};
TORCH_MODULE(Mlp);

// Batches of each step.
inline at::Tensor words(int step) {
  at::manual_seed(static_cast<std::uint64_t>(step) + 1);
  return at::randint(10, {kRows, 3}, at::kLong);
}

inline at::Tensor images(int step) {
  at::manual_seed(static_cast<std::uint64_t>(step) + 1);
  return at::randn({kRows, 2, 5, 5}) * 2 + 3;
}

inline at::Tensor losses_of(const at::Tensor& outputs) { return (outputs - 0.5).square().mean(1); }

}  // namespace cohort::testing
