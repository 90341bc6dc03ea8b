// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/runtime/coordinator_options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "cohort/coordinator/queue/in_flight_window.h"
#include "cohort/core/log.h"
#include "cohort/parameter_server_strategy/cluster_connection.h"
#include "cohort/rpc/metrics_option.h"

namespace cohort::coordinator::internal {
namespace {

// Closures that are in flight together report one lost connection of a parameter server several
// times.
constexpr auto kSameEvent = std::chrono::seconds(1);
constexpr std::int64_t kClosuresAtOnceMax = 64;

std::optional<int> number_of_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == 0) return std::nullopt;
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto parsed = std::from_chars(text, end, value);
  COHORT_CHECK(parsed.ec == std::errc() && parsed.ptr == end, ErrorCode::invalid_argument,
               "[coordinator.construct] expected an integer in ", name, ", got '", text, "'");
  return value;
}

std::optional<Duration> seconds_of_environment(const char* name) {
  const std::optional<int> seconds = number_of_environment(name);
  if (!seconds) return std::nullopt;
  return std::chrono::seconds(*seconds);
}

bool runs_eagerly_by_environment() {
  const char* const text = std::getenv("COHORT_RUN_EAGERLY");
  const std::string_view value = text == nullptr ? "" : text;
  COHORT_CHECK(value.empty() || value == "0" || value == "1", ErrorCode::invalid_argument,
               "[coordinator.construct] expected 0 or 1 in COHORT_RUN_EAGERLY, got '", value, "'");
  return value == "1";
}

}  // namespace

CoordinatorOptions checked(CoordinatorOptions options) {
  if (!options.max_transient_ps_failures) {
    options.max_transient_ps_failures =
        number_of_environment("TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES");
  }
  if (!options.max_transient_timeouts) {
    options.max_transient_timeouts =
        number_of_environment("TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS");
  }
  if (!options.start_delay)
    options.start_delay = seconds_of_environment("TF_COORDINATOR_SCHEDULE_START_DELAY");
  if (!options.start_delay_max)
    options.start_delay_max = seconds_of_environment("TF_COORDINATOR_SCHEDULE_START_DELAY_MAX");
  options.run_eagerly = options.run_eagerly || runs_eagerly_by_environment();
  options.serves_metrics = options.serves_metrics || rpc::serves_metrics_by_environment();
  const auto expect = [](bool is_good, const char* option, const char* bound, auto got) {
    COHORT_CHECK(is_good, ErrorCode::invalid_argument,
                 "[coordinator.construct] expected CoordinatorOptions::", option, " ", bound,
                 ", got ", got);
  };
  const int timeouts = options.max_transient_timeouts.value_or(-1);
  expect(timeouts >= -1, "max_transient_timeouts", ">= -1", timeouts);
  expect(options.transient_window > Duration::zero(), "transient_window", "> 0 s",
         seconds_of(options.transient_window));
  expect(options.queue_capacity >= 0, "queue_capacity", ">= 0", options.queue_capacity);
  expect(options.queue_bytes >= 0, "queue_bytes", ">= 0", options.queue_bytes);
  expect(options.in_flight_per_worker >= 0, "in_flight_per_worker", ">= 0",
         options.in_flight_per_worker);
  expect(options.closures_per_worker >= 1 && options.closures_per_worker <= kClosuresAtOnceMax,
         "closures_per_worker", "from 1 to 64", options.closures_per_worker);
  expect(options.in_flight_per_worker == 0 ||
             options.in_flight_per_worker >= options.closures_per_worker,
         "in_flight_per_worker", "0 or at least closures_per_worker", options.in_flight_per_worker);
  expect(options.max_traces_per_dataset_function >= 0, "max_traces_per_dataset_function", ">= 0",
         options.max_traces_per_dataset_function);
  expect(options.max_traces_per_step >= 0, "max_traces_per_step", ">= 0",
         options.max_traces_per_step);
  expect(options.max_attempts > 0, "max_attempts", "> 0", options.max_attempts);
  expect(options.progress_timeout >= Duration::zero(), "progress_timeout", ">= 0 s",
         seconds_of(options.progress_timeout));
  for (const auto& [name, delay] : {std::pair("start_delay", options.start_delay),
                                    std::pair("start_delay_max", options.start_delay_max)}) {
    const Duration set = delay.value_or(Duration::zero());
    expect(set >= Duration::zero(), name, ">= 0 s", seconds_of(set));
  }
  expect(options.heartbeat >= Duration::zero(), "heartbeat", ">= 0 s",
         seconds_of(options.heartbeat));
  if (options.run_eagerly) {
    log_warn(
        "steps run eagerly in the coordinator's process, one at a time, and the workers stay idle: "
        "for debugging only");
  }
  if (options.queue_capacity == 0) {
    log_warn(
        "the coordinator's queue has no bound: a caller that schedules faster than workers run "
        "uses ever more memory");
  }
  return options;
}

Duration start_delay_of(const CoordinatorOptions& options, std::uint32_t worker) {
  const Duration step = options.start_delay.value_or(Duration::zero());
  const Duration max = options.start_delay_max.value_or(Duration::zero());
  const Duration bound = max > Duration::zero() ? max : Duration::max();
  // Without an overflow, whatever the numbers are.
  return worker != 0 && step > bound / worker ? bound : step * worker;
}

QueueOptions queue_options(const CoordinatorOptions& options) {
  QueueOptions made;
  made.capacity = static_cast<std::size_t>(options.queue_capacity);
  made.in_flight_per_worker = options.in_flight_per_worker != 0
                                  ? static_cast<std::size_t>(options.in_flight_per_worker)
                                  : InFlightWindow::kSizeMin;
  FailureOptions& failures = made.failures;
  failures.ps_failures_max = options.max_transient_ps_failures.value_or(failures.ps_failures_max);
  failures.timeouts_max = options.max_transient_timeouts.value_or(failures.timeouts_max);
  failures.window = options.transient_window;
  failures.same_event = kSameEvent;
  made.max_attempts = static_cast<std::uint32_t>(
      std::min<std::int64_t>(options.max_attempts, std::numeric_limits<std::uint32_t>::max()));
  return made;
}

}  // namespace cohort::coordinator::internal
