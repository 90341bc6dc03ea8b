// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server_strategy/awaited.h"

#include "cohort/core/log.h"

namespace cohort::internal {
namespace {

constexpr Duration kFirstWord = std::chrono::seconds(3);
constexpr Duration kNextWord = std::chrono::seconds(10);

}  // namespace

void Awaited::has_come(const std::string& name) {
  const Lock lock(mutex_);
  names_.erase(name);
  changed_.notify_all();
}

void Awaited::wait() {
  const Lock lock(mutex_);
  for (Duration pause = kFirstWord; !is_over(pause); pause = kNextWord) {
    std::string text;
    for (const std::string& name : names_) text += (text.empty() ? "" : ", ") + name;
    log_warn("waiting for ", text);
  }
}

bool Awaited::is_over(Duration pause) {
  return changed_.wait(mutex_, Deadline::after(pause),
                       [this]() COHORT_REQUIRES(mutex_) { return names_.empty(); });
}

}  // namespace cohort::internal
