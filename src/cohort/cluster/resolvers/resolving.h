// SPDX-License-Identifier: Apache-2.0
// Functions that several resolvers use.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"

namespace cohort::internal {

// "layer://address", or the address where there is no layer (tf's format_master_url).
std::string master_url(const std::string& address, const std::optional<std::string>& rpc_layer);
// Counts those of `devices` that belong to `query`'s task, by type and without CPUs; those of all
// tasks unless type and index are given.
std::map<std::string, int> count_accelerators(const std::vector<std::string>& devices,
                                              const TaskQuery& query);
// The GPUs of this process.
std::vector<std::string> local_devices();

}  // namespace cohort::internal
