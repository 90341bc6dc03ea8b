// SPDX-License-Identifier: Apache-2.0
// How processes that know their ranks, but no addresses, get the addresses of all.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cluster/launchers/key_store.h"
#include "cohort/cluster/resolvers/launcher_variables.h"
#include "cohort/core/clock.h"

namespace cohort::cluster {

struct MetProcesses {
  std::int64_t rank = 0;               // of this process
  std::vector<std::string> addresses;  // by rank
};

// A process that wants to meet the others in a store. A value type.
struct Newcomer {
  const internal::Launcher* launcher = nullptr;
  StorePlace place;
  std::string prefix;  // of all keys: other jobs, and other starts of this job, have another one
  std::int64_t size = 1;
  // Unset: the next one of those from rank_min to rank_max, in the order of arrival.
  std::optional<std::int64_t> rank;
  std::int64_t rank_min = 0;
  std::int64_t rank_max = 0;
  std::string host;  // LauncherOptions::host
};

// Waits until all have come. Rank 0 leads: it collects the addresses, and all agree on its list, so
// what an earlier start of a process has left in the store does no harm. Throws deadline_exceeded,
// naming who is missing, and unavailable where no store, or one of another version, answers.
MetProcesses meet_in_store(const Newcomer& newcomer, Duration timeout);

// The same in the world of MPI, for process `rank` of `size`.
MetProcesses meet_by_mpi(std::int64_t rank, std::int64_t size, const std::string& host,
                         Duration timeout);

// Returns what `meet` returns the first time for this key in this process. A process meets the
// others once, whatever resolvers it makes. Thread-safe.
MetProcesses meet_once(const std::string& key, const std::function<MetProcesses()>& meet);

// Throws failed_precondition if others cannot reach a process, since its address is a loopback's
// and theirs are not.
void check_reachable(const internal::Launcher& launcher, const std::vector<std::string>& addresses);

}  // namespace cohort::cluster
