// SPDX-License-Identifier: Apache-2.0
// Random steps on a real cluster, compared with their eager runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/core/mutex.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "tests/parity/step_fuzz/generator.h"

namespace cohort::parity {

// The result of comparing the two runs of a program. A value type.
struct Verdict {
  enum class Kind : std::uint8_t {
    equal,
    refused,         // the trace throws an error with a reason
    eager_throws,    // both runs throw
    differs,         // the traced run has a wrong result
    fails,           // the traced run throws an error that is no refusal; the eager run does not
    accepts_errors,  // only the eager run throws
    warns,           // the log warns of a tensor that leaves the step, though none does
  };
  Kind kind = Kind::equal;
  std::string text;  // the difference, or the error
  FeatureSet features;

  bool is_failure() const { return kind >= Kind::differs; }
};

// One coordinator for many programs. Used from one thread.
class ClusterSide {
 public:
  ClusterSide();
  ~ClusterSide();
  ClusterSide(const ClusterSide&) = delete;
  ClusterSide& operator=(const ClusterSide&) = delete;

  Verdict compare(const Program& program);
  std::uint64_t traces() const;

 private:
  class Comparison;
  struct Cluster {
    testing::TestCluster tasks;
    ParameterServerStrategy strategy;
    ClusterCoordinator coordinator;
    std::uint64_t next_closure = 1;  // the coordinator's next closure id

    Cluster();
  };

  // Log lines that no program should cause. The library's threads write them.
  struct Warnings {
    Mutex mutex;
    std::string escapes COHORT_GUARDED_BY(mutex);

    std::string take();
  };

  Warnings warnings_;
  std::unique_ptr<Cluster> cluster_;
  std::uint64_t programs_ = 0;
};

// Removes instructions, calls and outputs as long as the program fails in the same way.
Program shrunk(ClusterSide& side, Program program, Verdict& verdict);

}  // namespace cohort::parity
