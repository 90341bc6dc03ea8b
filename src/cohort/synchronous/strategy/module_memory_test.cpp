// SPDX-License-Identifier: Apache-2.0
// Modules whose factory uses tensors that it has captured, and modules that get memory by
// set_data(): no two replicas, modules or snapshots may train in the same memory without a word.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/synchronous/workers/workers_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

// A layer, and a buffer by which it divides.
struct ScaledImpl : torch::nn::Module {
  explicit ScaledImpl(const at::Tensor& scale_of_input)
      : scale(register_buffer("scale", scale_of_input)) {}
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x / scale); }

  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(4, 2))};
  at::Tensor scale;
};
TORCH_MODULE(Scaled);
Scaled make_scaled() { return Scaled(torch::ones({4})); }

// Its weight gets the memory of `weight` in each call.
std::function<Scaled()> factory_with_memory_of(const at::Tensor& weight) {
  return [weight] {
    Scaled made = make_scaled();
    made->layer->weight.set_data(weight);
    return made;
  };
}

// Its buffer is `scale` itself in each call.
std::function<Scaled()> factory_with(const at::Tensor& scale) {
  return [scale] { return Scaled(scale); };
}

void train(Strategy& strategy, const Replicated<Scaled>& net) {
  const SGD sgd(net.parameters(), {.learning_rate = 0.1});
  for (int i = 0; i < 3; ++i) {
    strategy.run([&] {
      sgd.minimize(average_loss(net->forward(torch::ones({2, 4})).square().sum(1)));
    });
  }
}

at::Tensor weight_of(const Replicated<Scaled>& net) { return net.parameters().at(0).read(); }

// Two snapshots are apart from the live module and from each other.
void expect_snapshots_apart(Strategy& strategy, const Replicated<Scaled>& net) {
  const Scaled first = net.snapshot();
  const at::Tensor kept = first->layer->weight.detach().clone();
  train(strategy, net);
  EXPECT_FALSE(weight_of(net).equal(kept));
  const Scaled second = net.snapshot();
  EXPECT_TRUE(first->layer->weight.equal(kept)) << "neither training nor a snapshot writes there";
  const at::Tensor trained = weight_of(net);
  EXPECT_TRUE(second->layer->weight.equal(trained));
  {
    const torch::NoGradGuard no_grad;
    second->layer->weight.zero_();
  }
  EXPECT_TRUE(weight_of(net).equal(trained));
}

// Regression: the snapshot of one replica was in the memory that the factory had captured, where
// the live module trains: a "best" snapshot became the last one.
TEST(ModuleMemory, SnapshotsHaveTheirOwnIfTheFactoryGivesCapturedMemory) {
  const at::Tensor weight = torch::full({2, 4}, 0.5);
  OneDeviceStrategy one;
  expect_snapshots_apart(one, one.replicate(factory_with_memory_of(weight.clone())));
  MirroredStrategy two({"CPU:0", "CPU:1"});
  expect_snapshots_apart(two, two.replicate(factory_with_memory_of(weight.clone())));
}

TEST(ModuleMemory, SnapshotsOfWorkersHaveTheirOwn) {
  const auto errors = testing::run_workers(2, {}, [](MultiWorkerMirroredStrategy& strategy) {
    const at::Tensor weight = torch::full({2, 4}, 0.5);
    expect_snapshots_apart(strategy, strategy.replicate(factory_with_memory_of(weight)));
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << testing::text_of(error);
}

// Regression: a view in another memory order was copied for the live module only, so all snapshots
// were written into the captured tensor.
TEST(ModuleMemory, SnapshotsHaveTheirOwnIfTheFactoryGivesATransposedView) {
  const at::Tensor weight = torch::full({4, 2}, 0.5);
  OneDeviceStrategy one;
  expect_snapshots_apart(one, one.replicate(factory_with_memory_of(weight.t())));
  EXPECT_TRUE(weight.eq(0.5).all().item<bool>());
}

TEST(ModuleMemory, TensorsOfASnapshotThatShareMemoryStillDo) {
  const at::Tensor captured = torch::arange(8, torch::kFloat);
  OneDeviceStrategy one;
  const auto net = one.replicate([&] {
    Scaled made = make_scaled();
    made->layer->weight.set_data(captured.view({2, 4}));
    made->scale.set_data(captured.narrow(0, 2, 4));
    return made;
  });
  const Scaled copy = net.snapshot();
  EXPECT_FALSE(copy->scale.is_alias_of(captured));
  EXPECT_TRUE(copy->scale.is_alias_of(copy->layer->weight));
  EXPECT_TRUE(copy->scale.equal(torch::arange(2, 6, torch::kFloat)));
  EXPECT_TRUE(copy->layer->weight.flatten().equal(captured));
}

// Regression: the buffer of the snapshot was that of the live module.
TEST(ModuleMemory, ASnapshotWithACapturedTensorIsRefused) {
  OneDeviceStrategy one;
  const auto net = one.replicate(factory_with(torch::ones({4})));
  EXPECT_THAT([&] { net.snapshot(); },
              throws_error(ErrorCode::invalid_argument, "[strategy.snapshot] expected new"));
  EXPECT_THAT(
      [&] { net.snapshot(); },
      throws_error(ErrorCode::invalid_argument,
                   "got 'scale' again: the factory registers a tensor that it has captured"));
  EXPECT_THAT([&] { net.snapshot(); },
              throws_error(ErrorCode::invalid_argument, "save_values() saves the values"));
}

TEST(ModuleMemory, ASnapshotOfAPretrainedEmbeddingNeedsAClone) {
  const at::Tensor table = torch::ones({3, 2});
  OneDeviceStrategy one;
  const auto make = [](const at::Tensor& from) {
    return torch::nn::Embedding::from_pretrained(
        from, torch::nn::EmbeddingFromPretrainedOptions().freeze(false));
  };
  const auto net = one.replicate([&] { return make(table); }, {.name = "captured"});
  EXPECT_THAT([&] { net.snapshot(); },
              throws_error(ErrorCode::invalid_argument, "got 'weight' again"));
  const auto cloned =
      one.replicate([&] { return make(table.detach().clone()); }, {.name = "cloned"});
  EXPECT_FALSE(cloned.snapshot()->weight.is_alias_of(table));
}

// Regression: two modules of one factory (a network and its target) trained in one memory.
TEST(ModuleMemory, IsNotThatOfAnotherModule) {
  OneDeviceStrategy one;
  const auto of_tensor = factory_with(torch::ones({4}));
  const auto first = one.replicate(of_tensor, {.name = "first"});
  EXPECT_THAT([&] { one.replicate(of_tensor, {.name = "second"}); },
              throws_error(ErrorCode::invalid_argument,
                           "got 'scale' again, which is variable 'first/scale': the factory"));
  const auto of_memory = factory_with_memory_of(torch::ones({2, 4}));
  const auto third = one.replicate(of_memory, {.name = "third"});
  EXPECT_THAT([&] { one.replicate(of_memory, {.name = "fourth"}); },
              throws_error(ErrorCode::already_exists,
                           "'layer.weight' with memory of its own, got that of variable "
                           "'third/layer.weight'; clone() the tensor"));
}

// Regression: the error told to make the module inside the factory, where it was made.
TEST(ModuleMemory, ACapturedTensorIsToldFromACapturedModule) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  EXPECT_THAT([&] { two.replicate(factory_with(torch::ones({4}))); },
              throws_error(ErrorCode::invalid_argument,
                           "got 'scale' again: the factory registers a "
                           "tensor that it has captured"));
  const Scaled captured = make_scaled();
  EXPECT_THAT([&] { two.replicate([&] { return captured; }); },
              throws_error(ErrorCode::invalid_argument,
                           "got the same one again; make the module inside the factory"));
}

TEST(ModuleMemory, EachReplicaHasItsOwnIfTheFactoryGivesCapturedMemory) {
  const at::Tensor weight = torch::full({2, 4}, 0.5);
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto net = two.replicate(factory_with_memory_of(weight));
  OneDeviceStrategy one;
  const auto alone = one.replicate(make_scaled);
  alone.load(net.snapshot());
  train(two, net);
  train(one, alone);
  EXPECT_TRUE(at::allclose(weight_of(net), weight_of(alone)));
}

// Steps in which each replica does what `give` does with its own weight.
auto giving(MirroredStrategy& strategy, const Replicated<Scaled>& net,
            const std::function<void(at::Tensor weight)>& give) {
  return [&strategy, &net, give] { strategy.run([&] { give(net->layer->weight); }); };
}

// Regression: both replicas trained in one memory, in which each update was made twice.
TEST(ModuleMemory, SetDataWithOneTensorForAllReplicasIsRefusedInEachRun) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto net = two.replicate(make_scaled);
  const at::Tensor shared = torch::ones({2, 4});
  for (int i = 0; i < 5; ++i) two.run([&] { net->forward(torch::ones({2, 4})); });
  const auto share = giving(two, net, [&](at::Tensor weight) { weight.set_data(shared); });
  EXPECT_THAT(share, throws_error(ErrorCode::failed_precondition,
                                  "[strategy.run] expected memory of its own for each replica's "
                                  "tensor of variable 'model/layer.weight', got one memory for "
                                  "replicas 0 and 1"));
  EXPECT_THAT([&] { two.run([&] {
                      net->forward(torch::ones({2, 4}));
                    }); },
              throws_error(ErrorCode::failed_precondition, "set_data(value.clone())"));
  giving(two, net, [&](at::Tensor weight) { weight.set_data(shared.clone()); })();
  train(two, net);
}

TEST(ModuleMemory, SetDataOfTheReplicasInDifferentRunsIsRefused) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto net = two.replicate(make_scaled);
  const at::Tensor shared = torch::ones({4});
  const auto give_to = [&](int replica) {
    two.run([&, replica] {
      if (get_replica_context()->local_replica_id() == replica) net->scale.set_data(shared);
    });
  };
  give_to(0);
  EXPECT_THAT([&] { give_to(1); }, throws_error(ErrorCode::failed_precondition, "'model/scale'"));
}

TEST(ModuleMemory, SetDataOfAVariableWithOneTensorForAllReplicasIsRefused) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const Variable variable = two.variable("w", torch::zeros({3}));
  const at::Tensor shared = torch::ones({3});
  EXPECT_THAT(
      [&] {
        two.run([&] {
          at::Tensor own = variable.tensor();
          own.set_data(shared);
        });
      },
      throws_error(ErrorCode::failed_precondition, "tensor of variable 'w', got one memory"));
}

// Regression: the replicas of central storage no longer shared the one value.
TEST(ModuleMemory, SetDataInOneReplicaOfCentralStorageIsRefused) {
  CentralStorageStrategy central(std::vector<std::string>{"CPU:0", "CPU:1"});
  const auto net = central.replicate(make_scaled);
  EXPECT_THAT(
      [&] {
        central.run([&] {
          at::Tensor own = net->layer->weight;
          own.set_data(torch::ones({2, 4}));
        });
      },
      throws_error(ErrorCode::failed_precondition,
                   "expected the one memory that all replicas share for variable "
                   "'model/layer.weight', got other memory in replica 1"));
}

// Regression: snapshot() threw LibTorch's error of a write into an expanded tensor, without a name.
TEST(ModuleMemory, AnExpandedBufferGetsMemoryForEachElement) {
  const auto make = [] { return Scaled(torch::ones({1}).expand({4})); };
  OneDeviceStrategy one;
  MirroredStrategy two({"CPU:0", "CPU:1"});
  for (Strategy* strategy : {static_cast<Strategy*>(&one), static_cast<Strategy*>(&two)}) {
    const auto net = strategy->replicate(make);
    strategy->run([&] { net->scale.copy_(torch::arange(1, 5)); });
    EXPECT_TRUE(net.snapshot()->scale.equal(torch::arange(1, 5, torch::kFloat)));
  }
}

// If the module wrote into the tensor that it has expanded, the buffer would not change.
TEST(ModuleMemory, AnExpandedBufferWhoseMemoryAnotherTensorHasIsRefused) {
  const at::Tensor small = torch::ones({1});
  OneDeviceStrategy one;
  EXPECT_THAT(
      [&] { one.replicate([&] { return Scaled(small.expand({4})); }); },
      throws_error(ErrorCode::invalid_argument,
                   "expected memory for each element of buffer 'scale', got that expand()"));
}

// Regression: the values of other shapes were broadcast into the snapshot, or left out.
TEST(SnapshotOfAnotherModule, IsRefusedByName) {
  for (const int replicas : {1, 2}) {
    MirroredStrategy strategy(testing::cpu_devices(replicas));
    int rows = 1;
    const auto net =
        strategy.replicate([&] { return torch::nn::Linear(4, rows); }, {.name = "net"});
    net.snapshot();
    rows = 3;
    EXPECT_THAT([&] { net.snapshot(); },
                throws_error(ErrorCode::failed_precondition,
                             "with 'weight' float32[1, 4], got 'weight' float32[3, 4]"));
  }
}

}  // namespace
}  // namespace cohort
