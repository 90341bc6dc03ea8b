// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/stored_variable.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "cohort/variable/effect_kinds.h"
#include "cohort/variable/row_gradient.h"

namespace cohort::parameter_server {
namespace {

// If more readers than this hold old versions, a new version needs a new allocation.
constexpr std::size_t kSparesMax = 3;

// It refers to the effect.
SlotKey key_of(const StoredVariable::Reserve& reserve) {
  return {*reserve.rule, reserve.effect.optimizer, nullptr, reserve.effect.lazy_rows};
}

}  // namespace

StoredVariable::StoredVariable(std::string name, at::Tensor value)
    : name_(std::move(name)), spec_(TensorSpec::of(value)), state_(std::move(value)) {
  retired_.reserve(kSparesMax);
}

StoredVariable::Version StoredVariable::snapshot() const {
  const Lock lock(mutex_);
  return {state_.value(), version_};
}

at::Tensor StoredVariable::checked_gradient(const Reserve& reserve) const {
  const internal::Effect& effect = reserve.effect;
  at::Tensor gradient = effect.tensors[0];
  if (effect.row_ids.defined())
    gradient = variable::row_gradient(effect.row_ids, gradient, *spec_.sizes);
  {
    const Lock lock(mutex_);
    variable::check_update(*reserve.rule, state_.value(), gradient, effect.hyper, name_);
  }
  return variable::prepared_gradient(key_of(reserve), gradient, effect.hyper);
}

StoredVariable::Reserve StoredVariable::reserve(internal::Effect effect,
                                                const variable::UpdateRule* rule) {
  variable::check_effect(effect, spec_, name_);
  for (at::Tensor& tensor : effect.tensors) tensor = tensor.contiguous();
  Reserve reserve{.effect = std::move(effect), .rule = rule, .spare = {}};
  at::Tensor gradient;
  if (rule != nullptr) gradient = checked_gradient(reserve);
  const Lock lock(mutex_);
  reserve.spare = take_spare();
  if (rule != nullptr)
    reserve.step = state_.reserve(key_of(reserve), gradient, reserve.effect.hyper, name_);
  return reserve;
}

void StoredVariable::apply(Reserve reserve) {
  const internal::Effect& effect = reserve.effect;
  const Lock lock(mutex_);
  at::Tensor next = target(reserve);
  if (reserve.rule != nullptr) {
    state_.apply(key_of(reserve), std::move(reserve.step), next, effect.hyper);
  } else {
    variable::effect_kind(effect.kind)
        .change(next, state_.value(), effect, version_ == effect.version);
  }
  finish(std::move(next), reserve);
}

at::Tensor StoredVariable::target(Reserve& reserve) {
  return state_.value().use_count() > 1 ? std::move(reserve.spare) : state_.value();
}

void StoredVariable::finish(at::Tensor next, Reserve& reserve) {
  ++version_;
  if (reserve.spare.defined()) return keep_spare(std::move(reserve.spare));
  keep_spare(state_.exchange(std::move(next)));
}

at::Tensor StoredVariable::take_spare() {
  for (std::size_t i = 0; i < retired_.size(); ++i) {
    if (retired_[i].use_count() > 1) continue;
    at::Tensor spare = std::move(retired_[i]);
    retired_.erase(retired_.begin() + static_cast<std::ptrdiff_t>(i));
    return spare;
  }
  return at::empty(*spec_.sizes, at::TensorOptions(spec_.dtype));
}

// Keeps at most kSparesMax buffers; others are freed.
void StoredVariable::keep_spare(at::Tensor spare) {
  if (retired_.size() < kSparesMax) retired_.push_back(std::move(spare));
}

}  // namespace cohort::parameter_server
