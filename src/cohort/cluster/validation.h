// SPDX-License-Identifier: Apache-2.0
// Whether a cluster and the own place in it make sense, before anything connects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cohort/cluster/cluster_spec.h"
#include "cohort/core/export.h"

namespace cohort {

// The jobs are among chief, worker, ps and evaluator; at most one chief and one evaluator; the own
// task is one of the cluster's (an evaluator need not be). Each fault is an invalid_argument that
// says what to change.
COHORT_API void validate_cluster(const ClusterSpec& spec,
                                 const std::optional<std::string>& task_type,
                                 std::optional<std::int64_t> task_id);

// What ParameterServerStrategy needs besides: not empty, at least one ps and one worker, numbered
// without holes, and no address twice (localhost is 127.0.0.1 and [::1]). A chief need not be
// listed; a coordinator without an address of its own has no task_type.
COHORT_API void validate_parameter_server_cluster(const ClusterSpec& spec,
                                                  const std::optional<std::string>& task_type,
                                                  std::optional<std::int64_t> task_id);

// Every ps and worker address is "host:port", as others will connect to it: a host, or an IPv6
// address in brackets, and a port of 1 to 65535. Not part of the above, for a strategy that never
// connects may have any names; servers and coordinators ask before their first connection.
COHORT_API void validate_addresses(const ClusterSpec& spec);

}  // namespace cohort
