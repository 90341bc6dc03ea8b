// SPDX-License-Identifier: Apache-2.0
// The rank that each launcher gives this process, as its variables say it.
#pragma once

#include <cstdint>
#include <optional>

#include "cohort/cluster/resolvers/launcher_variables.h"

namespace cohort::cluster {

struct LaunchedProcess {
  internal::LauncherVariable rank;
  internal::LauncherVariable size;
};

// Each returns nullopt where the launcher's variables are not set, and throws failed_precondition
// where some are missing, or the rank is not below the size.
std::optional<LaunchedProcess> torchrun_process();
std::optional<LaunchedProcess> mpi_process();

// One that a store at MASTER_ADDR and MASTER_PORT serves, which rank 0 opens unless `has_agent`.
struct MasterPlace {
  internal::LauncherVariable address;
  internal::LauncherVariable port;
};
std::optional<MasterPlace> master_place(const internal::Launcher& launcher);

inline constexpr internal::Launcher kTorchrun{
    "torchrun",
    "start the processes with the torchrun of the same version of PyTorch as Cohort's LibTorch, "
    "and see whether rank 0 runs and MASTER_ADDR and MASTER_PORT are its host and a free port "
    "there"};
inline constexpr internal::Launcher kMpi{
    "mpi",
    "start the processes with mpirun, and see whether MASTER_ADDR and MASTER_PORT, where "
    "they are set, are the host of rank 0 and a free port there"};

}  // namespace cohort::cluster
