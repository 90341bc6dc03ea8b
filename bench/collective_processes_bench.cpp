// SPDX-License-Identifier: Apache-2.0
// An all_reduce of float32 between processes of this machine, checked first.
//
//   collective_processes_bench [BACKEND [PROCESSES [ROUNDS]]]
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/collective/backends/shared_memory/join.h"
#include "cohort/testing/forked_links.h"

namespace cohort::bench {
namespace {

using collective::Group;
using collective::Links;

struct Backend {
  std::string name;
  std::function<std::shared_ptr<Group>(std::shared_ptr<Links>)> join;
};
const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = {
      {"shared_memory",
       [](std::shared_ptr<Links> links) { return collective::shared_memory::join(links); }},
  };
  return all;
}

constexpr std::int64_t kSizes[] = {8,         256,     1 << 10, 4 << 10,  16 << 10, 64 << 10,
                                   256 << 10, 1 << 20, 4 << 20, 16 << 20, 100 << 20};

Deadline late() { return Deadline::after(std::chrono::seconds(60)); }

bool is_sum_right(Group& group, std::int64_t count) {
  const at::Tensor mine = at::arange(count).remainder(1000).to(at::kFloat).add(group.rank());
  const at::Tensor expected = at::arange(count).remainder(1000).to(at::kFloat);
  const int size = group.size();
  group.all_reduce(mine, ReduceOp::sum, late());
  return at::equal(mine, expected.mul(size).add(size * (size - 1) / 2));
}

// Microseconds of a call in each round, the least first.
std::vector<double> measure(Group& group, std::int64_t bytes, int rounds) {
  const at::Tensor tensor = at::zeros({bytes / 4});
  const std::int64_t calls = std::clamp<std::int64_t>((64 << 20) / (bytes + 2000), 3, 20'000);
  std::vector<double> figures;
  for (int round = 0; round <= rounds; ++round) {
    group.barrier(late());
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < calls; ++i) group.all_reduce(tensor, ReduceOp::sum, late());
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    if (round > 0) figures.push_back(time.count() / static_cast<double>(calls));
  }
  std::sort(figures.begin(), figures.end());
  return figures;
}

int run(const Backend& backend, testing::ForkedSockets& sockets, int rank, int rounds) {
  try {
    const auto group = backend.join(std::make_shared<testing::ForkedLinks>(sockets, rank));
    for (const std::int64_t bytes : kSizes) {
      if (!is_sum_right(*group, bytes / 4)) {
        std::fprintf(stderr, "%s: wrong sum of %lld bytes\n", backend.name.c_str(),
                     static_cast<long long>(bytes));
        return 1;
      }
      const std::vector<double> figures = measure(*group, bytes, rounds);
      if (rank == 0)
        std::printf("%s, %d processes, %9lld bytes: fastest %10.2f us, median %10.2f us\n",
                    backend.name.c_str(), group->size(), static_cast<long long>(bytes),
                    figures.front(), figures[figures.size() / 2]);
      std::fflush(stdout);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "member %d: %s\n", rank, error.what());
    return 1;
  }
}

int run_all(const Backend& backend, int size, int rounds) {
  testing::ForkedSockets sockets(size);
  for (int rank = 1; rank < size; ++rank) {
    if (::fork() == 0) ::_exit(run(backend, sockets, rank, rounds));
  }
  int result = run(backend, sockets, 0, rounds);
  for (int rank = 1; rank < size; ++rank) {
    int status = 0;
    ::wait(&status);
    if (status != 0) result = 1;
  }
  return result;
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  const int rounds = std::max(5, argc > 3 ? std::atoi(argv[3]) : 5);
  int result = 0;
  for (const auto& backend : cohort::bench::backends()) {
    if (!wanted.empty() && backend.name != wanted) continue;
    for (const int size : {2, 4}) {
      if (argc > 2 && std::atoi(argv[2]) != size) continue;
      result |= cohort::bench::run_all(backend, size, rounds);
    }
  }
  return result;
}
