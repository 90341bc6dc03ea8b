// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/mirrored/central_copies.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"

namespace cohort::internal {
namespace {

void take_all(std::span<const Variable> variables, std::span<const CentralValue> values) {
  for (std::size_t i = 0; i < variables.size(); ++i)
    if (values[i].value.defined()) target_of(variables[i]).variable.take_central(values[i]);
}

// As to.copy_(from), which takes longer than the copy of a small value.
void copy_value(const at::Tensor& from, const at::Tensor& to) {
  const bool are_bytes = to.is_cpu() && to.is_contiguous() && !to.is_inference() &&
                         from.is_contiguous() && from.scalar_type() == to.scalar_type() &&
                         from.sizes() == to.sizes();
  if (!are_bytes) {
    to.copy_(from);
    return;
  }
  if (to.nbytes() > 0) std::memcpy(to.data_ptr(), from.data_ptr(), to.nbytes());
  to.unsafeGetTensorImpl()->bump_version();
}

thread_local CentralCopies::Run* current_run = nullptr;
thread_local bool is_later = false;

// The write of what a run has left in the copies of a variable; nullopt if that is the central
// value. Throws invalid_argument for a trainable variable.
std::optional<CentralChange> left_in_copies(const Variable& handle) {
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
    return CentralChange{handle, write_effect(Effect::Kind::assign_add, own.cpu().sub(known))};
  return CentralChange{handle, write_effect(Effect::Kind::assign, own.cpu())};
}

}  // namespace

void MirroredVariable::take_central(const CentralValue& central) {
  constexpr std::size_t kRememberedBytesMax = std::size_t{64} << 20;
  const at::Tensor& value = central.value;
  const c10::NoGradGuard no_grad;
  const Lock lock(mutex_);
  for (std::size_t i = 0; i < size(); ++i) {
    copy_value(value, component(i));
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
  std::vector<CentralChange> changes;
  bool has_left = false;
  for (const ValueUpdate& update : updates) {
    const Variable variable = update.variable.handle();
    if (std::optional<CentralChange> left = left_in_copies(variable)) {
      has_left = true;
      changes.push_back(std::move(*left));
    }
    changes.push_back(
        {variable,
         apply_effect(key.owner(), {update.hyper.begin(), update.hyper.end()}, update.gradient)});
  }
  change(std::move(changes), has_left);
}

void CentralCopies::write(MirroredVariable& variable, const VariableWrite& write) {
  std::vector<CentralChange> changes;
  std::optional<CentralChange> left;
  if (are_in_use()) left = left_in_copies(variable.handle());
  const bool has_left = left.has_value();
  // An assignment of a whole value replaces it.
  if (has_left && write.kind != Effect::Kind::assign) changes.push_back(std::move(*left));
  changes.push_back({variable.handle(), write.effect()});
  change(std::move(changes), has_left);
}

void CentralCopies::change(std::vector<CentralChange> changes, bool has_left) {
  Run* const run = run_here();
  if (run == nullptr) return send(std::move(changes), 0);
  std::vector<CentralChange> all = std::exchange(run->later_, {});
  const std::size_t unread = all.size();
  std::ranges::move(changes, std::back_inserter(all));
  if (is_later && !has_left) {
    run->later_ = std::move(all);
  } else {
    send(std::move(all), unread);
  }
}

void CentralCopies::send(std::vector<CentralChange> changes, std::size_t unread) {
  if (changes.empty()) return;
  std::vector<Variable> read;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    target_of(changes[i].variable).variable.forget_central();
    if (i >= unread) read.push_back(changes[i].variable);
  }
  take_all(read, values_->change(std::move(changes), unread));
}

CentralCopies::Run* CentralCopies::run_here() const {
  const bool is_own = current_run != nullptr && current_run->home_->central() == this;
  return is_own ? current_run : nullptr;
}

CentralCopies::Later::Later() : is_later_(is_later, true) {}

CentralCopies::Run::Run(MirroredHome* home)
    : home_(home == nullptr || home->central() == nullptr ? nullptr : home),
      current_(current_run, home_ == nullptr ? current_run : this) {
  if (home_ == nullptr) return;
  CentralCopies& copies = *home_->central();
  const Lock lock(copies.mutex_);
  if (copies.open_runs_ == 0) {
    copies.values_->about_to_run();
    copies.fetch(home_->variables());
  }
  ++copies.open_runs_;
}

// A run that fails may have left anything in the copies. Its changes of before stay made.
CentralCopies::Run::~Run() {
  if (home_ == nullptr) return;
  CentralCopies& copies = *home_->central();
  if (!has_finished_) {
    try {
      send_later();
    } catch (const std::exception& error) {
      log_warn("[strategy.run] a step that fails has made changes which are lost: ", error.what());
    }
    for (const Variable& each : home_->variables()) target_of(each).variable.forget_central();
  }
  const Lock lock(copies.mutex_);
  if (--copies.open_runs_ > 0 || !copies.compares_all_) return;
  copies.compares_all_ = false;
  for (const Variable& each : home_->variables())
    if (each.is_trainable()) target_of(each).variable.forget_central_value();
}

// The next run fetches the values.
void CentralCopies::Run::finish() {
  if (home_ == nullptr) return;
  const c10::NoGradGuard no_grad;
  std::vector<CentralChange> left;
  for (const Variable& each : home_->variables())
    if (std::optional<CentralChange> change = left_in_copies(each))
      left.push_back(std::move(*change));
  std::ranges::move(left, std::back_inserter(later_));
  send_later();
  has_finished_ = true;
}

void CentralCopies::Run::send_later() {
  CentralCopies& copies = *home_->central();
  std::vector<CentralChange> all = std::exchange(later_, {});
  // A run around this one, or beside it, computes with the copies.
  const std::size_t unread = copies.open_runs_ > 1 ? 0 : all.size();
  copies.send(std::move(all), unread);
}

}  // namespace cohort::internal
