// SPDX-License-Identifier: Apache-2.0
// Makes the effects of a push, and tells what an assigning one does.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/error.h"
#include "cohort/rpc/messages.h"

namespace cohort::rpc {

// Neither sets the variable.
inline Effect assign_effect(cohort::internal::AssignKind kind, at::Tensor value) {
  using cohort::internal::AssignKind;
  Effect effect{.kind = Effect::Kind::assign};
  if (kind == AssignKind::add) effect.kind = Effect::Kind::assign_add;
  if (kind == AssignKind::sub) effect.kind = Effect::Kind::assign_sub;
  effect.tensors.push_back(std::move(value));
  return effect;
}
inline Effect apply_effect(const cohort::internal::SlotOwner& owner, std::vector<double> hyper,
                           at::Tensor gradient) {
  Effect effect{.kind = Effect::Kind::apply,
                .rule = std::string(owner.rule),
                .optimizer = std::string(owner.optimizer),
                .hyper = std::move(hyper)};
  effect.tensors.push_back(std::move(gradient));
  return effect;
}

// `kind` must be one of the assigning ones.
inline cohort::internal::AssignKind assign_kind(Effect::Kind kind) {
  using cohort::internal::AssignKind;
  if (kind == Effect::Kind::assign_add) return AssignKind::add;
  if (kind == Effect::Kind::assign_sub) return AssignKind::sub;
  COHORT_ASSERT(kind == Effect::Kind::assign);
  return AssignKind::assign;
}

}  // namespace cohort::rpc
