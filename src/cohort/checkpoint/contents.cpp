// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint/contents.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "cohort/checkpoint/restoring.h"
#include "cohort/coordinator/held_epochs.h"
#include "cohort/coordinator/open_closures.h"
#include "cohort/core/error.h"
#include "cohort/function/trace.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/strategy/strategy_parts.h"
#include "cohort/variable/replica_count.h"

namespace cohort::checkpoint {
namespace {

// A closure that runs would mix its updates with what is restored.
void check_no_closures(Strategy* strategy) {
  const auto* const on_servers = dynamic_cast<const ParameterServerStrategy*>(strategy);
  if (on_servers == nullptr) return;
  const std::size_t pending = coordinator::open_closures_of(*on_servers);
  COHORT_CHECK(pending == 0, ErrorCode::failed_precondition,
               "[checkpoint.read] expected no closure to wait or run, got ", pending,
               "; call join() of the coordinator before");
}

}  // namespace

std::shared_ptr<VariableHome> home_of_local_variables() {
  static const Variable kAny = local_variable("any", at::empty({0}), /*is_trainable=*/false);
  return kAny.impl()->home();
}

namespace {

// A content that could not be restored was not added.
template <class T>
void added(std::vector<T>& all, const std::function<void()>& restore) {
  try {
    restore();
  } catch (...) {
    all.pop_back();
    throw;
  }
}

// A program without a strategy has it, or one whose strategy makes no variables.
class NoVariables final : public internal::StrategyVariables {
 public:
  Variable create(std::string, const at::Tensor&, const VariableOptions&) override { refuse(); }
  Variable create(std::string, const TensorSpec&, const Initializer&,
                  const VariableOptions&) override {
    refuse();
  }
  std::uint64_t next_module_seed() override { refuse(); }
  internal::ModuleVariables place_module(std::string_view,
                                         std::vector<internal::ModuleCopy>) override {
    refuse();
  }
  int num_modules() const override { return 0; }
  bool owns(const Variable&) const override { return false; }
  std::vector<Variable> components_of(const Variable&) const override { return {}; }
  std::vector<std::string> devices_of(const Variable&) const override { return {}; }
  std::shared_ptr<VariableHome> home() const override { return home_of_local_variables(); }
  std::vector<Variable> all() const override { return {}; }

 private:
  [[noreturn]] static void refuse() {
    internal::throw_error(ErrorCode::internal, "[checkpoint] expected no request for a variable");
  }
};

}  // namespace

void Contents::check_new(const std::string& name) const {
  const auto has_name = [&](const auto& named) { return named.first == name; };
  const bool is_known = std::any_of(tensors_.begin(), tensors_.end(), has_name) ||
                        std::any_of(positions_.begin(), positions_.end(), has_name) ||
                        std::any_of(values_.begin(), values_.end(), has_name);
  COHORT_CHECK(!is_known, ErrorCode::already_exists,
               "[checkpoint.add] expected a name that was not added before, got '", name, "'");
}

void Contents::add(const Variable& variable) {
  const auto is_same = [&](const Variable& each) { return each.name() == variable.name(); };
  COHORT_CHECK(std::none_of(variables_.begin(), variables_.end(), is_same),
               ErrorCode::already_exists,
               "[checkpoint.add] expected a variable whose name was not added before, got '",
               variable.name(), "'; give each variable a name of its own");
  COHORT_CHECK(!variable.impl()->home()->is_of_one_strategy() &&
                   !variable.impl()->home()->assigns_by_parts(),
               ErrorCode::invalid_argument,
               "[checkpoint.add] expected a variable of no strategy, got '", variable.name(),
               "'; Checkpoint(strategy) saves all variables of its strategy");
  variables_.push_back(variable);
  if (open_ != nullptr) added(variables_, [&] { open_->note_made(variable); });
}

void Contents::add(std::vector<std::pair<std::string, at::Tensor>> tensors) {
  for (auto& [name, tensor] : tensors) check_new(name);
  for (auto& named : tensors) {
    tensors_.push_back(std::move(named));
    const auto& last = tensors_.back();
    if (open_ != nullptr) added(tensors_, [&] { open_->note_added(last.first, last.second); });
  }
}

void Contents::add(std::string name, SavedPosition position) {
  check_new(name);
  const auto& last = positions_.emplace_back(std::move(name), std::move(position));
  if (open_ != nullptr) added(positions_, [&] { open_->note_added(last.first, last.second); });
}

void Contents::add(std::string name, SavedState state) {
  check_new(name);
  COHORT_CHECK(state.save && state.restore, ErrorCode::invalid_argument,
               "[checkpoint.add] expected functions that save and restore '", name,
               "', got an empty one");
  const auto& last = values_.emplace_back(std::move(name), std::move(state));
  if (open_ != nullptr) added(values_, [&] { open_->note_added(last.first, last.second); });
}

const internal::StrategyVariables& Contents::parts() const {
  static const NoVariables kNone;
  const internal::StrategyVariables* const own =
      strategy_ == nullptr ? nullptr : internal::StrategyAccess::variables(*strategy_);
  return own == nullptr ? kNone : *own;
}

std::vector<Variable> Contents::all_variables() const {
  std::vector<Variable> all = parts().all();
  all.insert(all.end(), variables_.begin(), variables_.end());
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.insert(name);
  for (const Variable& variable : all) {
    COHORT_CHECK(names.insert(variable.name()).second, ErrorCode::already_exists,
                 "[checkpoint.write] expected names of their own for all variables and tensors of "
                 "modules, got '",
                 variable.name(), "' twice; make one with another name");
  }
  return all;
}

void Contents::check_place(std::string_view call) {
  COHORT_CHECK(variable::ReplicaCount::current() == 1 && function::Trace::current() == nullptr,
               ErrorCode::failed_precondition, "[checkpoint.", call,
               "] expected a call outside of run() and of steps, got one inside; make it between "
               "two runs");
}

void Contents::check_restore() const {
  check_place("read");
  check_no_closures(strategy_);
}

std::shared_ptr<void> Contents::hold_epochs(std::string_view call) const {
  check_place(call);
  const auto* const on_servers = dynamic_cast<const ParameterServerStrategy*>(strategy_);
  return on_servers == nullptr ? nullptr : coordinator::hold_epochs(*on_servers);
}

std::vector<std::shared_ptr<AttachedState>> states_of(const internal::StrategyVariables& parts,
                                                      std::span<const Variable> variables) {
  const std::shared_ptr<VariableHome> home = parts.home();
  const std::shared_ptr<VariableHome> local = home_of_local_variables();
  std::vector<std::shared_ptr<AttachedState>> states;
  if (home != local) states = home->attached_states();
  for (auto& state : local->attached_states()) {
    const std::string_view first = state->id().first_variable;
    const auto is_first = [&](const Variable& each) {
      return each.name() == first && each.impl()->home() == local;
    };
    if (std::any_of(variables.begin(), variables.end(), is_first)) states.push_back(state);
  }
  return states;
}

at::Tensor tensor_of_bytes(std::span<const std::byte> bytes) {
  const at::Tensor tensor =
      at::empty({static_cast<std::int64_t>(bytes.size())}, at::TensorOptions(at::kByte));
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

Bytes bytes_of_tensor(const at::Tensor& tensor) {
  const auto* const first = static_cast<const std::byte*>(tensor.data_ptr());
  return Bytes(first, first + tensor.nbytes());
}

Bytes bytes_of_text(std::string_view text) {
  const auto* const first = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(first, first + text.size());
}

std::string text_of_bytes(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace cohort::checkpoint
