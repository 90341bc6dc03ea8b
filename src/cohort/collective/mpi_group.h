// SPDX-License-Identifier: Apache-2.0
// The group of the processes of an MPI job.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort::collective {

// The tasks as they are known from elsewhere (TF_CONFIG), to be compared with MPI.
struct MpiTasks {
  std::vector<std::string> names = {};  // in the order of ranks; empty: "worker:0" and so on
  int self = 0;                         // this process among them
};

// The group of all processes of MPI_COMM_WORLD, with their ranks. All make this call, in the same
// order if they make it several times. Begins MPI if the program has not; then it also ends MPI, at
// the end of the process.
//
// Throws unimplemented in a library that was built without MPI; invalid_argument if `tasks` has
// names, but not those of as many processes, or another place for this one; failed_precondition if
// the program has begun MPI without MPI_THREAD_MULTIPLE, or has ended it; deadline_exceeded if a
// process does not come.
COHORT_API std::shared_ptr<Group> mpi_group(const MpiTasks& tasks, Deadline deadline);

// Begins MPI for the life of this process, if it has not begun. Throws as mpi_group().
COHORT_API void begin_mpi();

// The place of this process among all, as the launcher's variables say it.
struct MpiPlace {
  int self = 0;
  int size = 1;
};

// Returns the texts of all processes of MPI_COMM_WORLD, by rank. All make this call. If MPI has not
// begun, it is begun for this call alone and cannot be begun again, so a later mpi_group() throws:
// but then the launcher ends all other processes when one fails, and no process waits for the
// others at its end.
//
// Throws unimplemented in a library that was built without MPI; failed_precondition if MPI has
// another place for this process, as another MPI than the launcher's has, or has ended;
// invalid_argument for a text of more than 255 bytes; deadline_exceeded if a process does not come.
COHORT_API std::vector<std::string> exchange_texts_by_mpi(const std::string& mine, MpiPlace place,
                                                          Deadline deadline);

}  // namespace cohort::collective
