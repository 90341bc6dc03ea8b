// SPDX-License-Identifier: Apache-2.0
// Generates random steps, and runs them eagerly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cohort/function/tracing_mode.h"
#include "tests/parity/step_fuzz/features.h"
#include "tests/parity/step_fuzz/program.h"
#include "tests/parity/step_fuzz/step.h"

namespace cohort::parity {

// The step on variables of this process. Used from one thread.
class EagerSide {
 public:
  explicit EagerSide(const Program& program);
  // Copies of the returned values, or the error. Random numbers are those of a server that runs a
  // program with this seed.
  struct Outcome {
    Tensors outputs;
    std::optional<std::string> error;
    int position = -1;  // the instruction that threw
  };
  Outcome call(const Call& call, std::uint64_t seed, const SeeResults& see = {});
  const World& world() const { return world_; }
  const FeatureSet& features() const { return features_; }

 private:
  const Program& program_;
  const World world_;
  const Tensors elements_;
  std::int64_t drawn_ = 0;
  FeatureSet features_;
};

// A few programs throw eagerly; all others yield finite values.
Program random_program(std::uint64_t seed);

// The mode of the thread that schedules the step.
function::TracingMode mode_of(const Program& program);
void set_learning_rate(const World& world, const Call& call);

}  // namespace cohort::parity
