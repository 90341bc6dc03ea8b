// SPDX-License-Identifier: Apache-2.0
// Whether a server answers, asked again and again for a minute.
#pragma once

#include <chrono>
#include <string>

#include "cohort/cluster/cluster_spec.h"
#include "cohort/cluster/task_id.h"
#include "cohort/core/error.h"
#include "cohort/rpc/control.h"

namespace cohort::testing {

// Asks for the health of `task` until `is_it` holds for the error it got, null for an
// answer; false after a minute.
template <class IsIt>
bool await_health(const ClusterSpec& spec, const std::string& task, IsIt is_it) {
  const TaskId id = TaskId::parse(task);
  const auto client = rpc::control_client(spec.task_address(id.job, id.index), task);
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while (!deadline.has_expired()) {
    try {
      client->health(Deadline::after(std::chrono::seconds(1)));
      if (is_it(nullptr)) return true;
    } catch (const Error& error) {
      if (is_it(&error)) return true;
    }
  }
  return false;
}

inline bool await_answer(const ClusterSpec& spec, const std::string& task) {
  return await_health(spec, task, [](const Error* error) { return error == nullptr; });
}

// Its end has begun. Too busy to answer is no refusal.
inline bool await_refusal(const ClusterSpec& spec, const std::string& task) {
  return await_health(spec, task, [](const Error* error) {
    return error != nullptr && error->code() == ErrorCode::unavailable;
  });
}

}  // namespace cohort::testing
