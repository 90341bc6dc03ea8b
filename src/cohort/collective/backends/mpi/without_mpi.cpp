// SPDX-License-Identifier: Apache-2.0
// A library that was built without MPI has this in place of the folder.
#include "cohort/collective/mpi_group.h"
#include "cohort/core/error.h"

namespace cohort::collective {

namespace {

[[noreturn]] void refuse_mpi(const char* what, const char* remedy) {
  internal::throw_error(
      ErrorCode::unimplemented, "[collective.form] expected a library with MPI for ", what,
      ", got one that was built without it; build Cohort where CMake finds MPI (Debian's "
      "libopenmpi-dev and openmpi-bin), or ",
      remedy);
}

}  // namespace

std::shared_ptr<Group> mpi_group(const MpiTasks&, Deadline) {
  refuse_mpi("GroupBackend::mpi", "use GroupBackend::automatic with TF_CONFIG");
}

void begin_mpi() { refuse_mpi("GroupBackend::mpi", "use GroupBackend::automatic with TF_CONFIG"); }

std::vector<std::string> exchange_texts_by_mpi(const std::string&, MpiPlace, Deadline) {
  refuse_mpi(
      "the addresses of its processes",
      "set MASTER_ADDR to a host of the job and MASTER_PORT to a free port there (mpirun -x)");
}

}  // namespace cohort::collective
