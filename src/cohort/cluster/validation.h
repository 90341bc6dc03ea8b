// SPDX-License-Identifier: Apache-2.0
// Checks of a cluster and the own task in it, before anything connects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/export.h"

namespace cohort {

// Checks that the jobs are among chief, worker, ps and evaluator, that there is at most one chief
// and one evaluator, and that the own task is in the cluster (an evaluator need not be). Each fault
// is an invalid_argument that says what to change.
COHORT_API void validate_cluster(const ClusterSpec& spec,
                                 const std::optional<std::string>& task_type,
                                 std::optional<std::int64_t> task_id);

// Also checks what ParameterServerStrategy needs: at least one ps and one worker, indices without
// holes, and no address twice (localhost is both 127.0.0.1 and [::1]). A chief need not be listed;
// a coordinator without an address of its own has no task_type.
COHORT_API void validate_parameter_server_cluster(const ClusterSpec& spec,
                                                  const std::optional<std::string>& task_type,
                                                  std::optional<std::int64_t> task_id);

// The same for a server, except that there may be a chief and no worker: a chief of version 1
// trains by itself.
COHORT_API void validate_server_cluster(const ClusterSpec& spec,
                                        const std::optional<std::string>& task_type,
                                        std::optional<std::int64_t> task_id);

// Also checks what MultiWorkerMirroredStrategy needs: an own task that trains or evaluates, at
// least one task that trains, no ps beside a chief, indices without holes, and that each address is
// "host:port" and another one. An empty cluster is one worker alone, without an address.
COHORT_API void validate_multi_worker_cluster(const ClusterSpec& spec,
                                              const std::optional<std::string>& task_type,
                                              std::optional<std::int64_t> task_id);

// Checks that every ps and worker address is "host:port", to which other tasks can connect: a host,
// or an IPv6 address in brackets, and a port of 1 to 65535. Not part of the above, because a
// strategy that never connects may have any names; servers and coordinators call it before their
// first connection.
COHORT_API void validate_addresses(const ClusterSpec& spec);

}  // namespace cohort
