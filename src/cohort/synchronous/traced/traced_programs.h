// SPDX-License-Identifier: Apache-2.0
// The programs of a step of function() in the replicas of this process: which there are, and when
// another one is traced.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/core/device.h"
#include "cohort/function/function.h"
#include "cohort/replicas/replica_threads.h"
#include "cohort/strategy/strategy_parts.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"

namespace cohort::internal {

// Where steps run: in as many replicas, on these threads. `home` is that of the strategy's
// variables; nullptr: it has none.
struct StepReplicas {
  std::shared_ptr<MirroredHome> home = {};
  ReplicaThreads* threads = nullptr;
  std::size_t count = 1;
};

// The strategy must outlive the last call.
std::shared_ptr<StepPrograms> make_traced_programs(Strategy& strategy, const Function& function,
                                                   const StepReplicas& replicas);

// The function host of a strategy whose replicas have these devices of this process.
class LocalFunctions final : public FunctionHost {
 public:
  LocalFunctions(Strategy& strategy, std::vector<Device> devices, StepReplicas replicas)
      : strategy_(strategy), devices_(std::move(devices)), replicas_(std::move(replicas)) {}
  std::shared_ptr<StepPrograms> programs(const Function& function) override;

 private:
  Strategy& strategy_;
  const std::vector<Device> devices_;
  const StepReplicas replicas_;
};

}  // namespace cohort::internal
