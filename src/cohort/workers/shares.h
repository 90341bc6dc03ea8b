// SPDX-License-Identifier: Apache-2.0
// How the elements of tensors are divided among workers, and travel between them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cohort/variable/variable_state.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort::internal {

// The elements of a tensor that belong to a worker: as many as to each other one, or one more. They
// depend on nothing else, so a variable's slots stay where they are, whatever a step updates.
ElementRange share_of(std::int64_t elements, int worker, int workers);

// All workers bring tensors of the same sizes, of float32 and float64, row-major and on the CPU.
// Each tensor becomes this worker's share of the sum over all workers, with the bits that
// all_reduce() has. `header`, which may be undefined, has integers whose sums each worker gets in
// place; the first `wide` of them are any numbers (which wrap), the others have sums below 2^24.
// They travel with the tensors, in one call for each dtype.
void sum_shares(StrategyWorkers& workers, const WorkerRequest& request, const at::Tensor& header,
                std::size_t wide, std::vector<at::Tensor>& tensors);

// The new values of shares, and where they go. Used only from the thread that makes a step.
class SharesToGather {
 public:
  // `elements`: of each tensor, all of this type.
  SharesToGather(at::ScalarType type, std::vector<std::int64_t> elements,
                 const StrategyWorkers& workers);
  // This worker's share of tensor i, to be filled.
  at::Tensor own(std::size_t i) const { return elements_of(flat_, own_[i]); }
  // Sends them. All workers make this call.
  void gather(StrategyWorkers& workers, const WorkerRequest& request);
  // Writes the whole value of tensor i, after gather(). `target` is row-major, on any device.
  void write(std::size_t i, const at::Tensor& target) const;

 private:
  std::vector<std::int64_t> elements_;
  const int count_;
  at::Tensor flat_;                            // the own shares, one after the other
  std::vector<ElementRange> own_;              // where they are in it
  at::Tensor gathered_;                        // those of all workers
  std::vector<std::vector<std::int64_t>> of_;  // of each worker and tensor, where its share begins
};

}  // namespace cohort::internal
