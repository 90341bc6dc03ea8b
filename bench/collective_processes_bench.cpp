// SPDX-License-Identifier: Apache-2.0
// An all_reduce of float32 between processes of this machine, by each of our backends, by Gloo as
// c10d uses it, and by Open MPI, in turn. The sums are checked first. With 2 and with 4 processes,
// which the program forks, or for MPI mpirun starts; all make the same calls. The hierarchical
// backend takes 4 processes for those of two hosts, and sends half of the bytes of tcp between
// them.
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/gloo_peer.h"
#include "bench/python_peer.h"
#include "bench/report.h"
#include "cohort/collective/backends/hierarchical/member.h"
#include "cohort/collective/backends/shared_memory/member.h"
#include "cohort/collective/backends/tcp/member.h"
#include "cohort/testing/forked_links.h"

namespace cohort::bench {
namespace {

using collective::Group;

struct Size {
  std::string name;
  std::int64_t bytes;
};
const std::vector<Size> kSizes = {{"8 B", 8},         {"1 KiB", 1 << 10}, {"64 KiB", 64 << 10},
                                  {"1 MiB", 1 << 20}, {"4 MiB", 4 << 20}, {"100 MiB", 100 << 20}};

Deadline late() { return Deadline::after(std::chrono::seconds(60)); }

// One way to sum a tensor over all processes.
struct Way {
  std::string name;
  std::function<void(const at::Tensor&)> all_reduce;
};

bool is_sum_right(const Way& way, int rank, int size, std::int64_t count) {
  const at::Tensor mine = at::arange(count).remainder(1000).to(at::kFloat).add(rank);
  const at::Tensor expected = at::arange(count).remainder(1000).to(at::kFloat);
  way.all_reduce(mine);
  return at::equal(mine, expected.mul(size).add(size * (size - 1) / 2));
}

// A way of processes that mpirun has started. `job`: of process 0 alone; the others wait for it.
struct MpiWay {
  std::string name;
  std::string request;
  std::shared_ptr<PythonPeer> job;
};

std::vector<MpiWay> mpi_ways([[maybe_unused]] int rank, [[maybe_unused]] int size) {
  std::vector<MpiWay> ways;
#ifdef MPI_PEER
  for (const std::string carrier : {"vader", "tcp"}) {
    std::shared_ptr<PythonPeer> job;
    if (rank == 0) {
      job = std::make_shared<PythonPeer>(std::vector<std::string>{
          "/usr/bin/env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
          "OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_hwloc_base_binding_policy=none",
          "OMPI_MCA_btl=self," + carrier, MPIRUN, "-n", std::to_string(size), MPI_PEER});
    }
    const std::string over = carrier == "tcp" ? " over TCP" : "";
    ways.push_back({"Open MPI" + over, "open_mpi ", job});
    ways.push_back({"mpi" + over, "cohort ", job});
  }
#endif
  return ways;
}

Contender contender_of(const MpiWay& way, Group& group, const Size& size, std::int64_t calls) {
  return {way.name, [&way, &group, &size, calls] {
            group.barrier(late());
            if (!way.job) return 0.0;
            return way.job->measure(way.request + std::to_string(size.bytes) + " " +
                                    std::to_string(calls));
          }};
}

void compare(const Bench& bench, const std::vector<Way>& ways, const std::vector<MpiWay>& mpi,
             Group& group, const Size& size) {
  const std::string title =
      "all_reduce of " + std::to_string(group.size()) + " processes: " + size.name;
  if (!bench.wants(title)) return;
  const std::int64_t calls = std::clamp<std::int64_t>((32 << 20) / (size.bytes + 4000), 3, 4'000);
  const at::Tensor tensor = at::zeros({size.bytes / 4});
  std::vector<Contender> contenders;
  for (const Way& way : ways) {
    require(is_sum_right(way, group.rank(), group.size(), size.bytes / 4), way.name);
    contenders.push_back({way.name, [&] {
                            group.barrier(late());
                            // As with MPI, the processes run before the time begins.
                            for (std::int64_t i = 0; i < calls; ++i) way.all_reduce(tensor);
                            const double seconds = seconds_of([&] {
                              for (std::int64_t i = 0; i < calls; ++i) way.all_reduce(tensor);
                            });
                            return 1e6 * seconds / static_cast<double>(calls);
                          }});
  }
  for (const MpiWay& way : mpi) contenders.push_back(contender_of(way, group, size, calls));
  bench.compare(title, {.unit = "us"}, contenders);
}

struct Sockets {
  explicit Sockets(int size) : shared_memory(size), tcp(size), hierarchical(size) {}
  testing::ForkedSockets shared_memory;
  testing::ForkedSockets tcp;
  testing::ForkedSockets hierarchical;
};

Way way_of(const std::string& name, const std::shared_ptr<Group>& group) {
  return {name,
          [group](const at::Tensor& tensor) { group->all_reduce(tensor, ReduceOp::sum, late()); }};
}

void run(const Bench& bench, Sockets& sockets, int rank, int size,
         [[maybe_unused]] const std::string& store) {  // for Gloo
  using testing::ForkedLinks;
  const auto shared_memory = std::make_shared<collective::shared_memory::Member>(
      std::make_shared<collective::shared_memory::Memory>(
          std::make_shared<ForkedLinks>(sockets.shared_memory, rank)));
  const auto tcp = collective::tcp::join(std::make_shared<ForkedLinks>(sockets.tcp, rank));
  std::vector<Way> ways = {way_of("shared_memory", shared_memory), way_of("tcp", tcp)};
  if (size == 4) {
    const std::vector<std::string> hosts = {"a", "a", "b", "b"};
    ways.push_back(
        way_of("hierarchical",
               collective::hierarchical::join(
                   std::make_shared<ForkedLinks>(sockets.hierarchical, rank, hosts), late())));
  }
#ifdef COHORT_BENCH_HAS_GLOO
  const auto gloo = gloo_group(store, rank, size);
  ways.push_back({"c10d on Gloo", [gloo](const at::Tensor& tensor) {
                    std::vector<at::Tensor> tensors{tensor};
                    gloo->allreduce(tensors)->wait();
                  }});
#endif
  const std::vector<MpiWay> mpi = mpi_ways(rank, size);
  for (const Size& each : kSizes) compare(bench, ways, mpi, *shared_memory, each);
}

void run_processes(const Bench& bench, int size) {
  Sockets sockets(size);
  const std::string store = std::filesystem::temp_directory_path() /
                            ("cohort_processes_bench_" + std::to_string(::getpid()));
  std::fflush(stdout);
  for (int rank = 1; rank < size; ++rank) {
    if (::fork() != 0) continue;
    if (std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(1);
    run(bench, sockets, rank, size, store);
    ::_exit(0);
  }
  run(bench, sockets, 0, size, store);
  for (int rank = 1; rank < size; ++rank) ::wait(nullptr);
  std::filesystem::remove(store);
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  at::set_num_threads(1);  // a forked process has no threads but its first one
  const cohort::bench::Bench bench(argc, argv);
  for (const int size : {2, 4}) cohort::bench::run_processes(bench, size);
  return 0;
}
