// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/on_backend.h"

#include <array>
#include <utility>

#include "cohort/collective/backends/hierarchical/member.h"
#include "cohort/collective/backends/shared_memory/member.h"
#include "cohort/collective/backends/tcp/member.h"
#include "cohort/core/error.h"

namespace cohort::collective::formation {

namespace {

// The first member on another host than member 0; 0 if there is none.
int first_elsewhere(const Links& links) {
  for (int rank = 1; rank < links.size(); ++rank) {
    if (links.host(rank) != links.host(0)) return rank;
  }
  return 0;
}

}  // namespace

std::string name_of(GroupBackend backend) {
  constexpr std::array kNames{"automatic", "shared_memory", "tcp", "mpi"};
  const auto i = static_cast<std::size_t>(backend);
  return std::string("GroupBackend::") + (i < kNames.size() ? kNames[i] : "of another version");
}

std::shared_ptr<Group> on_backend(std::shared_ptr<Links> links, GroupBackend backend,
                                  Deadline deadline) {
  COHORT_CHECK(backend != GroupBackend::mpi, ErrorCode::invalid_argument,
               "[collective.form] expected a backend of workers that have addresses, got "
               "GroupBackend::mpi; call mpi_group()");
  const int elsewhere = first_elsewhere(*links);
  COHORT_CHECK(backend != GroupBackend::shared_memory || elsewhere == 0,
               ErrorCode::invalid_argument,
               "[collective.form] expected all workers on one host for "
               "GroupBackend::shared_memory, got ",
               links->member_name(0), " and ", links->member_name(elsewhere),
               " on two, or as different users or in different containers; use "
               "GroupBackend::automatic or tcp");
  if (backend == GroupBackend::tcp) return tcp::join(std::move(links));
  if (elsewhere == 0) return shared_memory::join(std::move(links), deadline);
  // All members know the hosts of all from the same proposal, so they decide alike.
  if (hierarchical::is_useful(*links)) return hierarchical::join(std::move(links), deadline);
  return tcp::join(std::move(links));
}

}  // namespace cohort::collective::formation
