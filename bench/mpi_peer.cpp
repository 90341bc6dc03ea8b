// SPDX-License-Identifier: Apache-2.0
// Open MPI's own MPI_Allreduce of float32, and ours over GroupBackend::mpi, for
// collective_processes_bench, which starts it by mpirun. Process 0 reads lines "WAY BYTES CALLS"
// and answers each with the microseconds of a call.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <mpi.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/collective/mpi_group.h"
#include "cohort/core/bytes.h"

namespace cohort::bench {
namespace {

// way (0: MPI's own, 1: ours), bytes, calls; way -1: the end.
using Request = std::array<std::int64_t, 3>;

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

// Waits in exchange(), which leaves the processors to what is measured in the meantime.
Request next_request(collective::Group& group) {
  ByteWriter out;
  char way[16];
  long long bytes = 0;
  long long calls = 0;
  if (group.rank() == 0 && std::scanf("%15s %lld %lld", way, &bytes, &calls) == 3)
    out.sizes(Request{way[0] == 'c' ? 1 : 0, bytes, calls});
  const auto all = group.exchange(out.take(), "request", Deadline::after(std::chrono::hours(1)));
  if (all.front().empty()) return {-1, 0, 0};
  const std::vector<std::int64_t> numbers = ByteReader(all.front(), "a request").sizes();
  return {numbers.at(0), numbers.at(1), numbers.at(2)};
}

void all_reduce(collective::Group& group, const at::Tensor& tensor, bool is_ours) {
  if (is_ours) return group.all_reduce(tensor, ReduceOp::sum, soon());
  ::MPI_Allreduce(MPI_IN_PLACE, tensor.data_ptr(), static_cast<int>(tensor.numel()), MPI_FLOAT,
                  MPI_SUM, MPI_COMM_WORLD);
}

bool is_sum_right(collective::Group& group, std::int64_t count, bool is_ours) {
  const at::Tensor values = at::arange(count).remainder(1000).to(at::kFloat);
  const at::Tensor mine = values + group.rank();
  all_reduce(group, mine, is_ours);
  return mine.equal(values * group.size() + group.size() * (group.size() - 1) / 2);
}

int serve() {
  const std::shared_ptr<collective::Group> group = collective::mpi_group({}, soon());
  while (true) {
    const auto [way, bytes, calls] = next_request(*group);
    if (way < 0) return 0;
    const at::Tensor tensor = at::zeros({bytes / 4});
    if (!is_sum_right(*group, bytes / 4, way == 1)) return 1;
    // The processes run before the time begins, as those of the benchmark itself.
    for (std::int64_t i = 0; i < calls; ++i) all_reduce(*group, tensor, way == 1);
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < calls; ++i) all_reduce(*group, tensor, way == 1);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (group->rank() != 0) continue;
    std::printf("%f\n", took.count() / static_cast<double>(calls));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace cohort::bench

int main() {
  at::set_num_threads(1);  // as in the benchmark itself
  return cohort::bench::serve();
}
