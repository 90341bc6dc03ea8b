// SPDX-License-Identifier: Apache-2.0
// Resolvers of hosts that a service lists: Kubernetes, Google Compute Engine, SageMaker.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cohort/cluster/resolvers.h"
#include "cohort/cluster/resolvers/integer_text.h"
#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

std::string with_port(const std::string& host, std::int64_t port) {
  return host + ":" + std::to_string(port);
}

ClusterSpec spec_of_job(const std::string& job, const std::vector<std::string>& hosts,
                        std::int64_t port) {
  std::vector<std::string> addresses;
  for (const std::string& host : hosts) addresses.push_back(with_port(host, port));
  return ClusterSpec({{job, addresses}});
}

std::map<std::string, int> own_accelerators(const ClusterResolver& resolver,
                                            const TaskQuery& query) {
  resolver.master(query);  // throws for a task that the cluster does not have
  return internal::count_accelerators(internal::local_devices(), query);
}

// The hosts of SM_HOSTS, sorted.
std::vector<std::string> hosts_of_sagemaker() {
  constexpr const char* kName = "SM_HOSTS";
  const std::optional<std::string> text = internal::environment_text(kName);
  COHORT_CHECK(text, ErrorCode::invalid_argument, "[cluster.sagemaker] expected the variable ",
               kName, " in the environment, which is not set; SageMaker sets it in training jobs");
  const auto list = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const bool is_good =
      list.is_array() &&
      std::all_of(list.begin(), list.end(), [](const auto& host) { return host.is_string(); });
  COHORT_CHECK(is_good, ErrorCode::invalid_argument,
               "[cluster.sagemaker] expected a JSON list of names in ", kName, ", got ",
               internal::quote(*text));
  auto hosts = list.get<std::vector<std::string>>();
  std::sort(hosts.begin(), hosts.end());
  return hosts;
}

// The place of this host in the list; nullopt where it is not in it.
std::optional<std::int64_t> place_of_current_host(const std::vector<std::string>& hosts) {
  constexpr const char* kName = "SM_CURRENT_HOST";
  const std::optional<std::string> own = internal::environment_text(kName);
  COHORT_CHECK(own, ErrorCode::invalid_argument, "[cluster.sagemaker] expected the variable ",
               kName, " in the environment, which is not set; SageMaker sets it in training jobs");
  const auto found = std::find(hosts.begin(), hosts.end(), *own);
  if (found == hosts.end()) return std::nullopt;
  return found - hosts.begin();
}

}  // namespace

// --- Kubernetes ----------------------------------------------------------------------------------

KubernetesResolver::KubernetesResolver(KubernetesResolverOptions options)
    : options_(std::move(options)) {
  COHORT_CHECK(options_.pods, ErrorCode::invalid_argument,
               "[cluster.kubernetes] expected KubernetesResolverOptions::pods, got none; give a "
               "function that lists the pods of a selector, or use TfConfigResolver");
  internal::check_port(options_.port, "KubernetesResolverOptions::port");
}

ClusterSpec KubernetesResolver::cluster_spec() const {
  std::map<std::string, std::vector<std::string>> jobs;
  for (const auto& [job, selectors] : options_.selectors) {
    std::vector<std::string>& addresses = jobs[job];
    for (const std::string& selector : selectors) {
      std::vector<KubernetesPod> pods = options_.pods(selector);
      std::sort(pods.begin(), pods.end(),
                [](const KubernetesPod& a, const KubernetesPod& b) { return a.name < b.name; });
      for (const KubernetesPod& pod : pods) {
        COHORT_CHECK(pod.phase == "Running", ErrorCode::failed_precondition,
                     "[cluster.kubernetes] expected all pods of '", selector,
                     "' to be running, got pod '", pod.name, "' in phase '", pod.phase,
                     "'; wait until all are");
        addresses.push_back(with_port(pod.address, options_.port));
      }
    }
  }
  return ClusterSpec(jobs);
}

std::string KubernetesResolver::master(const TaskQuery& query) const {
  return internal::master_of_task(*this, query);
}

std::map<std::string, int> KubernetesResolver::num_accelerators(const TaskQuery& query) const {
  return own_accelerators(*this, query);
}

// --- Google Compute Engine -----------------------------------------------------------------------

GceResolver::GceResolver(GceResolverOptions options) : options_(std::move(options)) {
  COHORT_CHECK(options_.instances, ErrorCode::invalid_argument,
               "[cluster.gce] expected GceResolverOptions::instances, got none; give a function "
               "that lists the instances of the group");
  internal::check_port(options_.port, "GceResolverOptions::port");
}

ClusterSpec GceResolver::cluster_spec() const {
  std::vector<std::string> hosts;
  for (const GceInstance& instance : options_.instances())
    if (instance.status == "RUNNING") hosts.push_back(instance.address);
  std::sort(hosts.begin(), hosts.end());
  return spec_of_job(options_.task_type, hosts, options_.port);
}

std::string GceResolver::master(const TaskQuery& query) const {
  return internal::master_of_task(*this, query);
}

std::map<std::string, int> GceResolver::num_accelerators(const TaskQuery& query) const {
  return own_accelerators(*this, query);
}

void GceResolver::set_task_type(std::optional<std::string> type) {
  internal::throw_error(ErrorCode::failed_precondition, "[cluster.gce] expected the job '",
                        options_.task_type, "' of the constructor, got '", type.value_or(""),
                        "'; set GceResolverOptions::task_type, since all instances have one job");
}

// --- SageMaker -----------------------------------------------------------------------------------

SageMakerResolver::SageMakerResolver() : SageMakerResolver(Options()) {}

SageMakerResolver::SageMakerResolver(Options options) : options_(std::move(options)) {
  internal::check_port(options_.port, "SageMakerResolver::Options::port");
}

ClusterSpec SageMakerResolver::cluster_spec() const {
  const std::vector<std::string> hosts = hosts_of_sagemaker();
  if (!place_of_current_host(hosts)) return {};
  return spec_of_job("worker", hosts, options_.port);
}

std::optional<std::string> SageMakerResolver::task_type() const {
  if (options_.task_type) return options_.task_type;
  if (!place_of_current_host(hosts_of_sagemaker())) return std::nullopt;
  return "worker";
}

std::optional<std::int64_t> SageMakerResolver::task_id() const {
  return options_.task_id ? options_.task_id : place_of_current_host(hosts_of_sagemaker());
}

std::string SageMakerResolver::master(const TaskQuery& query) const {
  if (internal::is_one_task_at_most(cluster_spec())) return "";
  return internal::master_of_task(*this, query);
}

std::map<std::string, int> SageMakerResolver::num_accelerators(const TaskQuery& query) const {
  return own_accelerators(*this, query);
}

}  // namespace cohort
