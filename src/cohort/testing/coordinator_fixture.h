// SPDX-License-Identifier: Apache-2.0
// A cluster of one scripted parameter server and one scripted worker, for tests of coordinators.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/fake_task.h"

namespace cohort::testing {

class CoordinatorFixture : public ::testing::Test {
 protected:
  ParameterServerStrategy& strategy() {
    if (!strategy_) {
      strategy_.emplace(
          cluster_of({&ps, &worker}),
          ParameterServerOptions{.cluster = {.timeout = kTimeout, .job_id = kFakeJob}});
    }
    return *strategy_;
  }
  static bool await(const std::function<bool()>& is_so) {
    const Deadline deadline = patience();
    while (!is_so()) {
      if (deadline.has_expired()) return false;
      std::this_thread::yield();
    }
    return true;
  }

  static constexpr auto kTimeout = std::chrono::hours(1);  // for control calls; never expires
  // Used by hooks, which may run until the tasks are destroyed. So these are declared before them.
  Promised<bool> is_asked, may_answer;
  std::atomic<int> asked = 0;
  FakeTask ps{"ps:0"};
  FakeTask worker{"worker:0"};
  const Function nothing = Function::registered("nothing");

 private:
  std::optional<ParameterServerStrategy> strategy_;
};

}  // namespace cohort::testing
