// SPDX-License-Identifier: Apache-2.0
// One process of an MPI job; see mpi_job_test. mpi_worker WAY
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <mpi.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cohort/cohort.h"

namespace cohort {
namespace {

MultiWorkerMirroredOptions options(int timeout = 60) {
  return {.timeout = std::chrono::seconds(timeout), .backend = GroupBackend::mpi};
}

void train(MultiWorkerMirroredStrategy& strategy) {
  const Variable sum = strategy.variable("sum", at::zeros({3}));
  const at::Tensor mine = at::full({3}, strategy.worker() + 1);
  strategy.run(
      [&] { sum.assign(get_replica_context()->all_reduce(ReduceOp::sum, mine.to(at::kFloat))); });
  std::printf("worker %d of %d: %g\n", strategy.worker(), strategy.num_workers(),
              sum.read().sum().item<double>());
  std::fflush(stdout);
}

// MPI is the program's, which also uses it itself.
void train_in_own_mpi(int level) {
  int provided = 0;
  ::MPI_Init_thread(nullptr, nullptr, level, &provided);
  {
    MultiWorkerMirroredStrategy strategy(options());
    train(strategy);
  }
  int rank = 1;
  int sum = 0;
  ::MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  ::MPI_Finalize();
  std::printf("own sum %d\n", sum);
}

int work(const Arguments& arguments) {
  const std::string& way = arguments.values.at(0);
  if (way == "own") return train_in_own_mpi(MPI_THREAD_MULTIPLE), 0;
  if (way == "single") return train_in_own_mpi(MPI_THREAD_SINGLE), 0;
  MultiWorkerMirroredStrategy strategy(options(way == "stop" ? 5 : 60));
  if (way == "rebuild") strategy.rebuild();
  train(strategy);
  if (way == "twice") {
    MultiWorkerMirroredStrategy second(options());
    train(second);
    train(strategy);
  }
  if (way == "loss") {
    // Without a word, as a process that is killed.
    if (strategy.worker() == 1) std::_Exit(3);
    train(strategy);
  }
  if (way == "stop") {
    if (strategy.worker() == 1) std::raise(SIGSTOP);
    train(strategy);
  }
  if (way == "throws" && strategy.worker() == 1)
    internal::throw_error(ErrorCode::data_loss, "[test.worker] a mistake of one worker");
  if (way == "throws") train(strategy);
  return 0;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) { return cohort::run_main(argc, argv, cohort::work); }
