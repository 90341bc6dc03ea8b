// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/runtime/runtime_context.h"

#include <algorithm>
#include <utility>

namespace cohort::coordinator {
namespace {

// The coordinator waits this many data timeouts of the workers, so that they can first report which
// parameter server does not answer.
constexpr int kWorkersFirst = 2;
constexpr Duration kForEver = Duration::max() / 4;  // small enough to be added to a time

Duration data_timeout_of(const CoordinatorOptions& options, const ClusterConnection& connection) {
  return options.progress_timeout != Duration::zero()
             ? std::min(options.progress_timeout, kForEver)
             : kWorkersFirst * std::min(connection.options().data_timeout, kForEver);
}

}  // namespace

RuntimeContext::RuntimeContext(ParameterServerStrategy& its_strategy,
                               const CoordinatorOptions& its_options,
                               CoordinatorNumbers its_numbers)
    : strategy(its_strategy),
      home(its_strategy.home()),
      connection(home->connection()),
      options(its_options),
      data_timeout(data_timeout_of(its_options, connection)),
      numbers(std::move(its_numbers)) {}

void RuntimeContext::check_running(std::string_view call) const {
  if (is_replaced) throw Error(*replaced);
  COHORT_CHECK(
      !is_stopping, ErrorCode::cancelled, "[coordinator.", call,
      "] expected a running coordinator, got one whose last handle was destroyed; keep the "
      "ClusterCoordinator until its work is done");
}

bool RuntimeContext::end_if_replaced(const Error& error) {
  if (!rpc::is_replaced(error)) return false;
  on_replaced(error);
  return true;
}

void RuntimeContext::count_end(const std::optional<Error>& error, TimePoint now) {
  ends.last = now;
  if (!error) return;
  if (error->code() == ErrorCode::cancelled) {
    ++ends.cancelled;
    return;
  }
  ++ends.failed;
  errors.note(*error);
}

}  // namespace cohort::coordinator
