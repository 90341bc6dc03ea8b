// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/lack.h"

#include <cstddef>
#include <utility>

namespace cohort::collective::formation {

std::string name_of(const WorkerTask& task) { return task.name + " (" + task.address + ")"; }

std::string names_of(const std::vector<WorkerTask>& tasks, const std::vector<int>& ids) {
  std::string names;
  for (const int id : ids) {
    if (id < 0 || id >= static_cast<int>(tasks.size())) continue;
    names += (names.empty() ? "" : ", ") + name_of(tasks[static_cast<std::size_t>(id)]);
  }
  return names.empty() ? "the other workers" : names;
}

Error error_of(const Lack& lack, const std::vector<WorkerTask>& tasks, const std::set<int>& came) {
  std::vector<int> missing = lack.missing;
  std::erase_if(missing, [&](int task) { return came.contains(task); });
  if (missing.empty()) missing = lack.missing;
  const std::string& origin =
      missing.empty() ? std::string() : tasks.at(static_cast<std::size_t>(missing.front())).name;
  const auto must_restart = [](std::string text) {
    return Error(ErrorCode::unavailable, "[collective.form] " + std::move(text),
                 ErrorCause::must_restart);
  };
  const std::string remedy = "; end this process and start it again";
  switch (lack.obstacle) {
    case Obstacle::minority:
      return must_restart(
                 "expected more than half of the workers of the last group, or half with the "
                 "first of them, got too few without " +
                 names_of(tasks, lack.missing) + ", which may train on without this process" +
                 remedy + ", or set MultiWorkerMirroredOptions::allow_minority")
          .at(origin);
    case Obstacle::given_up:
      return must_restart(
          "expected one of the workers that have given up this process and go on "
          "without it, got none: " +
          (lack.is_final ? "they have ended" : names_of(tasks, lack.missing) + " did not answer") +
          "; a group without them would replace what they have trained" + remedy);
    case Obstacle::left_behind:
      if (lack.is_final)
        return must_restart("expected the workers of group " + std::to_string(lack.left_behind) +
                            ", which have trained on without this process, but they have ended" +
                            remedy);
      return Error(ErrorCode::deadline_exceeded,
                   "[collective.form] expected the others to form a new group before the deadline, "
                   "but they train in group " +
                       std::to_string(lack.left_behind) +
                       "; this process joins when they call rebuild()");
    case Obstacle::none:
      break;
  }
  return Error(
             ErrorCode::deadline_exceeded,
             "[collective.form] expected all workers to form a group before the deadline, got no " +
                 (missing.empty() ? "agreement" : names_of(tasks, missing)) +
                 "; see whether they have started and can be reached, or wait longer")
      .at(origin);
}

}  // namespace cohort::collective::formation
