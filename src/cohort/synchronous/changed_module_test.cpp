// SPDX-License-Identifier: Apache-2.0
// A module of replicate() that registers or replaces a parameter later is refused by run() and by
// snapshot(), as function() refuses it: the optimizer would not train what is no variable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/synchronous/workers/workers_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

// Changes itself in a later forward().
struct ChangingImpl : torch::nn::Module {
  using Change = std::function<void(ChangingImpl&)>;
  explicit ChangingImpl(Change first_change = {}, int calls_before = 0)
      : change(std::move(first_change)), calls_left(calls_before) {}
  at::Tensor forward(const at::Tensor& x) {
    calls.add_(1);
    if (change && calls_left-- == 0) change(*this);
    return layer->forward(x) * scale;
  }
  // Puts another tensor in the place of a registered one, as torch::nn::ParameterDict does.
  void replace_parameter(const std::string& name) { parameters_[name] = own_parameter(); }
  static at::Tensor own_parameter() { return torch::ones({4}).requires_grad_(); }

  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(4, 4))};
  at::Tensor scale = register_parameter("scale", torch::ones({4}));
  at::Tensor calls = register_buffer("calls", torch::zeros({}));
  Change change;
  int calls_left;
};
TORCH_MODULE(Changing);
using Change = ChangingImpl::Change;

void add_layer(ChangingImpl& net) { net.register_module("late", torch::nn::Linear(4, 4)); }
void add_parameter(ChangingImpl& net) {
  net.register_parameter("late", ChangingImpl::own_parameter());
}

struct RefusedChange {
  Change change;
  std::string got;
};
const std::vector<RefusedChange>& refused_changes() {
  static const std::vector<RefusedChange> all = {
      {add_layer, "the new parameter 'late.weight', which is no variable"},
      {add_parameter, "the new parameter 'late'"},
      {[](ChangingImpl& net) { net.register_buffer("late", torch::ones({})); },
       "the new buffer 'late'"},
      {[](ChangingImpl& net) { net.replace_parameter("scale"); },
       "another tensor as parameter 'scale'"},
      {[](ChangingImpl& net) { net.layer = net.replace_module("layer", torch::nn::Linear(4, 4)); },
       "another tensor as parameter 'layer.weight'"},
      {[](ChangingImpl& net) { net.unregister_module("layer"); },
       "no longer parameter 'layer.weight'"}};
  return all;
}

// The step is refused, also when it is made again, and so is the snapshot.
void expect_refused(SynchronousStrategy& strategy, const RefusedChange& wanted, int number) {
  const std::string name = "net" + std::to_string(number);
  const auto net = strategy.replicate([&] { return Changing(wanted.change); }, {.name = name});
  const SGD sgd(net.parameters(), {.learning_rate = 0.1});
  const auto step = [&](const at::Tensor& x) {
    sgd.minimize(average_loss(net->forward(x).sum(1)));
  };
  const std::string text =
      "expected the parameters and buffers that module '" + name + "' had in replicate(), got ";
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(
        [&] {
          strategy.run(step, torch::ones({2, 4}));
        },
        throws_error(ErrorCode::failed_precondition, "[strategy.run] " + text + wanted.got));
  }
  EXPECT_THAT([&] { net.snapshot(); }, throws_error(ErrorCode::failed_precondition,
                                                    "[strategy.snapshot] " + text + wanted.got));
}

TEST(ChangedModule, IsRefusedByOneDevice) {
  OneDeviceStrategy one;
  int number = 0;
  for (const RefusedChange& each : refused_changes()) expect_refused(one, each, ++number);
}

TEST(ChangedModule, IsRefusedByMirroredReplicas) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  int number = 0;
  for (const RefusedChange& each : refused_changes()) expect_refused(two, each, ++number);
}

TEST(ChangedModule, IsTrainedIfTheFactoryHasMadeTheChange) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto net = two.replicate([] {
    Changing made(add_layer);
    made->forward(torch::ones({1, 4}));
    return made;
  });
  EXPECT_EQ(net.parameters().size(), 5U);
  for (int i = 0; i < 4; ++i) two.run([&] { net->forward(torch::ones({2, 4})); });
  EXPECT_TRUE(net.snapshot()->named_parameters().contains("late.weight"));
}

// A tensor with another name, device or dtype is still the same tensor.
TEST(ChangedModule, MayRegisterItsTensorsAgainAndMoveThem) {
  OneDeviceStrategy one;
  const auto net = one.replicate([] {
    return Changing([](ChangingImpl& own) {
      own.register_parameter("also", own.layer->bias);
      own.to(torch::kFloat);
      own.layer->weight.requires_grad_(false);
    });
  });
  for (int i = 0; i < 4; ++i) one.run([&] { net->forward(torch::ones({2, 4})); });
  net.snapshot();
}

TEST(ChangedModule, TheRefusedRunIsUndone) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto net = two.replicate([] { return Changing(add_parameter); });
  EXPECT_THAT([&] { two.run([&] {
                      net->forward(torch::ones({2, 4}));
                    }); },
              throws_error(ErrorCode::failed_precondition, "'late'"));
  EXPECT_EQ(net.variables().back().read().item<float>(), 0) << "the buffer 'calls'";
}

TEST(ChangedModule, ALaterChangeIsFoundInTheFourthRunThatUsesTheModule) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto net = two.replicate([] { return Changing(add_parameter, /*calls_before=*/2); });
  const auto run = [&] { two.run([&] { net->forward(torch::ones({2, 4})); }); };
  for (int i = 0; i < 3; ++i) {
    run();
    two.run([] {});
  }
  EXPECT_THAT(run, throws_error(ErrorCode::failed_precondition, "'late'"));
}

TEST(ChangedModule, IsRefusedOnAllWorkers) {
  const auto errors = testing::run_workers(2, {}, [](MultiWorkerMirroredStrategy& strategy) {
    const auto net = strategy.replicate([] { return Changing(add_parameter); });
    const SGD sgd(net.parameters(), {.learning_rate = 0.1});
    strategy.run([&] { sgd.minimize(average_loss(net->forward(torch::ones({2, 4})).sum(1))); });
  });
  for (const auto& error : errors)
    EXPECT_THAT(testing::text_of(error), ::testing::HasSubstr("the new parameter 'late'"));
}

// Counts how often the library lists its parameters.
struct CountedImpl : torch::nn::Linear::ContainedType {
  CountedImpl() : LinearImpl(4, 1) {}
  torch::OrderedDict<std::string, at::Tensor> named_parameters(bool recurse = true) const {
    ++walks;
    return LinearImpl::named_parameters(recurse);
  }
  static inline std::atomic<int> walks = 0;
};
TORCH_MODULE(Counted);

TEST(ChangedModule, IsLookedForInRunsOneTwoFourAndSoOnOfTheModule) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto used = two.replicate([] { return Counted(); }, {.name = "used"});
  const auto unused = two.replicate([] { return Counted(); }, {.name = "unused"});
  std::vector<int> walks;
  for (int i = 0; i < 9; ++i) {
    const int before = CountedImpl::walks;
    two.run([&] { used->forward(torch::ones({2, 4})); });
    walks.push_back(CountedImpl::walks - before);
  }
  EXPECT_THAT(walks, ::testing::ElementsAre(2, 2, 0, 2, 0, 0, 0, 2, 0));
}

}  // namespace
}  // namespace cohort
