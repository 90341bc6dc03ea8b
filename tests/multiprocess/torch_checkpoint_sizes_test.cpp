// SPDX-License-Identifier: Apache-2.0
// A checkpoint with a TorchOptimizer of any number of replicas or workers has the same values and
// the same state of the optimizer when it is restored on any other number of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/collective/group.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

struct PairNetImpl : torch::nn::Module {
  PairNetImpl()
      : first(register_module("first", torch::nn::Linear(5, 4))),
        last(register_module("last", torch::nn::Linear(4, 2))) {}
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(first(x))); }
  torch::nn::Linear first;
  torch::nn::Linear last;
};
TORCH_MODULE(PairNet);

// The optimizers of LibTorch, and the slots of one parameter.
struct SgdKind {
  using Optimizer = torch::optim::SGD;
  static Optimizer make(std::vector<at::Tensor> parameters) {
    return Optimizer(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  static std::vector<at::Tensor> slots(const torch::optim::OptimizerParamState& state) {
    return {static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer()};
  }
};
struct AdamKind {
  using Optimizer = torch::optim::Adam;
  static Optimizer make(std::vector<at::Tensor> parameters) {
    return Optimizer(std::move(parameters), torch::optim::AdamOptions(0.1));
  }
  static std::vector<at::Tensor> slots(const torch::optim::OptimizerParamState& state) {
    const auto& own = static_cast<const torch::optim::AdamParamState&>(state);
    return {own.exp_avg(), own.exp_avg_sq(), torch::full({}, own.step(), torch::kLong)};
  }
};
struct RmspropKind {
  using Optimizer = torch::optim::RMSprop;
  static Optimizer make(std::vector<at::Tensor> parameters) {
    return Optimizer(std::move(parameters), torch::optim::RMSpropOptions(0.1).momentum(0.5));
  }
  static std::vector<at::Tensor> slots(const torch::optim::OptimizerParamState& state) {
    const auto& own = static_cast<const torch::optim::RMSpropParamState&>(state);
    return {own.square_avg(), own.momentum_buffer(), torch::full({}, own.step(), torch::kLong)};
  }
};

struct PairPlace {
  bool are_workers;
  int count;
  std::string name() const {
    return std::to_string(count) + (are_workers ? " workers" : " replicas");
  }
};

template <class Kind>
class TorchCheckpointSizes : public ::testing::Test {
 protected:
  using Tensors = std::vector<at::Tensor>;

  Tensors save(const PairPlace& place, const std::string& path) {
    return in(place, [&](SynchronousStrategy& strategy, const Replicated<PairNet>& net,
                         const TorchOptimizer<typename Kind::Optimizer>& optimizer) {
      for (int i = 0; i < 3; ++i) {
        strategy.run([&] {
          const at::Tensor x = torch::sin(torch::arange(10, torch::kFloat).view({2, 5}) + i);
          optimizer.minimize(average_loss(net->forward(x).square().sum(1)));
        });
      }
      Checkpoint(strategy).write(path, 3);
    });
  }
  Tensors restore(const PairPlace& place, const std::string& path) {
    return in(place, [&](SynchronousStrategy& strategy, const Replicated<PairNet>&,
                         const TorchOptimizer<typename Kind::Optimizer>&) {
      Checkpoint(strategy).read(path).assert_consumed();
    });
  }

  const testing::TemporaryFolder folder_;

 private:
  using Action = std::function<void(SynchronousStrategy&, const Replicated<PairNet>&,
                                    const TorchOptimizer<typename Kind::Optimizer>&)>;

  static Tensors with(SynchronousStrategy& strategy, const Action& action) {
    const auto net = strategy.replicate([] { return PairNet(); });
    const TorchOptimizer<typename Kind::Optimizer> optimizer(net, Kind::make);
    action(strategy, net, optimizer);
    Tensors all;
    for (const Variable& each : net.variables()) all.push_back(each.read().clone());
    std::map<std::int64_t, Tensors> by_size;  // the parameters have different sizes
    for (const auto& [key, state] : optimizer.per_replica(0).state()) {
      const Tensors slots = Kind::slots(*state);
      by_size[slots.front().numel()] = slots;
    }
    for (const auto& [size, slots] : by_size)
      for (const at::Tensor& slot : slots) all.push_back(slot.clone());
    return all;
  }
  static Tensors in(const PairPlace& place, const Action& action) {
    if (!place.are_workers) {
      MirroredStrategy strategy(testing::cpu_devices(place.count));
      return with(strategy, action);
    }
    const InProcessWorkers workers(place.count);
    const auto all = testing::on_workers<Tensors>(place.count, [&](int rank) {
      MultiWorkerMirroredStrategy strategy(workers.group(rank));
      return with(strategy, action);
    });
    return all.front();
  }
};

using TorchKinds = ::testing::Types<SgdKind, AdamKind, RmspropKind>;
TYPED_TEST_SUITE(TorchCheckpointSizes, TorchKinds);

TYPED_TEST(TorchCheckpointSizes, FitEachOther) {
  std::vector<PairPlace> places;
  for (const bool are_workers : {false, true})
    for (const int count : {1, 2, 3}) places.push_back({are_workers, count});
  for (const PairPlace& from : places) {
    const std::string path = this->folder_.file("from " + from.name());
    const std::vector<at::Tensor> saved = this->save(from, path);
    EXPECT_GE(saved.size(), 8U);
    for (const PairPlace& to : places) {
      SCOPED_TRACE(from.name() + " to " + to.name());
      const std::vector<at::Tensor> restored = this->restore(to, path);
      ASSERT_EQ(restored.size(), saved.size());
      for (std::size_t i = 0; i < saved.size(); ++i)
        EXPECT_TRUE(torch::equal(restored[i], saved[i])) << i;
    }
  }
}

// On parameter servers the values arrive, and nothing takes the optimizer's state in silence.
TEST(TorchCheckpoint, OnServersTheOptimizerIsNamed) {
  const testing::TemporaryFolder folder;
  std::vector<at::Tensor> saved;
  {
    MirroredStrategy strategy(std::vector<std::string>{"CPU:0"});
    const auto net = strategy.replicate([] { return PairNet(); });
    const TorchOptimizer<torch::optim::Adam> optimizer(net, AdamKind::make);
    Checkpoint(strategy).write(folder.file("c"));
    for (const Variable& each : net.variables()) saved.push_back(each.read().clone());
  }
  testing::TestCluster cluster({.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server"}});
  ParameterServerStrategy strategy(cluster.resolver());
  const auto net = strategy.replicate([] { return PairNet(); });
  EXPECT_THAT([&] { TorchOptimizer<torch::optim::Adam>(net, AdamKind::make); },
              throws_error(ErrorCode::unimplemented, "use cohort::Adam"));
  const Adam adam(net.parameters(), {.name = "adam"});
  const Checkpoint checkpoint(strategy);
  EXPECT_THAT([&] { checkpoint.read(folder.file("c")); },
              throws_error(ErrorCode::not_found, "adam"));
  const Restored restored = checkpoint.read(folder.file("c"), {.allow_missing = true});
  EXPECT_THAT([&] { restored.assert_consumed(); },
              throws_error(ErrorCode::failed_precondition, "TorchOptimizer of 'model/"));
  for (std::size_t i = 0; i < saved.size(); ++i)
    EXPECT_TRUE(torch::equal(net.variables()[i].read(), saved[i]));
}

}  // namespace
}  // namespace cohort
