// SPDX-License-Identifier: Apache-2.0
// Variables whose last handle is gone.
#include "cohort/parameter_server_strategy/unused_variables.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "cohort/parameter_server/remote_variable.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/rpc/messages.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/fake_task.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/eager_step.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::FakeTask;
using ::testing::SizeIs;
using testing::throws_error;

class UnusedVariablesTest : public ::testing::Test {
 protected:
  UnusedVariablesTest() {
    ps.on_request = [this](const rpc::Frame& request) {
      const auto type = static_cast<rpc::MessageType>(request.type);
      if (type == rpc::MessageType::push) return rpc::to_frame(rpc::PushReply{});
      EXPECT_EQ(type, rpc::MessageType::erase);
      const auto erased = rpc::message_of<rpc::EraseRequest>(request).variables;
      {
        const Lock lock(mutex);
        erased_.insert(erased.begin(), erased.end());
      }
      changed.notify_all();
      return rpc::to_frame(rpc::DoneReply{});
    };
  }
  Variable make(const std::string& name, ParameterServerStrategy& in) {
    return in.variable(name, at::ones({4}));
  }
  Variable make(const std::string& name) { return make(name, strategy()); }
  static std::uint64_t id_of(const Variable& variable) { return RemoteVariable::of(variable).id(); }
  // The table removes a variable only if nothing refers to it.
  bool await_unused(const std::string& name) {
    const Deadline deadline = testing::patience();
    while (!deadline.has_expired()) {
      strategy().home()->drop_unused();
      if (strategy().home()->variables().find(name) == nullptr) return true;
      std::this_thread::yield();
    }
    return false;
  }
  bool await_erased(std::size_t count) {
    const Lock lock(mutex);
    return changed.wait(mutex, testing::patience(),
                        [&]() COHORT_REQUIRES(mutex) { return erased_.size() >= count; });
  }
  std::set<std::uint64_t> erased() {
    const Lock lock(mutex);
    return erased_;
  }
  ParameterServerStrategy& strategy() {
    if (!strategy_) {
      strategy_.emplace(testing::cluster_of({&ps, &worker}),
                        ParameterServerOptions{.cluster = {.job_id = testing::kFakeJob},
                                               .partitioner = partitioner});
    }
    return *strategy_;
  }

  Partitioner partitioner = {};
  Mutex mutex;
  Condition changed;
  std::set<std::uint64_t> erased_ COHORT_GUARDED_BY(mutex);
  FakeTask ps{"ps:0"};
  FakeTask worker{"worker:0"};

 private:
  std::optional<ParameterServerStrategy> strategy_;
};

// Regression: the name stayed taken, and the server kept the value.
TEST_F(UnusedVariablesTest, ANameIsFreeAndTheServerIsTold) {
  std::optional<Variable> first = make("w");
  const std::uint64_t id = id_of(*first);
  EXPECT_THAT([&] { make("w"); }, throws_error(ErrorCode::already_exists, "drop the other one"));
  first.reset();
  const Variable second = make("w");
  EXPECT_NE(id_of(second), id) << "a late push of the old one must not meet the new one";
  ASSERT_TRUE(await_erased(1));
  EXPECT_THAT(erased(), ElementsAre(id));
  EXPECT_THAT([&] { strategy().home()->placement().find(std::vector{id}); },
              throws_error(ErrorCode::not_found, "whose server is known here"));
}

// Regression: while the thread looked for unused variables, a call that made one did not look.
TEST_F(UnusedVariablesTest, ANameIsFreeAtOnceHoweverTheThreadRuns) {
  for (int i = 0; i < 300; ++i) EXPECT_NO_THROW(make("w")) << i;
}

TEST_F(UnusedVariablesTest, TheServerIsToldWithoutAnotherCall) {
  make("w");
  EXPECT_TRUE(await_erased(1));
}

TEST_F(UnusedVariablesTest, AllShardsAreDropped) {
  partitioner = FixedShardsPartitioner(2);
  make("w");
  EXPECT_TRUE(await_erased(2));
}

TEST_F(UnusedVariablesTest, ACopyOfTheHandleKeepsTheVariable) {
  std::optional<Variable> first = make("w");
  const Variable copy = *first;
  first.reset();
  make("other");
  ASSERT_TRUE(await_erased(1)) << "of the other one";
  EXPECT_TRUE(strategy().home()->variables().find("w")->variable == copy);
  EXPECT_FALSE(erased().contains(id_of(copy)));
}

// Otherwise a step that uses the tensor would take its old content for a constant.
TEST_F(UnusedVariablesTest, AStandInKeepsTheVariable) {
  at::Tensor stand_in = make("w").tensor();
  strategy().home()->drop_unused();
  EXPECT_NE(strategy().home()->variables().find("w"), nullptr);
  at::Tensor view = stand_in.detach().narrow(0, 0, 2);
  stand_in.reset();
  strategy().home()->drop_unused();
  EXPECT_NE(strategy().home()->variables().find("w"), nullptr);
  view.reset();
  EXPECT_TRUE(await_unused("w"));
  EXPECT_TRUE(await_erased(1));
}

TEST_F(UnusedVariablesTest, AGraphKeepsTheVariable) {
  at::Tensor loss = make("w").tensor().exp();
  strategy().home()->drop_unused();
  EXPECT_NE(strategy().home()->variables().find("w"), nullptr);
  loss.reset();
  EXPECT_TRUE(await_unused("w"));
}

// The run notes variables by their addresses, which new ones could get.
TEST_F(UnusedVariablesTest, NothingIsDroppedDuringARun) {
  ps.on_request = [](const rpc::Frame&) { return rpc::to_frame(rpc::PushReply{}); };
  std::optional<Variable> variable = make("w");
  const auto lock = strategy().home()->lock_stand_ins();
  VariableTraffic traffic;
  {
    const EagerStep step(traffic, EagerStep::Kind::run);
    variable.reset();
    strategy().home()->drop_unused();
    EXPECT_NE(strategy().home()->variables().find("w"), nullptr);
  }
  strategy().home()->drop_unused();
  EXPECT_EQ(strategy().home()->variables().find("w"), nullptr);
}

TEST_F(UnusedVariablesTest, AHandleMayOutliveTheStrategy) {
  std::optional<ParameterServerStrategy> other(
      std::in_place, testing::cluster_of({&ps, &worker}),
      ParameterServerOptions{.cluster = {.job_id = testing::kFakeJob}});
  std::optional<Variable> left = make("w", *other);
  other.reset();
  EXPECT_THAT([&] { left->read(); }, throws_error(ErrorCode::failed_precondition, "destroyed"));
  left.reset();
}

// Regression: a server that had made its part before another one refused kept it.
TEST_F(UnusedVariablesTest, WhatWasMadeForARefusedVariableIsDropped) {
  FakeTask full{"ps:1"};
  full.on_request = [](const rpc::Frame&) -> rpc::Frame {
    throw Error(ErrorCode::resource_exhausted, "no memory");
  };
  ParameterServerStrategy two(
      testing::cluster_of({&ps, &full, &worker}),
      {.cluster = {.job_id = testing::kFakeJob}, .partitioner = FixedShardsPartitioner(2)});
  EXPECT_THAT([&] { make("w", two); }, throws_error(ErrorCode::resource_exhausted, "no memory"));
  EXPECT_TRUE(await_erased(1));
  EXPECT_THAT(two.home()->variables().variables(), SizeIs(0));
}

}  // namespace
}  // namespace cohort
