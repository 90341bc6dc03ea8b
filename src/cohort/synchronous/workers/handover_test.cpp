// SPDX-License-Identifier: Apache-2.0
// A worker hands its state over to others. Each worker here is a thread with a strategy of one
// process, so that nothing but the handover makes them alike.
#include "cohort/synchronous/workers/handover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/optimizer/learning_rate_schedule.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"
#include "cohort/variable/attached_states.h"
#include "cohort/variable/saved_values.h"

namespace cohort::internal {
namespace {

using ::testing::HasSubstr;
using testing::throws_error;

struct PairOfLayersImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return last->forward(norm(first->forward(x)).tanh()); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(3, 4))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(4))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(4, 2))};
};
TORCH_MODULE(PairOfLayers);

PerReplica<at::Tensor> batch_of(int number, std::size_t replicas) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number) + 1);
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < replicas; ++i) parts.push_back(at::randn({4, 3}, generator));
  return PerReplica<at::Tensor>(std::move(parts));
}

enum class Trainer { adam, torch_adam };

// A program that trains. Its seed makes it differ from that of others.
class Program {
 public:
  explicit Program(Trainer trainer = Trainer::adam, std::size_t replicas = 2)
      : trainer_(trainer),
        replicas_(replicas),
        strategy_(testing::cpu_devices(static_cast<int>(replicas))) {}

  MirroredHome& home() {
    if (!home_) {
      if (!anchor_) anchor_ = strategy_.variable("steps", torch::zeros({}, at::kLong));
      home_ = std::dynamic_pointer_cast<MirroredHome>(anchor_->impl()->home());
    }
    return *home_;
  }
  // The home of a strategy that has created nothing yet.
  MirroredHome& empty_home() {
    if (home_) return *home_;
    const Variable gone = strategy_.variable("gone", torch::zeros({}));
    home_ = std::dynamic_pointer_cast<MirroredHome>(gone.impl()->home());
    return *home_;
  }
  void create(std::uint64_t seed) {
    const double offset = static_cast<double>(seed);
    if (!anchor_) anchor_ = strategy_.variable("steps", torch::zeros({}, at::kLong));
    rows_ = strategy_.variable("rows", torch::zeros({}, at::kLong),
                               {.synchronization = VariableSynchronization::on_read,
                                .aggregation = VariableAggregation::sum});
    net_ = strategy_.replicate([=] {
      PairOfLayers net;
      torch::NoGradGuard no_grad;
      for (at::Tensor& each : net->parameters()) each.add_(0.01 * offset);
      return net;
    });
    if (trainer_ == Trainer::adam) {
      adam_ = Adam(net_->parameters(), {.learning_rate = 0.01, .name = "adam"});
    } else {
      torch_adam_.emplace(*net_, [](std::vector<at::Tensor> parameters) {
        return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(0.01));
      });
    }
  }
  void train(int number) {
    strategy_.run(
        [&](const at::Tensor& x) {
          const at::Tensor loss = average_loss((*net_)->forward(x).square().mean(1));
          if (trainer_ == Trainer::adam) {
            adam_->minimize(loss);
          } else {
            torch_adam_->minimize(loss);
          }
          rows_->assign_add(torch::tensor(x.size(0)));
        },
        batch_of(number, replicas_));
    anchor_->assign_add(1);
  }
  // All values of all replicas.
  std::vector<at::Tensor> values() {
    std::vector<at::Tensor> all;
    for (const Variable& variable : home().variables()) {
      for (const Variable& each : strategy_.local_results(variable))
        all.push_back(each.read().detach());
    }
    return all;
  }
  MirroredStrategy& strategy() { return strategy_; }
  Variable& steps() { return *anchor_; }
  Adam& adam() { return *adam_; }
  TorchOptimizer<torch::optim::Adam>& torch_adam() { return *torch_adam_; }

 private:
  const Trainer trainer_;
  const std::size_t replicas_;
  MirroredStrategy strategy_;
  std::shared_ptr<MirroredHome> home_;
  std::optional<Variable> anchor_, rows_;
  std::optional<Replicated<PairOfLayers>> net_;
  std::optional<Adam> adam_;
  std::optional<TorchOptimizer<torch::optim::Adam>> torch_adam_;
};

Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }

void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
}

// Hands over between homes; is_new[i]: that of a program that begins.
void hand_over_between(const std::vector<MirroredHome*>& homes, const std::vector<bool>& is_new) {
  const InProcessWorkers workers(static_cast<int>(homes.size()));
  testing::on_workers<int>(static_cast<int>(homes.size()), [&](int rank) {
    const auto group = workers.group(rank);
    const auto i = static_cast<std::size_t>(rank);
    hand_over(*homes[i], *group, {.is_new = is_new[i], .begins = is_new[i]}, soon());
    return 0;
  });
}

class Handover : public ::testing::TestWithParam<Trainer> {};

TEST_P(Handover, MakesSurvivorsGoOnFromTheFirstOnesState) {
  Program first(GetParam()), second(GetParam());
  first.create(1);
  second.create(2);
  for (int i = 0; i < 3; ++i) first.train(i);
  second.train(7);  // another number of steps, with other values
  hand_over_between({&first.home(), &second.home()}, {false, false});
  expect_equal(second.values(), first.values());
  for (int i = 3; i < 6; ++i) {
    first.train(i);
    second.train(i);
  }
  expect_equal(second.values(), first.values());
}

TEST_P(Handover, TakesAStepBackThatTheFirstOneHasNotMade) {
  Program first(GetParam()), second(GetParam()), reference(GetParam());
  for (Program* each : {&first, &second, &reference}) each->create(1);
  second.train(0);  // has slots that the first one has not
  hand_over_between({&first.home(), &second.home()}, {false, false});
  for (Program* each : {&second, &reference}) {
    for (int i = 1; i < 4; ++i) each->train(i);
  }
  expect_equal(second.values(), reference.values());
}

TEST_P(Handover, GivesItsStateToAProgramThatBegins) {
  Program first(GetParam()), joiner(GetParam());
  first.create(1);
  for (int i = 0; i < 3; ++i) first.train(i);
  // The lowest rank is new, as a chief that comes back.
  hand_over_between({&joiner.empty_home(), &first.home()}, {true, false});
  joiner.create(5);
  EXPECT_EQ(joiner.steps().read().item<std::int64_t>(), 3);
  for (int i = 3; i < 6; ++i) {
    first.train(i);
    joiner.train(i);
  }
  expect_equal(joiner.values(), first.values());
}

TEST_P(Handover, GivesToTheNextWhatAProgramHasNotCreatedYet) {
  Program first(GetParam()), joiner(GetParam()), last(GetParam());
  first.create(1);
  for (int i = 0; i < 3; ++i) first.train(i);
  hand_over_between({&first.home(), &joiner.empty_home()}, {false, true});
  hand_over_between({&joiner.empty_home(), &last.empty_home()}, {false, true});
  for (Program* each : {&joiner, &last}) each->create(9);
  for (Program* each : {&first, &joiner, &last}) each->train(3);
  expect_equal(joiner.values(), first.values());
  expect_equal(last.values(), first.values());
}

INSTANTIATE_TEST_SUITE_P(Trainers, Handover, ::testing::Values(Trainer::adam, Trainer::torch_adam));

TEST(HandoverOfOptimizers, GivesNumbersOfUpdatesAndRates) {
  Program first, joiner;
  first.create(1);
  for (int i = 0; i < 3; ++i) first.train(i);
  first.adam().set_learning_rate(0.25);
  first.adam().set_hyperparameter("beta_1", 0.5);
  hand_over_between({&first.home(), &joiner.empty_home()}, {false, true});
  testing::Warnings warnings;
  joiner.create(1);
  EXPECT_EQ(joiner.adam().iterations(), 3);
  EXPECT_EQ(joiner.adam().learning_rate(), 0.25);
  EXPECT_EQ(joiner.adam().hyperparameter("beta_1"), 0.5);
  // Regression: they were replaced without a word.
  EXPECT_THAT(warnings.text(), HasSubstr("has beta_1 0.9 here, and takes over 0.5 of the other"));
  EXPECT_THAT(warnings.text(), HasSubstr("here, and takes over 0.25 of the other workers"));
}

TEST(HandoverOfOptimizers, RefusesAnotherOptimizerThanTheOthersHave) {
  Program first, joiner;
  first.create(1);
  hand_over_between({&first.home(), &joiner.empty_home()}, {false, true});
  const Variable steps = joiner.strategy().variable("steps", torch::zeros({}, at::kLong));
  const auto net = joiner.strategy().replicate([] { return PairOfLayers(); });
  EXPECT_THAT([&] { Adam(net.parameters(), {.name = "another"}); },
              throws_error(ErrorCode::failed_precondition,
                           "got optimizer 'another' of 'model/first.weight', which worker:0 has "
                           "not (it has 'optimizer 'adam' of"));
}

TEST(HandoverToAProgramThatBegins, RefusesAVariableThatTheOthersDoNotHave) {
  Program first, joiner;
  first.create(1);
  hand_over_between({&first.home(), &joiner.empty_home()}, {false, true});
  EXPECT_THAT([&] { joiner.strategy().variable("mine", torch::zeros({})); },
              throws_error(ErrorCode::failed_precondition,
                           "expected a variable that the other workers have, got 'mine', which "
                           "worker:0 has not"));
  EXPECT_THAT([&] { joiner.strategy().variable("steps", torch::zeros({2}, at::kLong)); },
              throws_error(ErrorCode::invalid_argument,
                           "expected variable 'steps' as worker:0 has it, int64[], got int64[2]"));
}

TEST(HandoverToAProgramThatBegins, KeepsNewerValuesThanThoseOfAFile) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.file("saved.safetensors");
  Program first, joiner;
  first.create(1);
  save_values(path, {{"steps", first.steps()}});
  first.train(0);
  hand_over_between({&first.home(), &joiner.empty_home()}, {false, true});
  joiner.create(1);
  testing::Warnings warnings;
  restore_values(path, {{"steps", joiner.steps()}});
  joiner.adam().set_iterations(0);
  EXPECT_EQ(joiner.steps().read().item<std::int64_t>(), 1);
  EXPECT_EQ(joiner.adam().iterations(), 1);
  EXPECT_THAT(warnings.text(), HasSubstr("kept the values of 'steps'"));
  EXPECT_THAT(warnings.text(), HasSubstr("[optimizer.set_iterations] kept 1"));
  joiner.train(1);
  restore_values(path, {{"steps", joiner.steps()}});
  EXPECT_EQ(joiner.steps().read().item<std::int64_t>(), 0);  // from the first run on as always
}

TEST(HandoverToAProgramThatBegins, KeepsTheStateOfATorchOptimizer) {
  Program first(Trainer::torch_adam), joiner(Trainer::torch_adam);
  first.create(1);
  for (int i = 0; i < 2; ++i) first.train(i);
  hand_over_between({&first.home(), &joiner.empty_home()}, {false, true});
  joiner.create(1);
  testing::Warnings warnings;
  joiner.torch_adam().for_each([](torch::optim::Adam& each) { each.state().clear(); });
  EXPECT_THAT(warnings.text(), HasSubstr("kept the state of TorchOptimizer"));
  for (Program* each : {&first, &joiner}) each->train(2);
  expect_equal(joiner.values(), first.values());
}

TEST(HandoverToAProgramThatBegins, DropsWhatItsFirstRunDoesNotUse) {
  Program first, joiner;
  first.create(1);
  hand_over_between({&first.home(), &joiner.empty_home()}, {false, true});
  testing::Warnings warnings;
  joiner.strategy().run([] {});
  EXPECT_THAT(warnings.text(), HasSubstr("has not created 'model/first.bias'"));
  const Variable steps = joiner.strategy().variable("steps", torch::ones({}, at::kLong));
  EXPECT_EQ(steps.read().item<std::int64_t>(), 1);
}

TEST(HandoverErrors, NameWhatTheFirstOneDoesNotHave) {
  Program first, second;
  first.create(1);
  second.create(1);
  const Variable more = second.strategy().variable("more", torch::zeros({}));
  EXPECT_THAT(
      [&] {
        hand_over_between({&first.home(), &second.home()}, {false, false});
      },
      throws_error(ErrorCode::failed_precondition, "got 'more'"));
  first.train(0);  // nothing has changed
  second.train(0);
}

TEST(HandoverErrors, NameAnotherNumberOfReplicas) {
  Program first(Trainer::adam, 2), second(Trainer::adam, 1);
  EXPECT_THAT(
      [&] {
        hand_over_between({&first.home(), &second.home()}, {false, false});
      },
      throws_error(ErrorCode::failed_precondition,
                   "expected as many replicas as worker:0 has, 2, got 1"));
}

TEST(HandoverErrors, SayThatNobodyHasTheValues) {
  Program first, second;
  EXPECT_THAT(
      [&] {
        hand_over_between({&first.home(), &second.home()}, {true, true});
      },
      throws_error(ErrorCode::data_loss, "start all workers again, from saved values"));
}

// One that was left out of a group has values, but old ones.
TEST(HandoverToAWorkerThatWasLeftOut, ReplacesItsValues) {
  Program late, first;
  late.create(1);
  first.create(2);
  first.train(0);
  const InProcessWorkers workers(2);
  testing::on_workers<int>(2, [&](int rank) {
    const auto group = workers.group(rank);
    hand_over(rank == 0 ? late.home() : first.home(), *group, {.is_new = rank == 0}, soon());
    return 0;
  });
  expect_equal(late.values(), first.values());
  EXPECT_FALSE(late.home().keeps_newer_values());
}

// A state that cannot be handed over, or not be taken.
class StubbornState final : public AttachedState {
 public:
  StubbornState(bool can_save, bool can_load) : can_save_(can_save), can_load_(can_load) {}
  std::string key() const override { return "stubborn"; }
  Bytes save() const override {
    COHORT_CHECK(can_save_, ErrorCode::resource_exhausted, "no room for it");
    return {};
  }
  void load(std::span<const std::byte>) override {
    COHORT_CHECK(can_load_, ErrorCode::invalid_argument, "no room for it");
  }

 private:
  const bool can_save_, can_load_;
};

// Regression: the others waited for the source, or trained on without the one that had failed.
TEST(HandoverErrors, OfOneWorkerReachAll) {
  for (const bool can_save : {false, true}) {
    Program first, second;
    first.create(1);
    second.create(1);
    const auto of_first = std::make_shared<StubbornState>(can_save, true);
    const auto of_second = std::make_shared<StubbornState>(true, !can_save);
    first.home().attach(of_first);
    second.home().attach(of_second);
    const InProcessWorkers workers(2);
    testing::on_workers<int>(2, [&](int rank) {
      const auto group = workers.group(rank);
      MirroredHome& home = rank == 0 ? first.home() : second.home();
      EXPECT_THAT(
          [&] { hand_over(home, *group, {}, soon()); },
          throws_error(can_save ? ErrorCode::invalid_argument : ErrorCode::resource_exhausted,
                       "no room for it"));
      return 0;
    });
  }
}

// A worker whose values were replaced in part is no source, and gets whole ones again.
TEST(HandoverErrors, LeaveNoMixture) {
  Program first, second;
  first.create(1);
  second.create(2);
  first.train(0);
  second.train(0);
  second.home().set_values_whole(false);
  EXPECT_THAT([&] { second.values(); },
              throws_error(ErrorCode::failed_precondition, "call rebuild() again"));
  hand_over_between({&second.home(), &first.home()}, {false, false});
  expect_equal(second.values(), first.values());
}

TEST(HandoverOfRandomNumbers, ReachesGeneratorsOfTheSameSeed) {
  // All threads share the default generator here, so it must only stay as it is.
  Program first, second;
  torch::manual_seed(5);
  torch::rand({3});
  const at::Tensor expected = at::detail::getDefaultCPUGenerator().get_state().clone();
  hand_over_between({&first.home(), &second.home()}, {false, false});
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(expected));
}

}  // namespace
}  // namespace cohort::internal
