// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/check/finding.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::cli {
namespace {

constexpr int kConfiguration = 64;
constexpr int kPeer = 69;
constexpr int kLater = 75;

constexpr FindingKind kKinds[] = {
    {"C101", Severity::error, kConfiguration,
     "Set TF_CONFIG, or start the processes with srun, mpirun or torchrun."},
    {"C102", Severity::error, kConfiguration,
     "Correct the variable that the text names; `cohort config` shows all of them."},
    {"C103", Severity::warning, 0,
     "Set COHORT_CLUSTER_RESOLVER to the launcher that is meant, or unset the other's variables."},
    {"C104", Severity::error, kConfiguration,
     "Correct the cluster as the text says, the same on every task."},
    {"C105", Severity::error, kConfiguration,
     "Give this process the type and the index of a task of the cluster."},
    {"C106", Severity::error, kConfiguration, "Give each task an address of its own."},
    {"C107", Severity::error, kConfiguration,
     "Write the name or number that each host has in the network, not that of its loopback."},
    {"C108", Severity::error, kConfiguration,
     "Give every task the same cluster, with the addresses in the same order."},
    {"C109", Severity::warning, 0,
     "Add a chief to the cluster, so that `cohort status` can ask the coordinator."},
    {"C110", Severity::error, kPeer,
     "Start all processes of the job, with the launcher that the text asks for."},
    {"C201", Severity::error, kConfiguration,
     "Correct the name, or add it to the name server or to /etc/hosts of every host."},
    {"C202", Severity::error, kPeer,
     "See whether name resolution (DNS) works on this host, or write addresses as numbers."},
    {"C203", Severity::error, kConfiguration,
     "Start this task on the host of its address, or correct its index or its address."},
    {"C301", Severity::error, kLater,
     "Stop the process that listens there, or give the task another port."},
    {"C302", Severity::error, kConfiguration, "Choose a port above 1023."},
    {"C303", Severity::error, kPeer,
     "Start `cohort check` there at about the same time, and compare its address with this one."},
    {"C304", Severity::error, kPeer,
     "Let the firewall pass this port between all hosts of the cluster, and see whether the host "
     "runs."},
    {"C305", Severity::error, kConfiguration,
     "Stop the other program, or give the task another port."},
    {"C306", Severity::error, kConfiguration,
     "Give each process its own index; two may have been exchanged."},
    {"C307", Severity::error, kPeer,
     "Let the firewall pass this task's own port, and see what the other task's check says."},
    {"C308", Severity::error, kConfiguration, "Give each process an index of its own."},
    {"C401", Severity::error, kConfiguration, "Install one release of Cohort on all hosts."},
    {"C402", Severity::error, kConfiguration, "Install one release of Cohort on all hosts."},
    {"C403", Severity::error, kConfiguration, "Install one version of LibTorch on all hosts."},
    {"C501", Severity::warning, 0,
     "Synchronise the clocks (NTP), or times in logs and checkpoints do not compare."},
    {"C601", Severity::error, kLater, "Raise the limit of open files (ulimit -n)."},
    {"C602", Severity::warning, 0,
     "Raise the limit of locked memory (ulimit -l), which fabrics of MPI need."},
    {"C603", Severity::warning, 0,
     "Give the container more shared memory (docker run --shm-size, an emptyDir in memory)."},
    {"C604", Severity::error, kLater,
     "Raise the limit of the address space (ulimit -v), of which a task needs 1 GB and more."},
    {"C605", Severity::warning, 0,
     "Raise the limit of the size of files (ulimit -f), which checkpoints need."},
    {"C606", Severity::error, kLater,
     "Raise the limits of processes and threads (ulimit -u), or those of the container."},
    {"C701", Severity::error, kConfiguration,
     "Mount the folder on this host, or correct its path (COHORT_DATA_DIRS, --data)."},
    {"C702", Severity::error, kConfiguration,
     "Let the user of this task read the folder, or start the task as another user."},
    {"C703", Severity::warning, 0, "Name the same data folders on every worker."},
    {"C704", Severity::warning, 0, "See whether the file system of the folder is mounted."},
};

}  // namespace

std::span<const FindingKind> finding_kinds() { return kKinds; }

Finding finding(const char* code, std::string task, std::string text) {
  const auto* const found =
      std::find_if(std::begin(kKinds), std::end(kKinds),
                   [&](const FindingKind& kind) { return std::string_view(kind.code) == code; });
  COHORT_ASSERT(found != std::end(kKinds));
  return {found, std::move(task), std::move(text)};
}

int exit_code_of(const std::vector<Finding>& findings) {
  const FindingKind* first = nullptr;
  for (const Finding& each : findings) {
    if (each.kind->severity != Severity::error) continue;
    if (first == nullptr || std::string_view(each.kind->code) < first->code) first = each.kind;
  }
  return first == nullptr ? 0 : first->exit_code;
}

}  // namespace cohort::cli
