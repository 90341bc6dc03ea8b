// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/runtime/coordinator_options.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "cohort/testing/throws_error.h"

namespace cohort::coordinator::internal {
namespace {

using testing::throws_error;

// Sets a variable of the environment for a scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Environment() { ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

TEST(CoordinatorOptions, ReachTheQueue) {
  const QueueOptions queue = queue_options(checked({.queue_capacity = 5,
                                                    .in_flight_per_worker = 2,
                                                    .max_transient_ps_failures = 7,
                                                    .max_transient_timeouts = 8,
                                                    .transient_window = std::chrono::seconds(9),
                                                    .max_attempts = 10}));
  EXPECT_EQ(queue.capacity, 5U);
  EXPECT_EQ(queue.in_flight_per_worker, 2U);
  EXPECT_EQ(queue.failures.ps_failures_max, 7);
  EXPECT_EQ(queue.failures.timeouts_max, 8);
  EXPECT_EQ(queue.failures.window, std::chrono::seconds(9));
  EXPECT_EQ(queue.max_attempts, 10U);
}

TEST(CoordinatorOptions, DefaultsAreTheOriginals) {
  const QueueOptions queue = queue_options(checked({}));
  EXPECT_EQ(queue.capacity, 256U * 1024);
  EXPECT_EQ(queue.failures.ps_failures_max, 3);
  EXPECT_EQ(queue.failures.timeouts_max, -1) << "a tenth of the workers";
}

TEST(CoordinatorOptions, TheEnvironmentCountsWhereNothingIsSet) {
  const Environment failures("TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES", "11");
  const Environment timeouts("TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS", "12");
  EXPECT_EQ(queue_options(checked({})).failures.ps_failures_max, 11);
  EXPECT_EQ(queue_options(checked({})).failures.timeouts_max, 12);
  EXPECT_EQ(queue_options(checked({.max_transient_ps_failures = 1})).failures.ps_failures_max, 1);
}

TEST(CoordinatorOptions, EachWorkerStartsADelayLaterUpToAMaximum) {
  const auto delays = [](const CoordinatorOptions& options) {
    std::vector<Duration> each;
    for (std::uint32_t i = 0; i < 4; ++i) each.push_back(start_delay_of(checked(options), i));
    return each;
  };
  using std::chrono::seconds;
  const std::vector<Duration> none(4, Duration::zero());
  EXPECT_EQ(delays({}), none);
  const std::vector<Duration> capped{seconds(0), seconds(2), seconds(4), seconds(4)};
  EXPECT_EQ(delays({.start_delay = seconds(2), .start_delay_max = seconds(4)}), capped);
  const Environment delay("TF_COORDINATOR_SCHEDULE_START_DELAY", "2");
  const std::vector<Duration> uncapped{seconds(0), seconds(2), seconds(4), seconds(6)};
  EXPECT_EQ(delays({}), uncapped);
  EXPECT_EQ(delays({.start_delay = Duration::zero()}), none);
  const Environment max("TF_COORDINATOR_SCHEDULE_START_DELAY_MAX", "4");
  EXPECT_EQ(delays({}), capped);
  EXPECT_EQ(start_delay_of({.start_delay = Duration::max()}, 2), Duration::max());
}

TEST(CoordinatorOptions, TheEnvironmentMakesStepsRunEagerly) {
  EXPECT_FALSE(checked({}).run_eagerly);
  EXPECT_TRUE(checked({.run_eagerly = true}).run_eagerly);
  {
    const Environment on("COHORT_RUN_EAGERLY", "1");
    EXPECT_TRUE(checked({}).run_eagerly);
  }
  const Environment strange("COHORT_RUN_EAGERLY", "yes");
  EXPECT_THAT([] { checked({}); },
              throws_error(ErrorCode::invalid_argument, "0 or 1 in COHORT_RUN_EAGERLY, got 'yes'"));
}

TEST(CoordinatorOptions, WhatIsNoNumberInTheEnvironmentIsRefused) {
  for (const char* text : {"three", "3x", "3.5"}) {
    const Environment failures("TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES", text);
    EXPECT_THAT([] { checked({}); },
                throws_error(ErrorCode::invalid_argument,
                             "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES, got '" +
                                 std::string(text) + "'"));
  }
}

TEST(CoordinatorOptions, RefusalsNameTheOptionAndTheValue) {
  const std::pair<CoordinatorOptions, const char*> cases[] = {
      {{.max_transient_timeouts = -2}, "CoordinatorOptions::max_transient_timeouts >= -1, got -2"},
      {{.transient_window = Duration::zero()}, "CoordinatorOptions::transient_window > 0 s, got 0"},
      {{.queue_capacity = -1}, "CoordinatorOptions::queue_capacity >= 0, got -1"},
      {{.queue_bytes = -1}, "CoordinatorOptions::queue_bytes >= 0, got -1"},
      {{.in_flight_per_worker = -2}, "CoordinatorOptions::in_flight_per_worker >= 0, got -2"},
      {{.closures_per_worker = 0}, "closures_per_worker from 1 to 64, got 0"},
      {{.closures_per_worker = 65}, "closures_per_worker from 1 to 64, got 65"},
      {{.closures_per_worker = 3, .in_flight_per_worker = 2},
       "at least closures_per_worker, got 2"},
      {{.max_traces_per_dataset_function = -1},
       "CoordinatorOptions::max_traces_per_dataset_function >= 0, got -1"},
      {{.max_traces_per_step = -1}, "CoordinatorOptions::max_traces_per_step >= 0, got -1"},
      {{.max_attempts = 0}, "CoordinatorOptions::max_attempts > 0, got 0"},
      {{.start_delay = std::chrono::seconds(-3)}, "CoordinatorOptions::start_delay >= 0 s, got -3"},
      {{.start_delay_max = std::chrono::seconds(-4)}, "start_delay_max >= 0 s, got -4"},
      {{.progress_timeout = std::chrono::seconds(-1)},
       "CoordinatorOptions::progress_timeout >= 0 s, got -1"},
      {{.heartbeat = std::chrono::seconds(-2)}, "CoordinatorOptions::heartbeat >= 0 s, got -2"}};
  for (const auto& [options, words] : cases) {
    EXPECT_THAT([&refused = options] { checked(refused); },
                throws_error(ErrorCode::invalid_argument, words));
  }
}

}  // namespace
}  // namespace cohort::coordinator::internal
