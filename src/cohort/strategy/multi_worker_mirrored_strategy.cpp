// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cohort/collective/group.h"
#include "cohort/core/error.h"
#include "cohort/input/detail/input_host.h"
#include "cohort/strategy/internal/mirrored_home.h"
#include "cohort/strategy/synchronous_strategy.h"

namespace cohort {
namespace {

constexpr std::string_view kName = "multi_worker_mirrored";

std::shared_ptr<collective::Group> checked(std::shared_ptr<collective::Group> group) {
  COHORT_CHECK(group != nullptr, ErrorCode::invalid_argument, "[strategy.", kName,
               "] expected a group of workers, got none");
  return group;
}

}  // namespace

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(std::shared_ptr<collective::Group> group,
                                                         const MultiWorkerMirroredOptions& options)
    : SynchronousStrategy({.strategy = std::string(kName),
                           .group = checked(std::move(group)),
                           .timeout = options.timeout},
                          options.devices, internal::VariableKind::mirrored) {}

// Throws this error for any list of devices, before all other errors.
MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(const ClusterResolver&,
                                                         const MultiWorkerMirroredOptions&)
    : SynchronousStrategy({.strategy = std::string(kName)}, {"CPU:0"},
                          internal::VariableKind::mirrored) {
  internal::throw_error(
      ErrorCode::unimplemented, "[strategy.", kName,
      "] workers in separate processes need a Group that connects processes, which does not exist "
      "yet; use InProcessWorkers, or MirroredStrategy on one machine");
}

}  // namespace cohort
