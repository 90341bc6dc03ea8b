// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/stored_variable.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/kept_memory.h"
#include "cohort/parameter_server/store/table_slots.h"
#include "cohort/parameter_server/store/variable_cut.h"
#include "cohort/rpc/pooled_tensor.h"
#include "cohort/variable/effect_kinds.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/variable/rows.h"

namespace cohort::parameter_server {
namespace {

// If more readers than this hold old versions, a new version needs a new allocation.
constexpr std::size_t kSparesMax = 3;

// Clients send each row once, in ascending order, and then the rows need not be summed here.
at::Tensor gradient_of_rows(const internal::Effect& effect, at::IntArrayRef sizes) {
  const at::Tensor ids = effect.row_ids.to(at::kLong).contiguous();
  return variable::are_summed(ids) ? variable::summed_row_gradient(ids, effect.tensors[0], sizes)
                                   : variable::row_gradient(ids, effect.tensors[0], sizes);
}

// It refers to the effect.
SlotKey key_of(const StoredVariable::Reserve& reserve) {
  return {*reserve.rule, reserve.effect.optimizer, nullptr, reserve.effect.lazy_rows};
}

}  // namespace

StoredVariable::StoredVariable(std::string name, at::Tensor value, std::size_t hot_rows)
    : name_(std::move(name)),
      spec_(TensorSpec::of(value)),
      statistics_(hot_rows),
      state_(std::move(value)) {
  retired_.reserve(kSparesMax);
}

StoredVariable::~StoredVariable() = default;

StoredVariable::Version StoredVariable::snapshot() const {
  const ExportLock lock(mutex_);
  return {state_.value(), version_};
}

StoredVariable::Version StoredVariable::rows(const at::Tensor& ids) const {
  variable::check_indices("server.pull", name_, spec_, ids);
  const at::Tensor index = ids.to(at::kLong).contiguous();
  std::vector<std::int64_t> sizes = *spec_.sizes;
  sizes.front() = index.numel();
  const at::Tensor rows = rpc::pooled_tensor(sizes, spec_.dtype);
  const ExportLock lock(mutex_);
  variable::copy_rows(rows, state_.value(), index);
  return {rows, version_};
}

void StoredVariable::check_range(const rpc::StateRange& range) const {
  if (range.is_whole() && range.first_row == 0) return;
  const bool is_part = !spec_.sizes->empty() && range.first_row >= 0 && range.rows > 0 &&
                       range.first_row <= spec_.sizes->front() - range.rows;
  COHORT_CHECK(is_part, ErrorCode::invalid_argument, "[server.state] expected rows of variable '",
               name_, "' ", spec_.to_string(), ", got ", range.rows, " from row ", range.first_row);
}

rpc::StateOfRange StoredVariable::export_state(const rpc::StateRange& range, bool has_slots) const {
  check_range(range);
  const bool is_whole = range.is_whole();
  const auto rows_of = [&](const at::Tensor& tensor) {
    const bool has_rows = !is_whole && tensor.dim() > 0;
    return has_rows ? tensor.narrow(0, range.first_row, range.rows).clone() : tensor;
  };
  const ExportLock lock(mutex_);
  rpc::StateOfRange state{.range = range, .version = version_, .value = rows_of(state_.value())};
  if (!has_slots) return state;
  state.slots = state_.all_slots(name_);
  for (internal::OptimizerSlots& slots : state.slots) {
    for (at::Tensor& tensor : slots.tensors)
      tensor = is_whole || tensor.dim() == 0 ? tensor.clone() : rows_of(tensor);
  }
  return state;
}

void StoredVariable::check_import(const rpc::StateOfRange& state) const {
  check_range(state.range);
  TensorSpec expected = spec_;
  if (!state.range.is_whole()) expected.sizes->front() = state.range.rows;
  COHORT_CHECK(TensorSpec::of(state.value) == expected, ErrorCode::invalid_argument,
               "[server.import_state] expected values of ", expected.to_string(), " for variable '",
               name_, "', got ", TensorSpec::of(state.value).to_string());
  check_imported_slots(state.slots, state.value, "variable '" + name_ + "'");
}

StoredVariable::Import StoredVariable::prepare_import(rpc::StateOfRange state) {
  check_import(state);
  const ExportLock lock(mutex_);
  VariableState::Slots slots = state_.slots_for(state.slots, state.range.is_whole());
  return {.state = std::move(state), .spare = take_spare(), .slots = std::move(slots)};
}

void StoredVariable::import_state(Import import) {
  const at::Tensor& value = import.state.value;
  const std::int64_t first_row = import.state.range.first_row;
  const bool is_whole = import.state.range.is_whole();
  const ExportLock lock(mutex_);
  at::Tensor next = target(import.spare);
  if (is_whole) {
    next.copy_(value);
  } else {
    if (!next.is_same(state_.value())) next.copy_(state_.value());
    next.narrow(0, first_row, value.size(0)).copy_(value);
  }
  finish(std::move(next), std::move(import.spare));
  state_.import_slots(std::move(import.slots), import.state.slots, first_row);
}

at::Tensor StoredVariable::checked_gradient(const Reserve& reserve) const {
  const internal::Effect& effect = reserve.effect;
  at::Tensor gradient = effect.tensors[0];
  if (effect.row_ids.defined()) gradient = gradient_of_rows(effect, *spec_.sizes);
  {
    const ExportLock lock(mutex_);
    variable::check_update(*reserve.rule, state_.value(), gradient, effect.hyper, name_);
  }
  return variable::prepared_gradient(key_of(reserve), gradient, effect.hyper);
}

StoredVariable::Reserve StoredVariable::reserve(internal::Effect effect,
                                                const variable::UpdateRule* rule) {
  variable::check_effect(effect, spec_, name_);
  for (at::Tensor& tensor : effect.tensors) tensor = tensor.contiguous();
  Reserve reserve{.effect = std::move(effect), .rule = rule, .spare = {}};
  const internal::Effect& own = reserve.effect;
  const bool are_rows = rule != nullptr && is_of_rows_alone(reserve);
  at::Tensor gradient;
  if (rule != nullptr && !are_rows) gradient = checked_gradient(reserve);
  const ExportLock lock(mutex_);
  reserve.spare = take_spare();
  if (are_rows) {
    reserve.step =
        state_.reserve_rows(key_of(reserve), own.row_ids, own.tensors[0], own.hyper, name_);
  } else if (rule != nullptr) {
    reserve.step = state_.reserve(key_of(reserve), gradient, own.hyper, name_);
  }
  return reserve;
}

// Most pushes of rows are, and a sparse tensor takes longer to make than hundreds of rows to
// update. check_effect() has checked the rows.
bool StoredVariable::is_of_rows_alone(const Reserve& reserve) const {
  const internal::Effect& effect = reserve.effect;
  const bool is_real = spec_.dtype == at::kFloat || spec_.dtype == at::kDouble;
  if (!is_real || !effect.row_ids.defined() || !variable::are_summed(effect.row_ids)) return false;
  variable::check_hyperparameters(*reserve.rule, effect.hyper, name_);
  return effect.lazy_rows || reserve.rule->leaves_rows_of_zeros(effect.hyper);
}

void StoredVariable::apply(Reserve reserve) {
  const internal::Effect& effect = reserve.effect;
  const ExportLock lock(mutex_);
  if (cut_ != nullptr) keep_replaced(effect, reserve.rule, /*must=*/true);
  at::Tensor next = target(reserve.spare);
  if (reserve.rule != nullptr) {
    state_.apply(key_of(reserve), std::move(reserve.step), next, effect.hyper);
  } else {
    variable::effect_kind(effect.kind)
        .change(next, state_.value(), effect, version_ == effect.version);
  }
  finish(std::move(next), std::move(reserve.spare));
}

at::Tensor StoredVariable::target(at::Tensor& spare) {
  return state_.value().use_count() > 1 ? std::move(spare) : state_.value();
}

void StoredVariable::finish(at::Tensor next, at::Tensor spare) {
  ++version_;
  if (spare.defined()) return keep_spare(std::move(spare));
  keep_spare(state_.exchange(std::move(next)));
}

at::Tensor StoredVariable::take_spare() {
  for (std::size_t i = 0; i < retired_.size(); ++i) {
    if (retired_[i].use_count() > 1) continue;
    at::Tensor spare = std::move(retired_[i]);
    retired_.erase(retired_.begin() + static_cast<std::ptrdiff_t>(i));
    return spare;
  }
  return in_huge_pages(at::empty(*spec_.sizes, at::TensorOptions(spec_.dtype)));
}

void StoredVariable::drop_spares() {
  std::vector<at::Tensor> unused;  // freed without the lock
  const ExportLock lock(mutex_);
  unused.reserve(kSparesMax);
  const auto first = std::partition(retired_.begin(), retired_.end(),
                                    [](const at::Tensor& each) { return each.use_count() > 1; });
  std::move(first, retired_.end(), std::back_inserter(unused));
  retired_.erase(first, retired_.end());
}

// Keeps at most kSparesMax buffers; others are freed.
void StoredVariable::keep_spare(at::Tensor spare) {
  if (retired_.size() < kSparesMax) retired_.push_back(std::move(spare));
}

}  // namespace cohort::parameter_server
