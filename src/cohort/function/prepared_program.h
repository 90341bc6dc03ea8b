// SPDX-License-Identifier: Apache-2.0
// A traced function ready to run in a process that has never seen its source.
//
//   // Verifies the allow-list, the schemas, and that every value is defined.
//   auto program = PreparedProgram::decode(bytes);
//   auto outputs = program->run(inputs, variables, host, seed);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/effect_handler.h"
#include "cohort/core/export.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::function {

// The interface of a program.
struct ProgramInfo {
  struct Variable {
    std::string name;
    TensorSpec spec;
    bool is_read = true;      // pull its value before running
    bool is_updated = false;  // some effect op updates it
    bool is_handle_only = false;
    bool is_merged = false;  // an effect needs to know which version was pulled
  };
  // One draw: a resource argument or kWorkerIndexResource, and the specs it was traced with.
  struct Draw {
    std::int64_t resource;
    std::vector<TensorSpec> fields;
  };
  std::vector<TensorSpec> inputs;
  std::vector<Variable> variables;
  std::vector<Draw> draws;  // in order; they precede every other op
  std::size_t output_count = 0;
  std::size_t op_count = 0;
  bool is_random = false;
};

// Immutable and thread-safe: several threads may run one program at once.
class COHORT_API PreparedProgram {
 public:
  virtual ~PreparedProgram() = default;

  // Throws data_loss for broken bytes, unimplemented for an op this server does not have or allow
  // (named, with both LibTorch versions). Sizes are checked before anything is allocated.
  static std::shared_ptr<const PreparedProgram> decode(std::span<const std::byte> bytes);

  virtual const ProgramInfo& info() const = 0;
  // 128-bit identity of the bytes, as 32 hexadecimal digits.
  virtual const std::string& identity() const = 0;

  // `inputs` and `variables` in info()'s order; a handle-only or unread variable may be undefined.
  // Wrong counts, dtypes or sizes are invalid_argument. Outputs never alias inputs or variables.
  // In-place ops on a variable's register write the given tensor: give a private copy where that
  // matters. `seed` feeds the random ops, when there are any; without one they draw from LibTorch's
  // default generator, as the eager function does.
  virtual std::vector<at::Tensor> run(std::span<const at::Tensor> inputs,
                                      std::span<const at::Tensor> variables,
                                      internal::EffectHandler& host,
                                      std::optional<std::uint64_t> seed) const = 0;
};

// 128 bits of SHA-256, as 32 hexadecimal digits.
COHORT_API std::string identity_of(std::span<const std::byte> bytes);

}  // namespace cohort::function
