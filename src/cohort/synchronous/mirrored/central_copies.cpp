// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/mirrored/central_copies.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>

#include <bit>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"

namespace cohort::internal {
namespace {

void take_all(std::span<const Variable> variables, std::span<const CentralValue> values) {
  for (std::size_t i = 0; i < variables.size(); ++i)
    if (values[i].value.defined()) target_of(variables[i]).variable.take_central(values[i]);
}

// The write of what a run has left in the copies of a variable; nullopt if that is the central
// value. Throws invalid_argument for a trainable variable.
std::optional<VariableWrite> left_in_copies(const Variable& handle) {
  const MirroredVariable& variable = target_of(handle).variable;
  variable.mirrored_home().agreement().check_shared_value(handle);
  const at::Tensor known = variable.known_central();
  const bool is_same =
      known.defined() ? variable.are_copies_of(known) : !variable.is_written_by_others();
  COHORT_CHECK(!handle.is_trainable() || is_same, ErrorCode::invalid_argument,
               "[strategy.run] expected variable '", handle.name(),
               "', whose value is on a parameter server, to be updated there, got a step that "
               "writes in place into its copy, as optimizers of LibTorch do; use an optimizer of "
               "Cohort, or assign()");
  if (is_same) return std::nullopt;
  const at::Tensor own = variable.size() > 1 ? variable.reduced(variable.values_to_reduce())
                                             : variable.component(0).detach().clone();
  // Each worker adds what it has counted.
  const bool is_count = at::isIntegralType(own.scalar_type(), /*includeBool=*/false);
  if (is_count && known.defined())
    return VariableWrite{handle, Effect::Kind::assign_add, own.cpu().sub(known)};
  return VariableWrite{handle, Effect::Kind::assign, own.cpu()};
}

}  // namespace

void MirroredVariable::take_central(const CentralValue& central) {
  constexpr std::size_t kRememberedBytesMax = std::size_t{64} << 20;
  const at::Tensor& value = central.value;
  const c10::NoGradGuard no_grad;
  const Lock lock(mutex_);
  for (std::size_t i = 0; i < size(); ++i) {
    component(i).copy_(value);
    if (is_plain()) tell_autograd(i);
  }
  know_values();
  note_writes();
  allow_difference(false);
  const bool is_compared = !is_trainable() || home_->central()->compares_all();
  const bool is_remembered = is_compared && value.nbytes() <= kRememberedBytesMax;
  known_central_ = is_remembered ? value.detach() : at::Tensor();
  central_version_ = central.version;
}

void CentralCopies::add(std::span<const CentralRequest> requests) {
  const std::vector<at::Tensor> values = values_->add(requests);
  for (std::size_t i = 0; i < requests.size(); ++i)
    target_of(requests[i].variable).variable.take_central({.value = values[i]});
}

void CentralCopies::fetch(std::span<const Variable> variables) {
  if (variables.empty()) return;
  compares_all_ = std::has_single_bit(++fetches_);
  std::vector<std::uint64_t> known;
  for (const Variable& each : variables)
    known.push_back(compares_all_ ? 0 : target_of(each).variable.central_version());
  take_all(variables, values_->read_newer(variables, known));
}

void CentralCopies::apply(const SlotKey& key, const std::vector<ValueUpdate>& updates) {
  std::vector<CentralUpdate> central;
  std::vector<Variable> variables;
  std::vector<Variable> written;
  std::vector<VariableWrite> left;
  for (const ValueUpdate& update : updates) {
    variables.push_back(update.variable.handle());
    if (std::optional<VariableWrite> each = left_in_copies(variables.back())) {
      written.push_back(variables.back());
      left.push_back(std::move(*each));
    }
    central.push_back({variables.back(), update.gradient, update.hyper});
  }
  if (!left.empty()) take_all(written, values_->write(left));
  take_all(variables, values_->apply(key, central));
}

void CentralCopies::write(MirroredVariable& variable, VariableWrite write) {
  write.variable = variable.handle();
  std::vector<VariableWrite> writes;
  if (are_in_use()) {
    std::optional<VariableWrite> left = left_in_copies(write.variable);
    // An assignment of a whole value replaces it.
    if (left && write.kind != Effect::Kind::assign) writes.push_back(std::move(*left));
  }
  writes.push_back(std::move(write));
  variable.take_central(values_->write(writes).back());
}

CentralCopies::Run::Run(MirroredHome* home)
    : home_(home == nullptr || home->central() == nullptr ? nullptr : home) {
  if (home_ == nullptr) return;
  CentralCopies& copies = *home_->central();
  const Lock lock(copies.mutex_);
  if (copies.open_runs_ == 0) {
    copies.values_->about_to_run();
    copies.fetch(home_->variables());
  }
  ++copies.open_runs_;
}

// A run that fails may have left anything in the copies.
CentralCopies::Run::~Run() {
  if (home_ == nullptr) return;
  if (!has_finished_)
    for (const Variable& each : home_->variables()) target_of(each).variable.forget_central();
  CentralCopies& copies = *home_->central();
  const Lock lock(copies.mutex_);
  if (--copies.open_runs_ > 0 || !copies.compares_all_) return;
  copies.compares_all_ = false;
  for (const Variable& each : home_->variables())
    if (each.is_trainable()) target_of(each).variable.forget_central_value();
}

void CentralCopies::Run::finish() {
  if (home_ != nullptr) home_->central()->write_back(home_->variables());
  has_finished_ = true;
}

void CentralCopies::write_back(std::span<const Variable> variables) {
  const c10::NoGradGuard no_grad;
  std::vector<VariableWrite> writes;
  std::vector<Variable> written;
  for (const Variable& each : variables) {
    if (std::optional<VariableWrite> left = left_in_copies(each)) {
      writes.push_back(std::move(*left));
      written.push_back(each);
    }
  }
  if (!writes.empty()) take_all(written, values_->write(writes));
}

}  // namespace cohort::internal
