// SPDX-License-Identifier: Apache-2.0
// The part of a task in a cluster of version 1.
#pragma once

#include <cstdint>
#include <string>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/export.h"

namespace cohort::detail::v1 {

// A value type.
struct COHORT_API TaskRole {
  ClusterSpec spec = {};
  std::string type = {};  // empty: there is no cluster, and this process trains alone
  std::int64_t index = 0;

  // Throws invalid_argument for a task that is not in the cluster, for an unknown job, for a
  // cluster without ps, and for a ps, which runs a Server.
  static TaskRole of(const ClusterResolver& resolver);

  bool is_alone() const { return type.empty(); }
  bool is_evaluator() const { return type == "evaluator"; }
  // Whether its variables are on servers.
  bool has_servers() const { return !is_alone() && !is_evaluator(); }
  // Whether it makes variables, saves and writes summaries for all.
  bool is_chief() const;
  // "worker:1"; "this process" if there is no cluster.
  std::string name() const;
  // "/job:worker/task:1"; empty if there is no cluster.
  std::string device_prefix() const;
  // Where tf runs an operator in such a device scope: what the scope does not say is as for this
  // task. Cohort has no scopes of devices; reduce_to() and others take devices by name.
  std::string device_in_scope(const std::string& scope) const;
  // The name of the task that makes the variables: "chief:0".
  std::string chief() const;
  // rpc::PushId's: 0 for the task "chief", n + 1 for worker n.
  std::uint64_t origin() const;
  std::int64_t num_servers() const;
  // How many tasks train, and which of them this one is.
  int num_workers() const;
  int worker() const;
};

}  // namespace cohort::detail::v1
