// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/cluster_resolver.h"

#include "cohort/cluster/resolvers/resolving.h"

namespace cohort {

SimpleResolver::SimpleResolver(ClusterSpec spec) : SimpleResolver(std::move(spec), Options()) {}

SimpleResolver::SimpleResolver(ClusterSpec spec, Options options)
    : spec_(std::move(spec)), options_(std::move(options)) {}

std::string SimpleResolver::master(const TaskQuery& query) const {
  const std::string& address = query.task_type && query.task_id
                                   ? spec_.task_address(*query.task_type, *query.task_id)
                                   : options_.master;
  // As in tf, an empty layer counts as none here, but not in TfConfigResolver.
  const bool has_layer = !query.rpc_layer.value_or("").empty();
  return internal::master_url(address, has_layer ? query.rpc_layer : options_.rpc_layer);
}

std::map<std::string, int> SimpleResolver::num_accelerators(const TaskQuery&) const {
  return options_.num_accelerators;
}

}  // namespace cohort
