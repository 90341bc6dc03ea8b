// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/validation.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "cohort/cluster/address.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/cluster/worker_roles.h"
#include "cohort/core/error.h"
#include "cohort/core/spelling.h"

namespace cohort {
namespace {

using cluster::num_tasks_of;
using OptionalType = std::optional<std::string>;
using OptionalIndex = std::optional<std::int64_t>;

constexpr std::array<std::string_view, 4> kJobs = {"chief", "worker", "ps", "evaluator"};
constexpr std::string_view kJobList = "chief, worker, ps, evaluator";

bool is_job(const std::string& name) {
  return std::find(kJobs.begin(), kJobs.end(), name) != kJobs.end();
}

std::string similar_job(const std::string& name) {
  if (name == "master") return "; \"master\" is an old name of \"chief\"";
  return did_you_mean(name, {kJobs.begin(), kJobs.end()});
}

void check_jobs(const ClusterSpec& spec) {
  for (const auto& [job, tasks] : spec.tasks()) {
    COHORT_CHECK(is_job(job), ErrorCode::invalid_argument,
                 "[cluster.validate] expected only the jobs ", kJobList, ", got \"", job,
                 "\" in the cluster ", spec.to_string(), "; rename or remove the job",
                 similar_job(job));
  }
}

void check_own_type(const ClusterSpec& spec, const OptionalType& type) {
  if (!type) return;
  COHORT_CHECK(is_job(*type), ErrorCode::invalid_argument, "[cluster.validate] expected one of ",
               kJobList, " as the own task's type, got \"", *type,
               "\"; set task.type in TF_CONFIG, or the resolver's task_type", similar_job(*type));
  COHORT_CHECK(*type == "evaluator" || spec.tasks().contains(*type), ErrorCode::invalid_argument,
               "[cluster.validate] expected the own job \"", *type, "\" in the cluster, got ",
               spec.to_string(), "; add the job to cluster or change task.type");
}

void check_at_most_one(const ClusterSpec& spec, const std::string& job) {
  COHORT_CHECK(num_tasks_of(spec, job) <= 1, ErrorCode::invalid_argument,
               "[cluster.validate] expected at most one ", job, " in the cluster, got ",
               num_tasks_of(spec, job), "; keep one address under \"", job, "\"");
}

void check_own_index(const ClusterSpec& spec, const OptionalType& type,
                     const OptionalIndex& index) {
  COHORT_CHECK(!index || *index >= 0, ErrorCode::invalid_argument,
               "[cluster.validate] expected a task index of 0 or more, got ", index.value_or(0),
               "; set task.index in TF_CONFIG, or the resolver's task_id");
  if (!type || !spec.tasks().contains(*type)) return;
  if (!index) {
    throw Error(ErrorCode::invalid_argument,
                "[cluster.validate] expected an index for the own task of job \"" + *type +
                    "\", got none; set task.index in TF_CONFIG, or the resolver's task_id",
                ErrorCause::wrong_type);
  }
  // Unlike tf, this accepts a job whose task numbers have holes: tf compares the index with the
  // number of tasks.
  COHORT_CHECK(spec.has_task(*type, *index), ErrorCode::invalid_argument,
               "[cluster.validate] expected the own task ", *type, ":", *index,
               " in the cluster, got ", spec.to_string(),
               "; add its address to cluster or change task.index");
}

void check_at_least_one(const ClusterSpec& spec, const std::string& job) {
  COHORT_CHECK(num_tasks_of(spec, job) >= 1, ErrorCode::invalid_argument,
               "[cluster.validate] expected at least one ", job, " in the cluster, got ",
               spec.to_string(), "; add \"", job, "\": [\"host:port\"] to cluster");
}

void check_no_holes(const ClusterSpec& spec, const std::string& job) {
  if (num_tasks_of(spec, job) == 0) return;
  COHORT_CHECK(spec.has_task(job, num_tasks_of(spec, job) - 1), ErrorCode::invalid_argument,
               "[cluster.validate] expected the tasks of job \"", job,
               "\" numbered 0, 1, … without holes, got ", spec.to_string(),
               "; renumber them or write them as a list (a TFJob with enableDynamicWorker names "
               "only some of its tasks: leave that out)");
}

bool is_host(std::string_view host) {
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (has_brackets) host = host.substr(1, host.size() - 2);
  constexpr std::string_view kForbidden = "/[]@ \t\n";  // as in "http://host"
  return !host.empty() && host.find_first_of(kForbidden) == std::string_view::npos &&
         (has_brackets || host.find(':') == std::string_view::npos);
}

bool is_port(std::string_view port) {
  constexpr std::size_t kDigitsMax = 5;
  int number = 0;
  const char* const end = port.data() + port.size();
  return port.size() <= kDigitsMax && std::from_chars(port.data(), end, number).ptr == end &&
         number >= 1 && number <= 65535;
}

void check_address(const TaskId& task, std::string_view address) {
  const std::size_t colon = address.rfind(':');
  COHORT_CHECK(colon != std::string_view::npos && is_host(address.substr(0, colon)) &&
                   is_port(address.substr(colon + 1)),
               ErrorCode::invalid_argument,
               "[cluster.validate] expected \"host:port\" with a port of 1 to 65535 as the "
               "address of ",
               task.to_string(), ", got \"", address,
               "\"; correct it in the cluster of TF_CONFIG, the same on every task");
}

void check_addresses_differ(const ClusterSpec& spec) {
  std::map<std::string, TaskId> owners;
  for (const auto& [job, tasks] : spec.tasks()) {
    for (const auto& [index, address] : tasks) {
      const TaskId task{job, index};
      for (const std::string& listener : cluster::listeners_of(address)) {
        const auto [owner, is_new] = owners.emplace(listener, task);
        if (is_new) continue;
        const TaskId& first = owner->second;
        const std::string& other = spec.task_address(first.job, first.index);
        // Without ports, the tasks of a host have one address.
        check_address(first, other);
        check_address(task, address);
        internal::throw_error(
            ErrorCode::invalid_argument,
            "[cluster.validate] expected a different address for each task, got \"", address,
            "\" for both ", first.to_string(), " and ", task.to_string(),
            other == address ? "" : " (the first calls it \"" + other + "\")",
            "; give one of them another port or host");
      }
    }
  }
}

}  // namespace

void validate_addresses(const ClusterSpec& spec) {
  for (const auto& [job, tasks] : spec.tasks()) {
    if (job != "ps" && job != "worker") continue;
    for (const auto& [index, address] : tasks) check_address({job, index}, address);
  }
}

void validate_cluster(const ClusterSpec& spec, const OptionalType& task_type,
                      OptionalIndex task_id) {
  check_jobs(spec);
  check_own_type(spec, task_type);
  check_at_most_one(spec, "chief");
  check_at_most_one(spec, "evaluator");
  check_own_index(spec, task_type, task_id);
}

void validate_parameter_server_cluster(const ClusterSpec& spec, const OptionalType& task_type,
                                       OptionalIndex task_id) {
  validate_server_cluster(spec, task_type, task_id);
  check_at_least_one(spec, "worker");
}

void validate_server_cluster(const ClusterSpec& spec, const OptionalType& task_type,
                             OptionalIndex task_id) {
  COHORT_CHECK(bool(spec), ErrorCode::invalid_argument,
               "[cluster.validate] expected a cluster with ps and worker tasks, got an empty one; "
               "set TF_CONFIG to {\"cluster\": {\"worker\": [\"host:port\", …], \"ps\": "
               "[\"host:port\", …]}, …}, or start the program with `cohort launch`");
  validate_cluster(spec, task_type, task_id);
  check_at_least_one(spec, "ps");
  if (num_tasks_of(spec, "chief") == 0) check_at_least_one(spec, "worker");
  check_no_holes(spec, "ps");
  check_no_holes(spec, "worker");
  check_addresses_differ(spec);
}

void validate_multi_worker_cluster(const ClusterSpec& spec, const OptionalType& task_type,
                                   OptionalIndex task_id) {
  if (!spec) return;
  COHORT_CHECK(task_type && task_id, ErrorCode::invalid_argument,
               "[cluster.validate] expected the type and the index of the own task in the cluster ",
               spec.to_string(), ", got no ", task_type ? "index" : "type",
               "; set task.type and task.index in TF_CONFIG, or the resolver's task_type and "
               "task_id");
  // As in TensorFlow, servers may be in the cluster. But one with a chief is that of a coordinator,
  // whose workers run no program.
  COHORT_CHECK(
      *task_type != "ps" && (num_tasks_of(spec, "ps") == 0 || num_tasks_of(spec, "chief") == 0),
      ErrorCode::invalid_argument,
      "[cluster.validate] expected a cluster of workers, got the job \"ps\" in ", spec.to_string(),
      "; parameter servers belong to ParameterServerStrategy: remove the job, or start the "
      "program with `cohort launch --ps 0`");
  validate_cluster(spec, task_type, task_id);
  if (*task_type == "evaluator") return;  // works alone
  COHORT_CHECK(num_tasks_of(spec, "chief") + num_tasks_of(spec, "worker") > 0,
               ErrorCode::invalid_argument,
               "[cluster.validate] expected at least one chief or worker in the cluster, got ",
               spec.to_string(), "; add \"worker\": [\"host:port\"] to cluster");
  check_no_holes(spec, "worker");
  check_addresses_differ(spec);
  for (const auto& [job, tasks] : spec.tasks()) {
    for (const auto& [index, address] : tasks) check_address({job, index}, address);
  }
}

}  // namespace cohort
