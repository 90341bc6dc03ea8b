// SPDX-License-Identifier: Apache-2.0
// A library that was built without MPI has this in place of the folder.
#include "cohort/collective/mpi_group.h"
#include "cohort/core/error.h"

namespace cohort::collective {

std::shared_ptr<Group> mpi_group(const MpiTasks&, Deadline) {
  internal::throw_error(
      ErrorCode::unimplemented,
      "[collective.form] expected a library with MPI for GroupBackend::mpi, got one that was built "
      "without it; build Cohort where CMake finds MPI (Debian's libopenmpi-dev and openmpi-bin), "
      "or use GroupBackend::automatic with TF_CONFIG");
}

}  // namespace cohort::collective
