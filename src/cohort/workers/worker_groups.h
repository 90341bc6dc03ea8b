// SPDX-License-Identifier: Apache-2.0
// Who forms the groups of a strategy's workers.
#pragma once

#include <cstdint>
#include <memory>

#include "cohort/collective/mpi_group.h"
#include "cohort/collective/process_groups.h"
#include "cohort/core/clock.h"

namespace cohort::internal {

// The part of collective::ProcessGroups that a strategy uses; tests have another one. Called by one
// thread at a time.
class WorkerGroups {
 public:
  virtual ~WorkerGroups() = default;
  virtual collective::Membership form(Deadline deadline, Duration return_wait) = 0;
  // Throws if there can be no group but the first one.
  virtual void check_forms_again() const {}
  // Whether the others have ended the last group because of this process, and go on without it.
  virtual bool is_given_up() { return false; }
  // Whether all others of the last group have ended; true if there can be no group but the first.
  virtual bool have_others_ended(Deadline /*deadline*/) { return true; }
  // The number of the last group, equal on all its workers; 0 if there can be no group but the
  // first.
  virtual std::uint64_t last_number() const { return 0; }
};

// Throws the errors of collective::ProcessGroups.
std::unique_ptr<WorkerGroups> groups_of_processes(collective::ProcessGroupOptions options);
// form() throws the errors of collective::mpi_group().
std::unique_ptr<WorkerGroups> groups_of_mpi(collective::MpiTasks tasks);

}  // namespace cohort::internal
