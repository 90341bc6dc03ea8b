// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/server_snapshot.h"

#include "cohort/coordinator/runtime/runtime.h"
#include "cohort/core/log.h"

namespace cohort::coordinator {
namespace {

// Between two closures of each worker, so that all servers have the same updates.
class PausedClosures {
 public:
  explicit PausedClosures(Runtime& runtime) : runtime_(runtime) { runtime_.pause("run_epoch"); }
  ~PausedClosures() { runtime_.resume(); }
  PausedClosures(const PausedClosures&) = delete;
  PausedClosures& operator=(const PausedClosures&) = delete;

 private:
  Runtime& runtime_;
};

}  // namespace

ServerSnapshot::ServerSnapshot(Runtime& runtime, const std::vector<Variable>& variables)
    : home_(runtime.strategy().home()), number_(runtime.strategy().home()->new_number()) {
  const std::shared_ptr<detail::ParameterServerHome> home = runtime.strategy().home();
  const PausedClosures paused(runtime);
  try {
    home->take_snapshot(number_, variables);
  } catch (...) {
    home->drop_snapshot(number_);
    throw;
  }
}

ServerSnapshot::~ServerSnapshot() {
  try {
    if (const auto home = home_.lock()) home->drop_snapshot(number_);
  } catch (...) {  // no memory
    log_debug("the end of an evaluation's snapshot was not told: ", current_error().what());
  }
}

}  // namespace cohort::coordinator
