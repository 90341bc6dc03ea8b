// SPDX-License-Identifier: Apache-2.0
// Which resolver ClusterResolver::from_environment() makes, and why.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/export.h"

namespace cohort::cluster {

struct ChosenResolver {
  std::string name;   // "slurm"; "none" if nothing tells of a cluster
  std::string cause;  // the variable by which it was chosen; empty for "none" without it
  // Whether the processes tell each other their addresses when they ask for the cluster, so that
  // another start has other ones.
  bool exchanges_addresses = false;
  // The variables that are set and that this resolver reads.
  std::vector<std::string> variables;
  // A sentence about another one whose variables tell of another cluster; empty if there is none.
  std::string conflict;
};

// Reads the environment alone. Throws invalid_argument for an unknown COHORT_CLUSTER_RESOLVER.
COHORT_API ChosenResolver choose_resolver();
// The same as from_environment(), without its warning.
COHORT_API std::unique_ptr<ClusterResolver> make_resolver(const ChosenResolver& chosen,
                                                          std::map<std::string, std::int64_t> jobs);

}  // namespace cohort::cluster
