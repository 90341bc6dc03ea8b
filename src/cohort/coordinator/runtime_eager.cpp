// SPDX-License-Identifier: Apache-2.0
// Closures that run on the thread that schedules them: no queue, no worker.
#include <utility>

#include "cohort/coordinator/internal/runtime.h"

namespace cohort::coordinator {

// As a worker's: the error of a closure is its result's, and that of the next caller.
RemoteValue Runtime::run_eagerly(const Function& fn, const std::vector<Nest>& arguments) {
  raise_eager_error();
  const auto result = std::make_shared<RemoteState>(weak_from_this());
  const auto stand_ins = home_->lock_stand_ins();
  const Lock tracing(tracing_);
  ClosureId id = 0;
  {
    const Lock lock(mutex_);
    id = numbers_.next_closure++;
  }
  std::optional<Error> error;
  try {
    result->set(eager_steps_.run(fn, arguments, id));
  } catch (const Error& thrown) {
    error = thrown;
    result->fail(thrown);
  }
  const VariableTraffic traffic = eager_steps_.take_traffic();
  const Lock lock(mutex_);
  count_eager_end(error, traffic);
  if (error && !eager_error_) eager_error_ = std::move(error);
  return RemoteValue(result);
}

// As a worker's report; the step is one of worker 0.
void Runtime::count_eager_end(const std::optional<Error>& error, const VariableTraffic& traffic) {
  totals_.pulled_bytes += traffic.pulled_bytes;
  totals_.pushed_bytes += traffic.pushed_bytes;
  count_end(error, Clock::system().now());
  if (!error) ++workers_[0].closures;
}

void Runtime::raise_eager_error() {
  std::optional<Error> error;
  {
    const Lock lock(mutex_);
    error = std::exchange(eager_error_, std::nullopt);
  }
  if (error) throw *error;
}

}  // namespace cohort::coordinator
