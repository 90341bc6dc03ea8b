// SPDX-License-Identifier: Apache-2.0
// The one header that needs MPI's; for the sources of this folder.
#pragma once

#define OMPI_SKIP_MPICXX 1   // NOLINT: names that MPI chose
#define MPICH_SKIP_MPICXX 1  // NOLINT
#include <mpi.h>

namespace cohort::collective::mpi {

// A duplicate of MPI_COMM_WORLD. MPI_COMM_NULL until World::connect() has returned.
MPI_Comm communicator();

}  // namespace cohort::collective::mpi
