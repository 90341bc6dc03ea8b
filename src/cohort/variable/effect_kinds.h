// SPDX-License-Identifier: Apache-2.0
// The contents of each kind of effect, and its change of a value: one row a kind.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "cohort/core/effect_handler.h"
#include "cohort/core/export.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::variable {

struct EffectKind {
  std::string_view name;  // "assign_add"
  std::size_t num_tensors = 1;
  std::size_t num_hyper = 0;
  enum class RowIds : std::uint8_t { none, needed, possible };
  RowIds row_ids = RowIds::none;
  // Throws invalid_argument, naming the variable, if the effect does not fit a value of this spec.
  // For steps of update rules it checks the row ids; VariableState checks the rest.
  void (*check)(const internal::Effect& effect, const TensorSpec& spec,
                std::string_view variable) = nullptr;
  // Writes the new value into `next`, which is `value` or shares no memory with it. Cannot fail
  // after check(). `is_current`: the value has the version that the sender has read.
  void (*change)(at::Tensor& next, const at::Tensor& value, const internal::Effect& effect,
                 bool is_current) = nullptr;
};

COHORT_API const EffectKind& effect_kind(internal::Effect::Kind kind);
inline bool is_scatter(internal::Effect::Kind kind) {
  return effect_kind(kind).row_ids == EffectKind::RowIds::needed;
}
// "variable.scatter_add", for messages.
COHORT_API std::string call_name(internal::Effect::Kind kind);

// Changes a value of this process by an effect that check() has passed. Its tensors may be views of
// the value. Called without gradients.
COHORT_API void change_in_place(const at::Tensor& value, internal::Effect effect);

// Checks what does not depend on the value: numbers of tensors and hyperparameters, row ids; then
// calls check(). Throws invalid_argument.
COHORT_API void check_effect(const internal::Effect& effect, const TensorSpec& spec,
                             std::string_view variable);

}  // namespace cohort::variable
