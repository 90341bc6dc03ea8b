// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/launchers/launched_process.h"

#include <utility>

namespace cohort::cluster {
namespace {

using internal::first_variable;
using internal::Launcher;
using internal::LauncherVariable;
using internal::variable;

std::optional<LaunchedProcess> process_of(const Launcher& launcher, const char* rank,
                                          const char* size) {
  if (!variable(launcher, rank) && !variable(launcher, size)) return std::nullopt;
  LaunchedProcess process{internal::required(launcher, rank), internal::required(launcher, size)};
  internal::check_rank(process.rank, process.size);
  return process;
}

}  // namespace

std::optional<LaunchedProcess> torchrun_process() {
  return process_of(kTorchrun, "RANK", "WORLD_SIZE");
}

std::optional<LaunchedProcess> mpi_process() {
  if (auto found = process_of(kMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")) return found;
  if (auto found = process_of(kMpi, "PMI_RANK", "PMI_SIZE")) return found;
  // PMIx has no variable for the size; Slurm has.
  std::optional<LauncherVariable> rank = variable(kMpi, "PMIX_RANK");
  std::optional<LauncherVariable> size =
      first_variable(kMpi, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  if (!rank || !size) return std::nullopt;
  internal::check_rank(*rank, *size);
  return LaunchedProcess{*std::move(rank), *std::move(size)};
}

std::optional<MasterPlace> master_place(const Launcher& launcher) {
  std::optional<LauncherVariable> address = variable(launcher, "MASTER_ADDR");
  std::optional<LauncherVariable> port = variable(launcher, "MASTER_PORT");
  if (!address && !port) return std::nullopt;
  return MasterPlace{internal::required(launcher, "MASTER_ADDR"),
                     internal::required(launcher, "MASTER_PORT")};
}

}  // namespace cohort::cluster
