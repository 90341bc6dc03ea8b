// SPDX-License-Identifier: Apache-2.0
// Functions that several resolvers use.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"

namespace cohort::internal {

// "layer://address", or the address where there is no layer (tf's format_master_url).
std::string master_url(const std::string& address, const std::optional<std::string>& rpc_layer);
// The address of the query's task, or of the resolver's own one, after its layer; empty if type or
// index is not known. Throws invalid_argument for a task that the cluster does not have.
std::string master_of_task(const ClusterResolver& resolver, const TaskQuery& query);
// Whether the cluster has no jobs, or one with at most one task.
bool is_one_task_at_most(const ClusterSpec& spec);
// The variable of the environment; nullopt where it is not set.
std::optional<std::string> environment_text(const char* name);
// Throws invalid_argument, naming the option, unless 1 <= port <= 65535.
void check_port(std::int64_t port, std::string_view option);
// Counts those of `devices` that belong to `query`'s task, by type and without CPUs; those of all
// tasks unless type and index are given.
std::map<std::string, int> count_accelerators(const std::vector<std::string>& devices,
                                              const TaskQuery& query);
// The GPUs of this process.
std::vector<std::string> local_devices();

}  // namespace cohort::internal
