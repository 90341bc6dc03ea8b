// SPDX-License-Identifier: Apache-2.0
// Polls a server's health for up to a minute.
#pragma once

#include <chrono>
#include <string>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/error.h"
#include "cohort/rpc/control.h"

namespace cohort::testing {

// Asks for the health of `task` until `is_it` returns true; its argument is the error, or null for
// an answer. Returns false after a minute.
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

// Waits until the server refuses calls, because it shuts down. A deadline that expires is no
// refusal, since the server may be busy.
inline bool await_refusal(const ClusterSpec& spec, const std::string& task) {
  return await_health(spec, task, [](const Error* error) {
    return error != nullptr && error->code() == ErrorCode::unavailable;
  });
}

}  // namespace cohort::testing
