// SPDX-License-Identifier: Apache-2.0
// A server of version 1 that ends, or whose connection breaks, while tasks use it.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/testing/faulty_proxy.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"
#include "cohort/variable/variable_home.h"
#include "tests/multiprocess/v1_cluster.h"

namespace cohort {
namespace {

using testing::floats;
using ::testing::HasSubstr;
using testing::number;
using testing::seen_in_run;
using testing::throws_error;
using testing::V1;
using V1Loss = testing::V1Cluster;

TEST_F(V1Loss, TheLossOfAServerTakesAllBackToTheirInitialValues) {
  const auto first = chief();
  const Variable a = first->variable("a", floats({1}));
  const Variable b = first->variable("b", floats({2}));
  first->let_others_train();
  const auto second = worker();
  const Variable there = second->variable("b", floats({0}));
  a.assign_add(floats({5}));
  there.assign_add(floats({5}));
  end(1);
  start(1);
  there.assign_add(floats({10}));  // waits for the chief, whose thread finds the loss
  EXPECT_EQ(number(there), 12);
  EXPECT_EQ(number(b), 12);
  EXPECT_EQ(number(a), 1) << "on the server that was not lost";
}

// Values from before a loss had the same version as others after it.
TEST_F(V1Loss, ARunAfterTheLossOfAServerTakesNoOldValueForANewOne) {
  const auto first = chief();
  first->variable("a", floats({1}));
  const Variable b = first->variable("b", floats({2}));
  first->let_others_train();
  const auto second = worker();
  const Variable there = second->variable("b", floats({0}));
  there.assign_add(floats({5}));
  EXPECT_EQ(seen_in_run(*first, b), 7);
  end(1);
  start(1);
  there.assign_add(floats({10}));
  EXPECT_EQ(seen_in_run(*first, b), 12);
}

TEST_F(V1Loss, TheLossOfAServerTakesAllBackToWhatWasSaved) {
  const auto first = chief();
  const Variable a = first->variable("a", floats({1}));
  const Variable b = first->variable("b", floats({2}));
  int restores = 0;
  first->restore_after_loss([&]() -> std::optional<std::int64_t> {
    a.assign(floats({100}));
    b.assign(floats({200}));
    ++restores;
    return 7;
  });
  first->let_others_train();
  end(0);
  start(0);
  EXPECT_EQ(number(a), 100);
  EXPECT_EQ(number(b), 200);
  EXPECT_EQ(restores, 1);
}

// A chief that had joined the job kept the initial values of after the loss, since those of before
// had been newer than its checkpoint, and let others train with them.
TEST_F(V1Loss, AChiefThatHasJoinedRestoresAfterALossBeforeItTrains) {
  {
    const auto strategy = chief();
    strategy->variable("w", floats({1})).assign(floats({5}));
    strategy->let_others_train();
  }
  testing::Warnings warnings;
  const auto strategy = chief();
  const Variable w = strategy->variable("w", floats({1}));
  const Variable step = strategy->global_step();
  EXPECT_TRUE(w.impl()->home()->keeps_newer_values());
  end(0);
  start(0);
  EXPECT_EQ(number(w), 1);
  EXPECT_FALSE(w.impl()->home()->keeps_newer_values());
  const auto other = worker({.cluster = {.timeout = std::chrono::milliseconds(300)}});
  EXPECT_THAT([&] { other->variable("w", floats({1})); },
              throws_error(ErrorCode::unavailable, "expected chief:0 to have made its variables"));
  strategy->restore_after_loss([&]() -> std::optional<std::int64_t> {
    w.assign(floats({7}));
    step.assign(at::full({}, 3, at::kLong));
    return 3;
  });
  strategy->let_others_train();
  EXPECT_EQ(number(worker()->variable("w", floats({1}))), 7);
  EXPECT_EQ(warnings.count("falls back from an unknown step to step 3"), 1) << warnings.text();
}

TEST_F(V1Loss, AChiefThatBeginsAgainAfterALossSaysToWhichStep) {
  {
    const auto strategy = chief();
    strategy->global_step().assign(at::full({}, 50, at::kLong));
    strategy->let_others_train();
  }
  end(1);
  start(1);
  testing::Warnings warnings;
  const auto strategy = chief();
  strategy->global_step().assign(at::full({}, 20, at::kLong));  // what it has restored
  strategy->let_others_train();
  EXPECT_EQ(warnings.count("has lost the variables of the job"), 1) << warnings.text();
  EXPECT_EQ(warnings.count("falls back from an unknown step to step 20"), 1) << warnings.text();
}

// A save that a loss had interrupted took the restored values for those of its step.
TEST_F(V1Loss, ASaveAfterALossIsOfAStepAfterIt) {
  const testing::TemporaryFolder folder;
  const auto strategy = chief();
  const Variable a = strategy->variable("a", floats({1}));
  const Variable b = strategy->variable("b", floats({2}));
  strategy->let_others_train();
  b.assign_add(floats({10}));
  const Checkpoint checkpoint(*strategy);
  checkpoint.write(folder.file("before"), 10);
  end(1);
  start(1);
  EXPECT_THAT([&] { checkpoint.write(folder.file("during"), 11); },
              throws_error(ErrorCode::aborted, "save again after the next step"));
  EXPECT_EQ(number(b), 2);
  checkpoint.write(folder.file("after"), 0);
  b.assign(floats({3}));
  EXPECT_EQ(checkpoint.read(folder.file("after")).step, 0);
  EXPECT_EQ(number(b), 2);
}

// Another thread of a worker used the next job while its chief still restored.
TEST_F(V1Loss, AllThreadsOfAWorkerWaitUntilTheVariablesAreRestored) {
  const auto first = chief();
  const Variable a = first->variable("a", floats({1}));
  const Variable b = first->variable("b", floats({2}));
  std::promise<void> restores, may_restore;
  first->restore_after_loss([&]() -> std::optional<std::int64_t> {
    restores.set_value();
    may_restore.get_future().wait();
    a.assign(floats({100}));
    b.assign(floats({200}));
    return 7;
  });
  first->let_others_train();
  const auto second = worker();
  const Variable here = second->variable("a", floats({0}));
  const Variable there = second->variable("b", floats({0}));
  testing::Warnings warnings;
  end(1);
  start(1);
  restores.get_future().wait();
  const auto read = [](const Variable& variable) {
    return std::async(std::launch::async, [variable] { return number(variable); });
  };
  auto of_lost = read(there);
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while (warnings.count("worker:0 waits for chief:0") == 0 && !deadline.has_expired())
    std::this_thread::yield();
  // Some of these begin after the worker has connected for the next job.
  std::vector<std::future<float>> of_other;
  for (int i = 0; i < 4; ++i) {
    of_other.push_back(read(here));
    EXPECT_EQ(of_other.back().wait_for(std::chrono::milliseconds(100)),
              std::future_status::timeout);
  }
  may_restore.set_value();
  EXPECT_EQ(of_lost.get(), 200);
  for (auto& each : of_other) EXPECT_EQ(each.get(), 100);
}

TEST_F(V1Loss, WhatRestoringThrowsLaterCallsThrow) {
  const auto first = chief();
  const Variable a = first->variable("a", floats({1}));
  first->restore_after_loss([]() -> std::optional<std::int64_t> {
    throw Error(ErrorCode::data_loss, "the checkpoint is damaged");
  });
  end(0);
  start(0);
  EXPECT_THAT([&] { a.read(); }, throws_error(ErrorCode::data_loss, "is damaged"));
}

TEST_F(V1Loss, AServerThatStaysAwayIsNamed) {
  const auto first = chief({.cluster = {.data_timeout = std::chrono::seconds(2)}});
  const Variable a = first->variable("a", floats({1}));
  end(0);
  EXPECT_THAT([&] { a.read(); }, throws_error(ErrorCode::unavailable, "ps:0"));
}

// The connection breaks after the server has made the update and before its answer comes.
TEST_F(V1Loss, AnUpdateWhoseAnswerIsLostIsMadeOnce) {
  testing::FaultyProxy proxy;
  proxy.set_target(jobs_["ps"][0]);
  const std::string job_id = "v1_strategy_test";
  for (std::size_t i = 0; i < 2; ++i) {
    end(i);
    servers_[i] =
        std::make_unique<Server>(resolver("ps", static_cast<std::int64_t>(i)),
                                 ServerOptions{.job_id = job_id, .handle_signals = false});
  }
  jobs_["ps"][0] = proxy.address();
  const auto strategy = chief({.cluster = {.job_id = job_id}});
  const Variable a = strategy->variable("a", floats({1}));
  for (int i = 0; i < 3; ++i) {
    proxy.arm({.kind = testing::Fault::Kind::cut,
               .direction = testing::Fault::Direction::to_client,
               .part = testing::Fault::Part::header});
    a.assign_add(floats({1}));
    EXPECT_TRUE(proxy.has_happened());
  }
  EXPECT_EQ(number(a), 4);
}

}  // namespace
}  // namespace cohort
