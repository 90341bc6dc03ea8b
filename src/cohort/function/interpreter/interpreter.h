// SPDX-License-Identifier: Apache-2.0
// Walks a plan: pushes arguments to a stack, calls the kernel, keeps the results in registers.
#pragma once

#include "cohort/function/interpreter/plan.h"
#include "cohort/function/prepared_program.h"

namespace cohort::function {

// Thread-safe: everything that changes belongs to one call of run().
class Interpreter final : public PreparedProgram {
 public:
  explicit Interpreter(Plan plan) : plan_(std::move(plan)) {}

  const ProgramInfo& info() const override { return plan_.info; }
  const std::string& identity() const override { return plan_.identity; }
  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs,
                              std::span<const at::Tensor> variables, internal::EffectHandler& host,
                              std::optional<std::uint64_t> seed) const override;

 private:
  Plan plan_;
};

}  // namespace cohort::function
