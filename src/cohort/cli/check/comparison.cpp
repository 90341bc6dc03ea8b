// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/check/comparison.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <utility>

#include "cohort/cluster/address.h"
#include "cohort/cluster/validation.h"
#include "cohort/net/host_port.h"

namespace cohort::cli {
namespace {

using Findings = std::vector<Finding>;

constexpr double kClockSecondsMax = 1;
constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
constexpr std::uint64_t kLockedMin = 64 * kMebibyte;
constexpr std::uint64_t kSharedMin = 64 * kMebibyte;
constexpr std::uint64_t kAddressSpaceMin = 1024 * kMebibyte;
constexpr std::uint64_t kFileMin = 1024 * kMebibyte;
constexpr std::uint64_t kThreadsMin = 64;
// docs/guide/deploying.md, "Environment".
constexpr std::uint64_t kDescriptorsAlways = 32;
constexpr std::uint64_t kDescriptorsOfTask = 3;

// The error of a check that throws; empty if it does not.
template <class Check>
std::string problem_of(const Check& check) {
  try {
    check();
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

// "worker:1" of each address that the cluster has, in order.
std::vector<std::pair<std::string, std::string>> addresses_of(const ClusterSpec& spec) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& [job, tasks] : spec.tasks()) {
    for (const auto& [index, address] : tasks)
      all.emplace_back(TaskId{job, index}.to_string(), address);
  }
  return all;
}

// Adds those of addresses that cannot be read, have two tasks, or are loopbacks beside others.
void check_addresses(const ClusterSpec& spec, Findings& findings) {
  std::map<std::string, std::string> taken;
  std::string inside, outside;
  for (const auto& [task, address] : addresses_of(spec)) {
    const std::string problem = problem_of([&text = address] { net::parse_given_address(text); });
    if (!problem.empty()) {
      findings.push_back(finding("C104", task, problem));
      continue;
    }
    for (const std::string& listener : cluster::listeners_of(address)) {
      const auto [other, is_new] = taken.emplace(listener, task);
      if (is_new || other->second == task) continue;
      findings.push_back(
          finding("C106", task, fmt::format("{} has the address of {}", address, other->second)));
      break;
    }
    (cluster::is_of_loopback(address) ? inside : outside) = address;
  }
  if (!inside.empty() && !outside.empty())
    findings.push_back(finding(
        "C107", "",
        fmt::format("only its own host reaches {}, and others are at {}", inside, outside)));
}

void check_own_task(const ClusterSpec& spec, const std::optional<std::string>& type,
                    std::optional<std::int64_t> index, Findings& findings) {
  const bool has_servers = spec.tasks().contains("ps");
  if (!type && has_servers) {
    if (!spec.tasks().contains("chief"))
      findings.push_back(finding("C109", "", "the coordinator has no address in the cluster"));
    return;
  }
  if (type == "evaluator") return;
  if (!type || !index) {
    findings.push_back(finding("C105", "", "the own task is not known"));
  } else if (!spec.has_task(*type, *index)) {
    findings.push_back(
        finding("C105", "", fmt::format("{}:{} is not in the cluster", *type, *index)));
  }
}

const char* code_of_state(PeerReport::State state) {
  using State = PeerReport::State;
  switch (state) {
    case State::name_not_found:
      return "C201";
    case State::no_name_server:
      return "C202";
    case State::refused:
      return "C303";
    case State::stranger:
      return "C305";
    case State::no_answer:
    case State::answers:
      break;
  }
  return "C304";
}

void check_listening(const SetupReport& setup, Findings& findings) {
  if (!setup.listening) return;
  const Error& error = *setup.listening;
  const char* code = "C203";
  if (error.code() == ErrorCode::resource_exhausted) code = "C301";
  if (error.code() == ErrorCode::permission_denied) code = "C302";
  if (error.code() == ErrorCode::unavailable || error.code() == ErrorCode::cancelled ||
      error.code() == ErrorCode::deadline_exceeded)
    code = "C202";
  findings.push_back(finding(code, "", error.message()));
}

void check_versions(const TaskFacts& own, const PeerReport& peer, Findings& findings) {
  const TaskFacts& other = *peer.facts;
  const auto compare = [&](const char* code, const char* what, const auto& theirs,
                           const auto& ours) {
    if (theirs == ours) return;
    findings.push_back(
        finding(code, peer.task, fmt::format("it has {} {}, this task {}", what, theirs, ours)));
  };
  compare("C401", "Cohort", other.cohort_version, own.cohort_version);
  compare("C402", "version of the protocol", other.protocol_version, own.protocol_version);
  compare("C403", "LibTorch", other.torch_version, own.torch_version);
}

// "worker" of "worker:1".
std::string job_in(const std::string& task) { return task.substr(0, task.find(':')); }

void check_peer_data(const TaskFacts& own, const PeerReport& peer, Findings& findings) {
  if (job_in(own.task) != job_in(peer.facts->task)) return;
  const auto paths_of = [](const TaskFacts& facts) {
    std::string paths;
    for (const DataFolder& each : facts.data) paths += (paths.empty() ? "" : ":") + each.path;
    return paths.empty() ? std::string("none") : paths;
  };
  const std::string theirs = paths_of(*peer.facts), ours = paths_of(own);
  if (theirs != ours)
    findings.push_back(
        finding("C703", peer.task,
                fmt::format("its data folders are {}, those of this task {}", theirs, ours)));
}

void check_answer(const SetupReport& setup, const PeerReport& peer, Findings& findings) {
  const TaskFacts& other = *peer.facts;
  if (other.process == setup.own.process) {
    findings.push_back(
        finding("C306", peer.task, fmt::format("{} leads to this process itself", peer.address)));
    return;
  }
  if (other.task != peer.task) {
    const bool is_own = other.task == setup.own.task;
    findings.push_back(finding(is_own ? "C308" : "C306", peer.task,
                               fmt::format("the process at {} says that it is {}", peer.address,
                                           is_own               ? other.task + ", as this one does"
                                           : other.task.empty() ? std::string("the coordinator")
                                                                : other.task)));
  }
  if (other.cluster != setup.own.cluster)
    findings.push_back(finding(
        "C108", peer.task,
        fmt::format("its cluster is {}, that of this task {}", other.cluster, setup.own.cluster)));
  check_versions(setup.own, peer, findings);
  if (std::abs(peer.clock_difference) > kClockSecondsMax + peer.clock_doubt)
    findings.push_back(
        finding("C501", peer.task,
                fmt::format("its clock is {:.1f} seconds {}", std::abs(peer.clock_difference),
                            peer.clock_difference > 0 ? "ahead" : "behind")));
  check_peer_data(setup.own, peer, findings);
  if (setup.is_listening && !peer.has_dialed)
    findings.push_back(
        finding("C307", peer.task, "it answers, but has not reached this task's own address"));
}

void check_limits(const SetupReport& setup, Findings& findings) {
  const TaskLimits& limits = setup.own.limits;
  const auto need = [&](const char* code, std::uint64_t has, std::uint64_t min, const char* what) {
    if (has >= min) return;
    findings.push_back(
        finding(code, "", fmt::format("{} {}, expected at least {}", has, what, min)));
  };
  need("C601", limits.descriptors,
       kDescriptorsAlways + kDescriptorsOfTask * static_cast<std::uint64_t>(setup.tasks),
       "files can be opened");
  if (setup.launcher == "mpi" && setup.has_fabric)
    need("C602", limits.locked_bytes, kLockedMin, "bytes of memory can be locked");
  bool has_neighbour = false;
  for (const PeerReport& peer : setup.peers)
    has_neighbour = has_neighbour || (peer.facts && peer.facts->host == setup.own.host);
  if (has_neighbour) need("C603", limits.shared_bytes, kSharedMin, "bytes are free in /dev/shm");
  need("C604", limits.address_space_bytes, kAddressSpaceMin, "bytes of address space");
  need("C605", limits.file_bytes, kFileMin, "bytes can be written into a file");
  need("C606", limits.threads, kThreadsMin, "threads of this user");
}

void check_own_data(const TaskFacts& own, Findings& findings) {
  for (const DataFolder& each : own.data) {
    if (!each.exists) {
      findings.push_back(finding("C701", "", each.path + " is no folder of this host"));
    } else if (!each.can_be_read) {
      findings.push_back(finding("C702", "", each.path + " cannot be read"));
    } else if (each.is_empty) {
      findings.push_back(finding("C704", "", each.path + " is empty"));
    }
  }
}

}  // namespace

Findings findings_of_cluster(const ClusterSpec& spec, const std::optional<std::string>& type,
                             std::optional<std::int64_t> index) {
  Findings findings;
  if (!spec) {
    findings.push_back(finding("C101", "", "no variables tell of a cluster"));
    return findings;
  }
  check_addresses(spec, findings);
  check_own_task(spec, type, index, findings);
  for (const Finding& each : findings) {
    if (each.kind->severity == Severity::error) return findings;
  }
  const std::string problem = problem_of([&] {
    spec.tasks().contains("ps") ? validate_parameter_server_cluster(spec, type, index)
                                : validate_multi_worker_cluster(spec, type, index);
  });
  if (!problem.empty()) findings.push_back(finding("C104", "", problem));
  return findings;
}

Findings findings_of_setup(const SetupReport& setup) {
  Findings findings;
  check_listening(setup, findings);
  for (const PeerReport& peer : setup.peers) {
    if (peer.state == PeerReport::State::answers) {
      check_answer(setup, peer, findings);
    } else {
      findings.push_back(
          finding(code_of_state(peer.state), peer.task,
                  fmt::format("{} cannot be reached: {}", peer.address,
                              peer.reason.empty() ? "no answer in time" : peer.reason)));
    }
  }
  check_limits(setup, findings);
  check_own_data(setup.own, findings);
  return findings;
}

}  // namespace cohort::cli
