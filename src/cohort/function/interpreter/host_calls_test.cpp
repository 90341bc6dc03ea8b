// SPDX-License-Identifier: Apache-2.0
// Calls of a run to its host that are no updates: waiting for a variable, and cancellation.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/error.h"
#include "cohort/function/program/program_builder_for_tests.h"
#include "cohort/function/program/wire.h"
#include "cohort/testing/throws_error.h"

namespace cohort::function {
namespace {

class NotingHost : public internal::EffectHandler {
 public:
  std::vector<at::Tensor> iterator_next(std::int64_t) override { COHORT_ASSERT(false); }
  void update(internal::Effect) override { calls.emplace_back("update"); }
  std::vector<std::string> calls;
};

class HostCalls : public ::testing::Test {
 protected:
  // Runs an assignment, the effect and another assignment, all of a variable of one number.
  void run(const std::string& effect, NotingHost& host) {
    ProgramBuilder p;
    const int v = p.variable("v", {});
    p.effect("cohort::assign", {integer(0), value(v)});
    p.effect(effect, {integer(0)});
    p.effect("cohort::assign", {integer(0), value(v)});
    PreparedProgram::decode(encode(p.program()))->run({}, variables_, host, 1);
  }

  const std::vector<at::Tensor> variables_ = {at::ones({})};
};

TEST_F(HostCalls, TheHostWaitsForAVariableAtItsPlace) {
  struct : NotingHost {
    void wait_until_positive(std::int64_t variable) override {
      calls.push_back("wait " + std::to_string(variable));
    }
  } host;
  run("cohort::wait_until_positive", host);
  EXPECT_EQ(host.calls, (std::vector<std::string>{"update", "wait 0", "update"}));
}

TEST_F(HostCalls, AHostThatCannotWaitSaysWhoCan) {
  NotingHost host;
  EXPECT_THAT([&] { run("cohort::wait_until_positive", host); },
              testing::throws_error(ErrorCode::unimplemented, "ClusterCoordinator::schedule()"));
}

// A run went on although nobody needed it any more.
TEST_F(HostCalls, ACancelledRunEndsBeforeItsNextOperator) {
  struct : NotingHost {
    void wait_until_positive(std::int64_t) override { is_cancelled = true; }
    void check_cancelled() override {
      COHORT_CHECK(!is_cancelled, ErrorCode::cancelled, "nobody needs it");
    }
    bool is_cancelled = false;
  } host;
  EXPECT_THAT([&] { run("cohort::wait_until_positive", host); },
              testing::throws_error(ErrorCode::cancelled, "nobody needs it"));
  EXPECT_EQ(host.calls, std::vector<std::string>{"update"});
}

}  // namespace
}  // namespace cohort::function
