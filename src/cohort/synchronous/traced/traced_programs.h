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
#include "cohort/strategy/strategy.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"

namespace cohort::internal {

// Where steps run: in as many replicas as `home` has, on these threads. `home` is that of the
// strategy's variables; nullptr: it has none, and one replica.
struct StepReplicas {
  std::shared_ptr<MirroredHome> home = {};
  ReplicaThreads* threads = nullptr;
};

// The programs of one step of function(). Thread-safe.
class StepPrograms {
 public:
  virtual ~StepPrograms() = default;
  // The results of each local replica, for its arguments.
  virtual std::vector<Nest> call(std::vector<std::vector<Nest>> arguments) = 0;
  virtual std::size_t traces() const = 0;
};

// Makes them, for a strategy whose replicas have these devices of this process. Thread-safe.
class FunctionHost {
 public:
  FunctionHost(Strategy& strategy, std::vector<Device> devices, StepReplicas replicas)
      : strategy_(strategy), devices_(std::move(devices)), replicas_(std::move(replicas)) {}
  // Throws unimplemented where steps cannot run as programs. The strategy must outlive the last
  // call of the programs.
  std::shared_ptr<StepPrograms> programs(const Function& function);

 private:
  Strategy& strategy_;
  const std::vector<Device> devices_;
  const StepReplicas replicas_;
};

}  // namespace cohort::internal
