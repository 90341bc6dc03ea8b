// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "cohort/cluster/resolvers.h"
#include "cohort/cluster/resolvers/launcher_variables.h"
#include "cohort/cluster/resolvers/ranked_jobs.h"
#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

using internal::environment_text;

constexpr internal::Launcher kSlurm{"slurm", "start the program with srun"};

using internal::LauncherVariable;

LauncherVariable required(const char* name) { return internal::required(kSlurm, name); }

// The variables of the job step, or those of the job where there is no step.
struct SlurmNames {
  const char* num_tasks;
  const char* hosts;
  const char* tasks_per_node;
};

SlurmNames slurm_names() {
  constexpr SlurmNames kStep{"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST",
                             "SLURM_STEP_TASKS_PER_NODE"};
  constexpr SlurmNames kJob{"SLURM_NTASKS", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"};
  const auto count = [](const SlurmNames& names) {
    return (environment_text(names.num_tasks) ? 1 : 0) + (environment_text(names.hosts) ? 1 : 0) +
           (environment_text(names.tasks_per_node) ? 1 : 0);
  };
  return count(kStep) == 0 && count(kJob) == 3 ? kJob : kStep;
}

struct HostTasks {
  std::string host;
  std::int64_t tasks = 0;
};

// The hosts in Slurm's order.
std::vector<HostTasks> hosts_of(const SlurmNames& names, const SlurmResolverOptions& options) {
  std::vector<HostTasks> result;
  for (const auto& [host, tasks] : options.tasks_by_host) result.push_back({host, tasks});
  if (!result.empty()) return result;
  const LauncherVariable list = required(names.hosts);
  const std::vector<std::string> hosts = expand_slurm_hosts(list.text);
  if (options.tasks_per_node) {
    for (const std::string& host : hosts) result.push_back({host, *options.tasks_per_node});
    return result;
  }
  const LauncherVariable numbers = required(names.tasks_per_node);
  const std::vector<std::int64_t> tasks = expand_slurm_tasks(numbers.text);
  COHORT_CHECK(hosts.size() == tasks.size(), ErrorCode::failed_precondition,
               "[cluster.slurm] expected a number in ", numbers.name, " for each host of ",
               list.name, ", got ", tasks.size(), " numbers ('", numbers.text, "') for ",
               hosts.size(), " hosts ('", list.text, "')");
  for (std::size_t i = 0; i < hosts.size(); ++i) result.push_back({hosts[i], tasks[i]});
  return result;
}

// Slurm numbers the tasks of a job by host in its order, unless it was asked for another
// distribution; then the addresses would be those of other tasks.
void check_order(const std::vector<HostTasks>& hosts, std::int64_t rank) {
  const std::optional<LauncherVariable> node = internal::variable(kSlurm, "SLURM_NODEID");
  const std::optional<LauncherVariable> local = internal::variable(kSlurm, "SLURM_LOCALID");
  if (!node || !local) return;
  const std::int64_t own = node->number();
  std::int64_t expected = local->number();
  for (std::int64_t i = 0; i < std::min<std::int64_t>(own, std::ssize(hosts)); ++i)
    expected += hosts[static_cast<std::size_t>(i)].tasks;
  COHORT_CHECK(rank == expected, ErrorCode::failed_precondition,
               "[cluster.slurm] expected the ranks of one host one after the other, so rank ",
               expected, " for task ", local->text, " of node ", node->text, ", got ", rank,
               "; start the tasks with srun --distribution=block");
}

std::vector<HostTasks> ordered_hosts(const SlurmNames& names, const SlurmResolverOptions& options,
                                     std::int64_t rank) {
  std::vector<HostTasks> hosts = hosts_of(names, options);
  if (environment_text("SLURMD_NODENAME") && options.tasks_by_host.empty()) {
    check_order(hosts, rank);
  } else {
    std::sort(hosts.begin(), hosts.end(),
              [](const HostTasks& a, const HostTasks& b) { return a.host < b.host; });
  }
  return hosts;
}

struct Gpus {
  std::vector<std::string> ids;  // of a host
  std::int64_t per_node = 0;
  std::int64_t per_task = 0;
  bool are_given_out = false;  // Slurm has given each task its own
};

Gpus gpus_of(const SlurmResolverOptions& options, std::int64_t tasks_max) {
  Gpus gpus;
  if (const std::optional<std::string> visible = environment_text("CUDA_VISIBLE_DEVICES")) {
    for (std::size_t at = 0; at <= visible->size();) {  // as in tf, empty text is one
      const std::size_t end = std::min(visible->find(',', at), visible->size());
      gpus.ids.push_back(visible->substr(at, end - at));
      at = end + 1;
    }
  } else {
    const auto count = options.gpus_per_node.value_or(std::ssize(internal::local_devices()));
    for (std::int64_t i = 0; i < count; ++i) gpus.ids.push_back(std::to_string(i));
  }
  gpus.per_node = options.gpus_per_node.value_or(std::ssize(gpus.ids));
  gpus.are_given_out = !options.gpus_per_node && !options.gpus_per_task &&
                       environment_text("SLURM_GPUS_PER_TASK").has_value();
  if (gpus.are_given_out) {
    gpus.per_task = gpus.per_node;
    return gpus;
  }
  gpus.per_task =
      options.gpus_per_task.value_or(gpus.per_node / std::max<std::int64_t>(tasks_max, 1));
  COHORT_CHECK(gpus.per_node >= 0 && gpus.per_task >= 0, ErrorCode::invalid_argument,
               "[cluster.slurm] expected gpus_per_node and gpus_per_task of 0 or more, got ",
               gpus.per_node, " and ", gpus.per_task);
  COHORT_CHECK(gpus.per_task == 0 || tasks_max <= gpus.per_node / gpus.per_task,
               ErrorCode::failed_precondition, "[cluster.slurm] expected at least ", gpus.per_task,
               " GPUs for each of the ", tasks_max, " tasks of a host, got gpus_per_node ",
               gpus.per_node, "; ask Slurm for more GPUs or lower gpus_per_task");
  COHORT_CHECK(gpus.per_task == 0 || gpus.per_node <= std::ssize(gpus.ids),
               ErrorCode::failed_precondition, "[cluster.slurm] expected ", gpus.per_node,
               " GPUs in CUDA_VISIBLE_DEVICES, as gpus_per_node says, got ", gpus.ids.size());
  return gpus;
}

// The ids of the GPUs of the k-th task of a host.
std::string visible_devices(const Gpus& gpus, std::int64_t k) {
  std::string text;
  for (std::int64_t i = k * gpus.per_task; i < (k + 1) * gpus.per_task; ++i)
    text.append(text.empty() ? "" : ",").append(gpus.ids.at(static_cast<std::size_t>(i)));
  return text;
}

// Throws unless the tasks on all hosts, and those of all jobs, are as many as Slurm says.
void check_counts(const LauncherVariable& total, const std::vector<HostTasks>& hosts,
                  const std::map<std::string, std::int64_t>& jobs) {
  std::int64_t on_hosts = 0;
  for (const HostTasks& each : hosts) {
    COHORT_CHECK(each.tasks >= 0, ErrorCode::invalid_argument,
                 "[cluster.slurm] expected 0 tasks or more on host '", each.host, "', got ",
                 each.tasks);
    on_hosts += each.tasks;
  }
  COHORT_CHECK(on_hosts == total.number(), ErrorCode::failed_precondition,
               "[cluster.slurm] expected ", total.text, " tasks on all hosts, as ", total.name,
               " says, got ", on_hosts);
  internal::check_jobs(jobs, total.number(),
                       {.launcher = kSlurm.name,
                        .option = "SlurmResolverOptions::jobs, as " + total.name + " says",
                        .remedy = "change the jobs, or srun's --ntasks"});
}

// A task of the cluster, in the order of the ranks.
struct RankedTask {
  std::string address;
  std::int64_t place_on_host = 0;
};

std::vector<RankedTask> ranked_tasks(const std::vector<HostTasks>& hosts, std::int64_t port_base) {
  std::vector<RankedTask> tasks;
  for (const HostTasks& each : hosts) {
    for (std::int64_t k = 0; k < each.tasks; ++k)
      tasks.push_back({each.host + ":" + std::to_string(port_base + k), k});
  }
  return tasks;
}

}  // namespace

SlurmResolver::SlurmResolver() : SlurmResolver(SlurmResolverOptions()) {}

SlurmResolver::SlurmResolver(SlurmResolverOptions options)
    : rpc_layer_(std::move(options.rpc_layer)) {
  const std::int64_t rank = required("SLURM_PROCID").number();
  const SlurmNames names = slurm_names();
  const LauncherVariable total = required(names.num_tasks);
  const std::vector<HostTasks> hosts = ordered_hosts(names, options, rank);
  if (options.jobs.empty()) options.jobs = {{"worker", total.number()}};
  check_counts(total, hosts, options.jobs);
  internal::check_rank(required("SLURM_PROCID"), total);
  std::int64_t tasks_max = 0;
  for (const HostTasks& each : hosts) tasks_max = std::max(tasks_max, each.tasks);
  internal::check_port(options.port_base, "SlurmResolverOptions::port_base");
  internal::check_port(options.port_base + tasks_max - 1, "the last task of a host");
  const Gpus gpus = gpus_of(options, tasks_max);
  gpus_per_task_ = gpus.per_task;

  const std::vector<RankedTask> tasks = ranked_tasks(hosts, options.port_base);
  std::vector<std::string> addresses;
  for (const RankedTask& each : tasks) addresses.push_back(each.address);
  spec_ = internal::cluster_of(options.jobs, addresses);
  task_ = internal::task_of_rank(options.jobs, rank);
  if (options.auto_set_gpu && gpus.per_task > 0 && !gpus.are_given_out) {
    const RankedTask& own = tasks[static_cast<std::size_t>(rank)];
    ::setenv("CUDA_VISIBLE_DEVICES", visible_devices(gpus, own.place_on_host).c_str(), 1);
  }
}

std::string SlurmResolver::master(const TaskQuery& query) const {
  return internal::master_of_task(*this, query);
}

std::map<std::string, int> SlurmResolver::num_accelerators(const TaskQuery&) const {
  if (gpus_per_task_ == 0) return {};
  return {{"GPU", static_cast<int>(gpus_per_task_)}};
}

}  // namespace cohort
