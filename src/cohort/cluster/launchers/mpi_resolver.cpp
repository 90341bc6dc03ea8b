// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cohort/cluster/launchers.h"
#include "cohort/cluster/launchers/launched_process.h"
#include "cohort/cluster/launchers/own_address.h"
#include "cohort/cluster/launchers/rendezvous.h"
#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

cluster::LaunchedProcess this_process_of_mpi() {
  std::optional<cluster::LaunchedProcess> process = cluster::mpi_process();
  COHORT_CHECK(
      process, ErrorCode::failed_precondition,
      "[cluster.mpi] expected the variables of an MPI launcher in the environment "
      "(OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, PMI_RANK and PMI_SIZE, or PMIX_RANK "
      "and SLURM_STEP_NUM_TASKS), which are not set; start the program with mpirun");
  return *std::move(process);
}

// Whether the launcher says that all processes are on this host.
bool are_all_here(std::int64_t size) {
  const auto here =
      internal::first_variable(cluster::kMpi, {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"});
  return here && here->number() == size;
}

cluster::MetProcesses met_in_mpi(std::int64_t rank, std::int64_t size,
                                 const LauncherOptions& options) {
  const bool is_given = !options.host.empty() || internal::environment_text("COHORT_OWN_HOST");
  const std::string host =
      !is_given && are_all_here(size) ? std::string("127.0.0.1") : options.host;
  cluster::MetProcesses met = cluster::meet_by_mpi(rank, size, host, options.timeout);
  cluster::check_reachable(cluster::kMpi, met.addresses);
  return met;
}

}  // namespace

MpiResolver::MpiResolver(LauncherOptions options)
    : LauncherResolver(std::move(options), "mpi", this_process_of_mpi().size.number()),
      rank_(this_process_of_mpi().rank.number()),
      size_(this_process_of_mpi().size.number()) {
  if (const auto master = cluster::master_place(cluster::kMpi))
    internal::check_port(master->port.number(), "MASTER_PORT");
}

std::vector<std::string> MpiResolver::addresses() const {
  const std::string own = std::to_string(rank_) + " of " + std::to_string(size_);
  const std::optional<cluster::MasterPlace> master = cluster::master_place(cluster::kMpi);
  if (!master)
    return cluster::meet_once("mpi " + own, [&] { return met_in_mpi(rank_, size_, options()); })
        .addresses;
  cluster::Newcomer newcomer{.launcher = &cluster::kMpi,
                             .place = {.host = master->address.text,
                                       .port = static_cast<std::uint16_t>(master->port.number()),
                                       .opens_it = rank_ == 0},
                             .prefix = "cohort/mpi/",
                             .size = size_,
                             .rank = rank_,
                             .host = options().host};
  return cluster::meet_once("mpi " + own + " at " + master->address.text + ":" + master->port.text,
                            [&] { return cluster::meet_in_store(newcomer, options().timeout); })
      .addresses;
}

}  // namespace cohort
