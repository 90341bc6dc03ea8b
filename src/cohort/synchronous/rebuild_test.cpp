// SPDX-License-Identifier: Apache-2.0
// Workers that are lost while others train, and that come back: threads whose groups a test forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/synchronous/workers/fake_groups.h"
#include "cohort/testing/warnings.h"

namespace cohort {
namespace {

using testing::FakeFormations;
using testing::strategy_of_task;

// The last: gradients travel while the backward pass runs.
enum class Steps { eager, traced, torch_optimizer, overlapped };

struct NetToRebuildImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return last->forward(first->forward(x).tanh()); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(5, 6))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(6, 3))};
};
TORCH_MODULE(NetToRebuild);

at::Tensor whole_batch_of(std::int64_t step) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step) + 1);
  return at::randn({12, 5}, generator);
}

// Creates its state from the top, and then makes steps.
class TrainedProgram {
 public:
  TrainedProgram(SynchronousStrategy& strategy, Steps steps, double offset)
      : strategy_(strategy),
        net_(strategy.replicate([=] {
          NetToRebuild net;
          const torch::NoGradGuard no_grad;
          for (at::Tensor& each : net->parameters()) each.fill_(0.1 + offset);
          return net;
        })),
        done_(strategy.variable("done", torch::zeros({}, at::kLong))) {
    const double rate = 0.01;
    if (steps == Steps::torch_optimizer) {
      torch_adam_.emplace(net_, [=](std::vector<at::Tensor> parameters) {
        return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(rate));
      });
    } else {
      adam_.emplace(net_.parameters(), AdamOptions{.learning_rate = rate, .name = "adam"});
    }
    if (steps == Steps::traced)
      traced_.emplace(strategy.function(Step([this](const at::Tensor& x) { return step(x); })));
  }

  std::int64_t done() const { return done_.read().item<std::int64_t>(); }
  void train_until(std::int64_t steps) {
    while (done() < steps) {
      const auto chunks =
          at::tensor_split(whole_batch_of(done()), strategy_.num_replicas_in_sync());
      const PerReplica<at::Tensor> own({chunks[static_cast<std::size_t>(strategy_.worker())]});
      if (traced_) {
        (*traced_)(own);
      } else {
        strategy_.run([this](const at::Tensor& x) { return step(x); }, own);
      }
      done_.assign_add(1);
    }
  }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> all;
    for (const Variable& each : net_.parameters()) all.push_back(each.read().detach());
    return all;
  }

 private:
  at::Tensor step(const at::Tensor& x) {
    const at::Tensor loss =
        average_loss(net_->forward(x).square().mean(1), {.global_batch_size = 12});
    if (torch_adam_) {
      torch_adam_->minimize(loss);
    } else {
      adam_->minimize(loss);
    }
    return loss.detach();
  }
  using Step = std::function<at::Tensor(const at::Tensor&)>;

  SynchronousStrategy& strategy_;
  Replicated<NetToRebuild> net_;
  Variable done_;
  std::optional<Adam> adam_;
  std::optional<TorchOptimizer<torch::optim::Adam>> torch_adam_;
  std::optional<StrategyFunction<Step>> traced_;
};

constexpr std::int64_t kLostAt = 3, kBackAt = 6, kEnd = 9;

// Three workers, of which one ends and comes back.
class LostWorker : public ::testing::TestWithParam<std::tuple<Steps, int>> {
 protected:
  Steps steps() const { return std::get<0>(GetParam()); }
  int lost() const { return std::get<1>(GetParam()); }
  std::unique_ptr<MultiWorkerMirroredStrategy> made(int task) {
    const bool overlaps = steps() == Steps::overlapped;
    return strategy_of_task(formations_, task,
                            {.devices = {"CPU:0"},
                             .timeout = std::chrono::seconds(60),
                             .communication = {.bytes_per_pack = overlaps ? 40 : 0},
                             .overlaps_communication = overlaps});
  }
  std::vector<at::Tensor> expected() {
    MirroredStrategy one({"CPU:0"});
    TrainedProgram program(one, steps(), 0);
    program.train_until(kEnd);
    return program.values();
  }
  std::set<int> others() const {
    std::set<int> tasks{0, 1, 2};
    tasks.erase(lost());
    return tasks;
  }
  std::vector<at::Tensor> survive(int task);
  std::vector<at::Tensor> end_and_come_back();

  std::shared_ptr<FakeFormations> formations_ = std::make_shared<FakeFormations>();
  std::promise<void> may_come_back_;
};

std::vector<at::Tensor> LostWorker::survive(int task) {
  const auto strategy = made(task);
  TrainedProgram program(*strategy, steps(), 0);
  const std::string name = "worker:" + std::to_string(lost());
  bool was_lost = false;
  while (program.done() < kBackAt) {
    try {
      program.train_until(kBackAt);
    } catch (const Error& error) {
      EXPECT_FALSE(was_lost) << error.what();
      was_lost = true;
      EXPECT_EQ(program.done(), kLostAt);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(name));
      strategy->rebuild();
      EXPECT_EQ(strategy->num_workers(), 2);
    }
  }
  EXPECT_TRUE(was_lost);
  if (task == *others().begin()) {
    formations_->expect({0, 1, 2}, {lost()});
    may_come_back_.set_value();
  }
  strategy->rebuild();
  EXPECT_EQ(strategy->num_workers(), 3);
  program.train_until(kEnd);
  return program.values();
}

std::vector<at::Tensor> LostWorker::end_and_come_back() {
  {
    const auto strategy = made(lost());
    TrainedProgram program(*strategy, steps(), 0);
    program.train_until(kLostAt);
    formations_->expect(others());
  }
  may_come_back_.get_future().wait();
  const auto strategy = made(lost());
  TrainedProgram program(*strategy, steps(), 0.5);  // whose initial values are others
  EXPECT_EQ(program.done(), kBackAt);
  program.train_until(kEnd);
  return program.values();
}

TEST_P(LostWorker, ComesBackToThoseThatWentOn) {
  formations_->expect({0, 1, 2});
  std::vector<std::vector<at::Tensor>> got(3);
  std::vector<std::exception_ptr> errors(3);
  std::vector<std::thread> threads;
  for (int task = 0; task < 3; ++task) {
    threads.emplace_back([&, task] {
      const auto i = static_cast<std::size_t>(task);
      try {
        got[i] = task == lost() ? end_and_come_back() : survive(task);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  const std::vector<at::Tensor> alone = expected();
  for (const std::vector<at::Tensor>& values : got) {
    ASSERT_EQ(values.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE(values[i].equal(got[0][i])) << i;
      EXPECT_TRUE(at::allclose(values[i], alone[i], 1e-5, 1e-6)) << i;
    }
  }
}

// Regression: each new group traced steps again, and a warning blamed modes that had not changed.
TEST(RebuiltFunction, DoesNotWarnOfTheTracesOfEarlierGroups) {
  const auto formations = std::make_shared<FakeFormations>();
  testing::Warnings warnings;
  formations->expect({0});
  const auto strategy = strategy_of_task(formations, 0, {.devices = {"CPU:0"}});
  auto step = strategy->function([](const at::Tensor& x) { return x + 1; });
  for (int group = 0; group < 8; ++group) {
    step(at::ones({2}));
    formations->expect({0});
    strategy->rebuild();
  }
  EXPECT_THAT(warnings.text(), ::testing::Not(::testing::HasSubstr("was traced")));
}

// Also the first one, which is the chief.
INSTANTIATE_TEST_SUITE_P(Programs, LostWorker,
                         ::testing::Combine(::testing::Values(Steps::eager, Steps::traced,
                                                              Steps::torch_optimizer,
                                                              Steps::overlapped),
                                            ::testing::Values(0, 1, 2)));

}  // namespace
}  // namespace cohort
