// SPDX-License-Identifier: Apache-2.0
// Random steps that an eager run accepts, and that run.
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
  // The returned values as they are then, or what was thrown. Random numbers are those of a server
  // that runs a program with this seed.
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

// A few of them throw eagerly, all others give finite values.
Program random_program(std::uint64_t seed);

// The mode of the thread that calls the step.
function::TracingMode mode_of(const Program& program);
void set_learning_rate(const World& world, const Call& call);

}  // namespace cohort::parity
