// SPDX-License-Identifier: Apache-2.0
// A variable whose value and slots are in this process.
#include <c10/core/GradMode.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/function/local_tensors.h"
#include "cohort/function/trace.h"
#include "cohort/function/variable_read.h"
#include "cohort/variable/effect_kinds.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/variable/validation.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_home.h"
#include "cohort/variable/variable_state.h"

namespace cohort {
namespace variable {
namespace {

// copy, assign and apply are thread-safe with each other; a step that computes with tensor() must
// not run at the same time as an update, since it would see half of it.
class LocalVariable final : public VariableImpl {
 public:
  LocalVariable(std::string name, at::Tensor value, bool is_trainable)
      : name_(std::move(name)),
        spec_(TensorSpec::of(value)),
        is_trainable_(is_trainable),
        state_(std::move(value)),
        named_(tensor(), name_) {
    check_tensor(name_, tensor(), is_trainable_);
  }

  const std::string& name() const override { return name_; }
  const TensorSpec& spec() const override { return spec_; }
  bool is_trainable() const override { return is_trainable_; }
  const at::Tensor& tensor() const override { return state_.value(); }
  bool is_tensor_current() const override { return true; }
  void check_tensor_is_current(std::string_view) const override {}
  at::Tensor copy() const override {
    if (function::Trace::current() != nullptr) return tensor().detach().clone();
    const Lock lock(mutex_);
    return tensor().detach().clone();
  }
  std::shared_ptr<VariableHome> home() const override;

  VariableRecord record(const StateWalk& walk) const {
    const Lock lock(mutex_);
    VariableRecord::Value value{tensor().detach()};
    if (walk.has_slots) value.slots = state_.all_slots(name_);
    if (!walk.is_by_replica) value = copy_of(value);
    return {.name = name_, .spec = spec_, .values = {std::move(value)}};
  }

  void take(const VariableRecord& record) {
    const c10::NoGradGuard no_grad;
    const Lock lock(mutex_);
    tensor().copy_(record.values[0].tensor);
    state_.take_slots(record.values[0].slots, /*may_keep=*/false);
  }

  void write(const VariableWrite& write) {
    const c10::NoGradGuard no_grad;
    const Lock lock(mutex_);
    change_in_place(tensor(), write.effect());
  }

  VariableState::Reserve reserve(const SlotKey& key, const at::Tensor& gradient,
                                 std::span<const double> hyper) const {
    const at::Tensor prepared = prepared_gradient(key, gradient, hyper);
    const Lock lock(mutex_);
    return state_.reserve(key, prepared, hyper, name_);
  }

  void apply(const SlotKey& key, VariableState::Reserve reserve, std::span<const double> hyper) {
    const Lock lock(mutex_);
    at::Tensor own = tensor();
    state_.apply(key, std::move(reserve), own, hyper);
    // Autograd must detect it if a graph that saved the old value is run backwards later.
    own.unsafeGetTensorImpl()->bump_version();
  }

 private:
  const std::string name_;
  const TensorSpec spec_;
  const bool is_trainable_;
  mutable Mutex mutex_;
  // Its value is always the same tensor; the mutex guards what that refers to, and the slots.
  VariableState state_;
  const function::LocalTensorName named_;  // names it in errors of a trace
};

LocalVariable& local_of(const Variable& variable) {
  return static_cast<LocalVariable&>(*variable.impl());
}

// The home of all local variables of this process.
class LocalHome final : public VariableHome {
 public:
  void check_use(std::string_view, std::string_view) const override {}

  std::vector<at::Tensor> read(std::span<const Variable> variables) const override {
    std::vector<at::Tensor> values;
    for (const Variable& variable : variables) values.push_back(local_of(variable).copy());
    return values;
  }

  void export_state(std::span<const Variable> variables, const StateWalk& walk,
                    const TakeRecord& take) const override {
    for (std::size_t i = 0; i < variables.size(); ++i) take(i, local_of(variables[i]).record(walk));
  }

  void import_state(const Variable& variable, const VariableRecord& record) override {
    local_of(variable).take(record);
  }

  std::vector<std::shared_ptr<AttachedState>> attached_states() const override {
    return attached_.all();
  }

  void write(std::span<const VariableWrite> writes) override {
    for (const VariableWrite& write : writes) local_of(write.variable).write(write);
  }

  void apply(const SlotKey& key, std::span<const Update> updates,
             std::span<const double> hyper) override {
    const auto of = [&](const Update& each) {
      return key.hyper_of(each.variable.impl().get(), hyper);
    };
    // An error in one variable must leave all of them unchanged.
    std::vector<VariableState::Reserve> reserves;
    reserves.reserve(updates.size());
    for (const Update& each : updates)
      reserves.push_back(local_of(each.variable).reserve(key, each.gradient, of(each)));
    for (std::size_t i = 0; i < updates.size(); ++i)
      local_of(updates[i].variable).apply(key, std::move(reserves[i]), of(updates[i]));
  }

 private:
  void add_attached(const std::shared_ptr<AttachedState>& state) override { attached_.add(state); }

  AttachedStates attached_;
};

std::shared_ptr<VariableHome> LocalVariable::home() const {
  static const auto kHome = std::make_shared<LocalHome>();
  return kHome;
}

}  // namespace
}  // namespace variable

Variable local_variable(std::string name, at::Tensor value, bool is_trainable) {
  COHORT_CHECK(value.defined(), ErrorCode::invalid_argument,
               "[variable.create] expected a tensor, got an undefined one (variable '", name, "')");
  // A value that read() of another variable returned is only an initial value, so its graph is cut,
  // as in tf.Variable(v.read_value()).
  if (function::is_computed_from_reads(value))
    value = value.is_view() ? value.detach() : value.detach_();
  if (is_trainable && value.is_leaf() && value.is_floating_point()) value.set_requires_grad(true);
  return Variable(
      std::make_shared<variable::LocalVariable>(std::move(name), std::move(value), is_trainable));
}

}  // namespace cohort
