// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/remote_variable.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/function/trace.h"
#include "cohort/variable/eager_step.h"
#include "cohort/variable/validation.h"

namespace cohort {

using function::Trace;

RemoteVariable::RemoteVariable(std::string name, at::Tensor stand_in, bool is_trainable,
                               std::uint64_t id, std::weak_ptr<VariableHome> home, bool is_table)
    : name_(std::move(name)),
      stand_in_(std::move(stand_in)),
      is_trainable_(is_trainable),
      id_(id),
      home_(std::move(home)),
      is_table_(is_table) {
  variable::check_tensor(name_, stand_in_, is_trainable_);
  spec_ = TensorSpec::of(stand_in_);
}

void RemoteVariable::be_shard_of(const std::shared_ptr<const VariableImpl>& whole) {
  COHORT_ASSERT(set_container(whole));
  is_shard_ = true;
}

const at::Tensor& RemoteVariable::tensor() const {
  COHORT_CHECK(!is_shard_ || !is_tensor_current(), ErrorCode::failed_precondition,
               "[variable.tensor] expected the whole variable inside a step, got its shard '",
               name_,
               "'; use the variable itself, of which a step moves only the rows that it "
               "looks up");
  return stand_in_;
}

bool RemoteVariable::is_tensor_current() const {
  return Trace::current() != nullptr || EagerStep::current() != nullptr;
}

void RemoteVariable::check_tensor_is_current(std::string_view call) const {
  COHORT_CHECK(is_tensor_current(), ErrorCode::failed_precondition, "[", call,
               "] expected a loss of a scheduled step or of run(), got one computed outside, where "
               "tensor() of variable '",
               name_,
               "' is a stand-in without the current value; compute it in a step, or in "
               "ParameterServerStrategy::run()");
}

at::Tensor RemoteVariable::copy() const {
  if (!is_tensor_current()) return {};
  return tensor().detach().clone();
}

std::vector<VariableImpl::LookedUp> RemoteVariable::looked_up() const {
  if (!is_table_) return {};
  if (Trace* const trace = Trace::current()) {
    std::vector<LookedUp> all;
    for (const auto& [rows, keys, places] : trace->lookups_of(stand_in_))
      all.push_back({rows, keys});
    return all;
  }
  EagerStep* const step = EagerStep::current();
  return step == nullptr ? std::vector<LookedUp>() : step->lookups_of(*this);
}

std::shared_ptr<VariableHome> RemoteVariable::home() const {
  std::shared_ptr<VariableHome> home = home_.lock();
  COHORT_CHECK(home != nullptr, ErrorCode::failed_precondition,
               "[strategy.variable] the strategy of variable '", name_,
               "' has been destroyed; keep it as long as its variables");
  return home;
}

// The handle is a second owner with a count of its own, whose end can be noticed while the table of
// the strategy still has the variable.
Variable RemoteVariable::handle_of(const Variable& variable, std::function<void()> on_end) {
  const RemoteVariable& remote = of(variable);
  const Lock lock(remote.mutex_);
  if (std::shared_ptr<VariableImpl> known = remote.handle_.lock()) return Variable(known);
  std::shared_ptr<VariableImpl> fresh(
      variable.impl().get(),
      [owner = variable.impl(), on_end = std::move(on_end)](VariableImpl*) mutable {
        owner.reset();
        on_end();
      });
  remote.handle_ = fresh;
  return Variable(std::move(fresh));
}

bool RemoteVariable::has_handle() const {
  const Lock lock(mutex_);
  return !handle_.expired();
}

bool RemoteVariable::is_referenced(const Variable& variable, std::size_t own) {
  const std::vector<Variable>& shards = of(variable).shards_;
  const bool has_used_shard = std::any_of(shards.begin(), shards.end(), [](const Variable& shard) {
    return shard.impl().use_count() > 1;
  });
  if (has_used_shard) return true;
  const at::Tensor& stand_in = of(variable).stand_in_;
  return variable.impl().use_count() > 1 || stand_in.use_count() > own + 1 ||
         stand_in.storage().use_count() > 1;
}

const RemoteVariable& RemoteVariable::of(const Variable& variable) {
  const auto* remote = dynamic_cast<const RemoteVariable*>(variable.impl().get());
  COHORT_CHECK(remote != nullptr, ErrorCode::invalid_argument,
               "[strategy.variable] expected a variable that one parameter server holds, got '",
               variable.name(),
               "' of another kind, which pulls, pushes, scheduled steps and colocate_with do not "
               "support; use one that ParameterServerStrategy::variable() returned");
  return *remote;
}

}  // namespace cohort
