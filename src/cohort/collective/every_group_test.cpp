// SPDX-License-Identifier: Apache-2.0
// The groups with which tests of every backend run.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/collective/backends/shared_memory/member.h"
#include "cohort/collective/backends/tcp/member.h"
#include "cohort/collective/formation/on_backend.h"
#include "cohort/collective/group.h"
#include "cohort/collective/groups/every_group_fixture.h"
#include "cohort/collective/groups/exchange_only_group.h"
#include "cohort/testing/mpi_job.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/paired_links.h"

namespace cohort::testing::every_group {
namespace {

Groups in_process(int size) {
  const InProcessWorkers workers(size);
  Groups groups;
  for (int rank = 0; rank < size; ++rank) groups.push_back(workers.group(rank));
  return groups;
}

Groups exchange_only(int size) {
  Groups groups = in_process(size);
  for (std::shared_ptr<collective::Group>& group : groups)
    group = std::make_shared<collective::ExchangeOnlyGroup>(group);
  return groups;
}

Groups shared_memory(int size) {
  const auto sockets = std::make_shared<PairedSockets>(size);
  return on_workers<std::shared_ptr<collective::Group>>(size, [&](int rank) {
    return collective::shared_memory::join(std::make_shared<PairedLinks>(sockets, rank),
                                           Deadline::after(std::chrono::seconds(60)));
  });
}

Groups connected(int size, const MakePair& make_pair) {
  const auto sockets = std::make_shared<PairedSockets>(size, make_pair);
  Groups groups;
  for (int rank = 0; rank < size; ++rank)
    groups.push_back(collective::tcp::join(std::make_shared<PairedLinks>(sockets, rank)));
  return groups;
}

Groups over_tcp(int size) {
  return connected(size, [](int, int, int) { return tcp_pair(); });
}

// Sockets with little memory, so that most system calls move a part of a frame.
Groups over_unix_sockets(int size) {
  return connected(size, [](int, int, int) { return unix_pair(); });
}

// The group that GroupBackend::automatic makes for members on the first of these hosts.
std::function<Groups(int)> on_hosts(const std::string& hosts) {
  return [hosts](int size) {
    const auto sockets =
        std::make_shared<PairedSockets>(size, [](int, int, int) { return tcp_pair(); });
    std::vector<std::string> names;
    for (const char host : hosts.substr(0, static_cast<std::size_t>(size)))
      names.emplace_back(1, host);
    return on_workers<std::shared_ptr<collective::Group>>(size, [&](int rank) {
      return collective::formation::on_backend(std::make_shared<PairedLinks>(sockets, rank, names),
                                               GroupBackend::automatic,
                                               Deadline::after(std::chrono::seconds(60)));
    });
  };
}

// Only this process's member is here; so tests use the others only by on_members().
Groups over_mpi(int size) {
  Groups groups(static_cast<std::size_t>(size));
  groups[static_cast<std::size_t>(MpiJob::get().rank())] = MpiJob::group();
  return groups;
}

}  // namespace

const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = {{"in_process", in_process},
                                           {"exchange_only", exchange_only},
                                           {"shared_memory", shared_memory},
                                           {"tcp", over_tcp},
                                           {"unix_sockets", over_unix_sockets},
                                           {"hosts_AABBCCD", on_hosts("AABBCCD")},
                                           {"hosts_AABCDDD", on_hosts("AABCDDD")},
                                           {"hosts_ABBBAAA", on_hosts("ABBBAAA")},
                                           {"hosts_ABABABA", on_hosts("ABABABA")}};
  return all;
}

const std::vector<Backend>& mpi_backends() {
  static const std::vector<Backend> all(MpiJob::size() > 0 ? 1 : 0, {"mpi", over_mpi});
  return all;
}

}  // namespace cohort::testing::every_group
