// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/mpi_group.h"

#include "cohort/collective/backends/mpi/join.h"

namespace cohort::collective {

std::shared_ptr<Group> mpi_group(const MpiTasks& tasks, Deadline deadline) {
  return mpi::join(tasks, deadline);
}

}  // namespace cohort::collective
