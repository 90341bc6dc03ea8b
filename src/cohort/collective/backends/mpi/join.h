// SPDX-License-Identifier: Apache-2.0
// Groups of the processes that mpirun, or another launcher of MPI programs, has started.
#pragma once

#include <memory>

#include "cohort/collective/group.h"
#include "cohort/collective/mpi_group.h"
#include "cohort/core/clock.h"

namespace cohort::collective::mpi {

// As mpi_group(). In a library that was built without MPI it throws unimplemented.
std::shared_ptr<Group> join(const MpiTasks& tasks, Deadline deadline);

}  // namespace cohort::collective::mpi
