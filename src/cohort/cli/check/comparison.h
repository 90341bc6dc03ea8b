// SPDX-License-Identifier: Apache-2.0
// Finds what is wrong with a cluster, from what is known of it: a function without side effects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cli/check/finding.h"
#include "cohort/cli/check/task_facts.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/error.h"

namespace cohort::cli {

// The end of the attempt to reach another task.
struct PeerReport {
  enum class State : std::uint8_t {
    answers,
    name_not_found,
    no_name_server,
    refused,    // nobody listens there
    no_answer,  // until the deadline
    stranger,   // something else than `cohort check` answers
  };
  std::string task;
  std::string address;
  State state = State::no_answer;
  std::string reason = {};
  std::optional<TaskFacts> facts = {};  // if it answers
  double clock_difference = 0;          // seconds of its clock, less those of this one
  double clock_doubt = 0;               // half of the time of the question
  bool has_dialed = false;              // it has reached this task, too
};

struct SetupReport {
  std::string launcher;  // "slurm", as ChosenResolver::name
  TaskFacts own;
  std::int64_t tasks = 1;   // of the cluster
  bool has_fabric = false;  // RDMA, which MPI uses with locked memory
  // The error of listening at the own address.
  std::optional<Error> listening = {};
  bool is_listening = false;  // false: it failed, or this task has no address
  std::vector<PeerReport> peers = {};
};

// Finds what is wrong with the cluster itself, before anything is reached. `type`, `index`: the
// own task.
std::vector<Finding> findings_of_cluster(const ClusterSpec& spec,
                                         const std::optional<std::string>& type,
                                         std::optional<std::int64_t> index);
// Finds what is wrong with this task, with the others, and with the ways between them.
std::vector<Finding> findings_of_setup(const SetupReport& setup);

}  // namespace cohort::cli
