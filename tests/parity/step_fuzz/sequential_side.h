// SPDX-License-Identifier: Apache-2.0
// The reference for steps of several replicas, which uses nothing of strategies: the replicas run
// one at a time, each with variables of its own, and take turns where they meet.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tests/parity/step_fuzz/program.h"
#include "tests/parity/step_fuzz/step.h"

namespace cohort::parity {

// Used from one thread.
class SequentialSide {
 public:
  SequentialSide(const Program& program, int replicas);

  struct Outcome {
    std::vector<Tensors> outputs;  // of each replica, copied
    std::optional<std::string> error;
  };
  // `arguments`: of each replica. Random numbers are those of run() after the default generator was
  // seeded with `seed`.
  Outcome call(const Call& call, std::vector<StepArguments> arguments, std::uint64_t seed);
  // The values of each variable and then of each buffer, in all replicas.
  Tensors values() const;

 private:
  const Program& program_;
  const std::vector<World> worlds_;
};

}  // namespace cohort::parity
