// SPDX-License-Identifier: Apache-2.0
// For tests only: workers that are threads of this process.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor_split.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/error.h"
#include "cohort/input/per_replica.h"
#include "cohort/replicas/replica_random.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/cpu_devices.h"

namespace cohort::testing {

struct WorkersOptions {
  int replicas = 1;  // of each worker
  Duration timeout = std::chrono::minutes(1);
  bool sends_bfloat16 = false;
  bool shards = false;
  std::int64_t bytes_per_pack = 0;
  bool overlaps = false;
};

// The random numbers of a thread's runs, as if its process had seeded LibTorch's default generator:
// threads share that one.
class SeededThread {
 public:
  explicit SeededThread(std::uint64_t seed) : seed_(seed), scope_(seed_, 0) {}

 private:
  internal::RunSeed seed_;
  internal::ReplicaRandomScope scope_;
};

// Runs `body` on each worker, with a strategy of its own. Returns what each has thrown.
inline std::vector<std::exception_ptr> run_workers(
    int count, const WorkersOptions& options,
    const std::function<void(MultiWorkerMirroredStrategy&)>& body) {
  const InProcessWorkers workers(count);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        MultiWorkerMirroredStrategy strategy(
            workers.group(rank), {.devices = cpu_devices(options.replicas),
                                  .timeout = options.timeout,
                                  .communication = {.bytes_per_pack = options.bytes_per_pack},
                                  .sends_bfloat16_gradients = options.sends_bfloat16,
                                  .shard_optimizer_state = options.shards,
                                  .overlaps_communication = options.overlaps});
        body(strategy);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// The parts of a global batch that the replicas of this worker have.
inline PerReplica<at::Tensor> own_parts(const at::Tensor& whole, SynchronousStrategy& strategy) {
  const auto chunks = at::tensor_split(whole, strategy.num_replicas_in_sync());
  const auto local = static_cast<std::int64_t>(strategy.devices().size());
  const auto first = chunks.begin() + strategy.worker() * local;
  return PerReplica<at::Tensor>({first, first + local});
}

// The message of an error; empty: none.
inline std::string text_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  } catch (...) {
    return "an exception of another type";
  }
}

}  // namespace cohort::testing
