// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/mirrored/mirrored_home.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/replicas/replica_devices.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/module_memory.h"
#include "cohort/strategy/strategy.h"
#include "cohort/synchronous/mirrored/central_copies.h"
#include "cohort/synchronous/workers/sharded_updates.h"
#include "cohort/synchronous/workers/worker_gradients.h"

namespace cohort::internal {

MirroredHome::MirroredHome(const Strategy* owner, std::string name,
                           std::vector<c10::Device> devices, VariableKind kind,
                           CrossDeviceOps cross_device_ops,
                           std::shared_ptr<StrategyWorkers> workers)
    : owner_(owner),
      name_(std::move(name)),
      devices_(std::move(devices)),
      replicas_(devices_.size()),
      gpus_(static_cast<std::size_t>(
          std::ranges::count_if(devices_, [](c10::Device d) { return !d.is_cpu(); }))),
      kind_(kind),
      cross_device_ops_(cross_device_ops),
      workers_(std::move(workers)),
      gradients_(std::make_unique<WorkerGradients>(workers_)),
      modules_(replicas_, kind_ == VariableKind::plain),
      undo_(devices_) {}

MirroredHome::~MirroredHome() = default;

void MirroredHome::keep_values_in(std::shared_ptr<CentralValues> values) {
  central_ = std::make_unique<CentralCopies>(std::move(values));
}

bool MirroredHome::keeps_newer_values() const {
  return received_.awaits_first_run() || (central_ && central_->values().keeps_newer_values());
}

// Others may be waited for, so this holds no lock.
void MirroredHome::add_to_central(std::span<const std::shared_ptr<MirroredVariable>> made,
                                  const std::optional<Variable>& beside) const {
  if (!central_) return;
  std::vector<CentralRequest> requests;
  for (const std::shared_ptr<MirroredVariable>& each : made)
    requests.push_back({Variable(each), each->component(0).detach().cpu(), beside});
  central_->add(requests);
}

void MirroredHome::shard_updates() {
  workers_->set_shards(true);
  sharded_updates_ = std::make_unique<ShardedUpdates>(workers_, *gradients_);
}

MirroredHome::Place MirroredHome::place_here() const {
  if (&get_strategy() != owner_) return {.is_of_owner = false};
  if (const ReplicaContext* replica = get_replica_context()) {
    return {.kind = Place::Kind::replica,
            .component = static_cast<std::size_t>(replica->local_replica_id()),
            .replica = replica};
  }
  const int component = updated_component();
  if (component < 0) return {};
  return {.kind = Place::Kind::update, .component = static_cast<std::size_t>(component)};
}

void MirroredHome::check_name(const std::string& name) {
  const auto found = by_name_.find(name);
  COHORT_CHECK(found == by_name_.end() || found->second.expired(), ErrorCode::already_exists,
               "[variable.create] expected a new name, got '", name,
               "', which is another variable's; give the model or the variable a name of its own");
}

void MirroredHome::check_new(std::span<const std::string> names) {
  const Lock lock(mutex_);
  for (const std::string& name : names) check_name(name);
}

void MirroredHome::keep(const std::shared_ptr<VariableImpl>& variable) {
  sweep_names_(by_name_, [](const auto& entry) { return entry.second.expired(); });
  by_name_.insert_or_assign(variable->name(), variable);
  received_.forget(variable->name());
}

Variable MirroredHome::create(const std::string& name, const at::Tensor& given,
                              MirroredVariable::Traits traits,
                              const std::optional<Variable>& beside) {
  traits.is_plain = kind_ == VariableKind::plain;
  const RunGate::Entry entry(&run_gate_);  // other workers may be waited for
  const auto handed = received_.find(name, TensorSpec::of(given));
  const at::Tensor initial_value =
      has_workers() && !handed ? agreed_value(name, given, traits) : given;
  const c10::InferenceMode off(false);  // its tensors could not be written outside of it
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < replicas_; ++i) {
    // A copy of the values in memory of its own, in row-major order; or a view of the first one,
    // with which it shares what autograd knows of writes.
    const at::Tensor values = on_device(initial_value.detach(), devices_[i]);
    tensors.push_back(traits.is_plain && i > 0 ? tensors[0].detach()
                                               : values.clone(at::MemoryFormat::Contiguous));
    if (traits.is_trainable && initial_value.is_floating_point())
      tensors.back().requires_grad_(true);
  }
  const auto made =
      std::make_shared<MirroredVariable>(name, std::move(tensors), traits, shared_from_this());
  check_new({&name, 1});
  add_to_central({&made, 1}, beside);
  const Lock lock(mutex_);
  check_name(name);
  if (handed) made->take(*handed, /*may_keep=*/true);
  if (!traits.is_trainable || traits.synchronization == VariableSynchronization::on_read)
    undo_.watch(made);
  keep(made);
  return Variable(made);
}

std::vector<std::optional<VariableRecord>> MirroredHome::handed_to(
    std::string_view module, const std::vector<NamedTensor>& tensors) const {
  std::vector<std::optional<VariableRecord>> handed;
  for (const NamedTensor& each : tensors) {
    handed.push_back(
        received_.find(std::string(module) + "/" + each.name, TensorSpec::of(each.tensor)));
    COHORT_CHECK(handed.back().has_value() == handed.front().has_value(),
                 ErrorCode::failed_precondition,
                 "[strategy.replicate] expected a module as other workers have it, got '", module,
                 "', of which they have only a part; create modules before the training");
  }
  return handed;
}

std::vector<Variable> MirroredHome::create_module(
    std::string_view module, const std::vector<std::vector<NamedTensor>>& copies) {
  const RunGate::Entry entry(&run_gate_);  // other workers may be waited for
  const std::vector<NamedTensor>& first = copies.at(0);
  const std::vector<std::optional<VariableRecord>> handed = handed_to(module, first);
  const bool is_handed = !handed.empty() && handed.front().has_value();
  if (has_workers() && !is_handed) {
    agree_on_module(module, copies);
  } else {
    make_alike(copies);
  }
  std::vector<std::string> names;
  for (const NamedTensor& each : first) names.push_back(std::string(module) + "/" + each.name);
  check_new(names);
  std::vector<std::shared_ptr<MirroredVariable>> made;
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const bool is_shared = kind_ == VariableKind::plain && (!first[i].is_buffer || replicas_ == 1);
    MirroredVariable::Traits traits{.is_trainable = first[i].is_trainable, .is_plain = is_shared};
    std::vector<at::Tensor> components;
    for (const std::vector<NamedTensor>& copy : copies) {
      components.push_back(copy[i].tensor);
      // As torch::nn::Module::to() does.
      const at::Tensor moved =
          on_device(components.back().detach(), devices_[components.size() - 1]);
      if (moved.device() != copy[i].tensor.device()) components.back().set_data(moved);
      if (components.size() == 1) continue;
      if (is_shared) {
        components.back().set_data(first[i].tensor.detach());
      } else {
        components.back().copy_(first[i].tensor);
      }
    }
    if (first[i].is_buffer) {
      traits.synchronization = VariableSynchronization::on_read;
      traits.aggregation = first[i].tensor.is_floating_point()
                               ? VariableAggregation::mean
                               : VariableAggregation::only_first_replica;
    }
    made.push_back(std::make_shared<MirroredVariable>(names[i], std::move(components), traits,
                                                      shared_from_this()));
  }
  add_to_central(made, {});
  std::vector<Variable> handles;
  const Lock lock(mutex_);
  for (const std::string& name : names) check_name(name);
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (first[i].is_buffer) undo_.watch(made[i]);
    if (handed[i]) made[i]->take(*handed[i], /*may_keep=*/true);
    keep(made[i]);
    handles.emplace_back(made[i]);
  }
  return handles;
}

void MirroredHome::add_attached(const std::shared_ptr<AttachedState>& state) {
  if (const std::optional<Bytes> handed = received_.find_attached(state->key()))
    state->load(*handed);
  attached_.add(state);
}

// A value that several replicas hold is read in one call, in which the workers meet.
void MirroredHome::export_state(std::span<const Variable> variables, const StateWalk& walk,
                                const TakeRecord& take) const {
  if (central_) return central_->values().export_state(variables, walk, take);
  std::vector<at::Tensor> values;
  if (!walk.is_by_replica) values = read(variables);
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const auto [variable, component] = target_of(variables[i]);
    if (walk.is_by_replica && !component) {
      take(i, variable.record(walk));
      continue;
    }
    VariableRecord::Value value = variable.value_record(component.value_or(0), walk);
    if (!walk.is_by_replica) {
      value.tensor = values[i];
      for (OptimizerSlots& slots : value.slots)
        for (at::Tensor& tensor : slots.tensors)
          if (tensor.defined()) tensor = tensor.clone();
    }
    take(i, {.name = variables[i].name(), .spec = variables[i].spec(), .values = {value}});
  }
}

void MirroredHome::import_state(const Variable& handle, const VariableRecord& record) {
  const auto [variable, component] = target_of(handle);
  const std::size_t given = record.values.size();
  if (central_ && given == 1) {
    return central_->values().import_state(handle, record);  // the next run reads it
  }
  const bool is_of_all = given > variable.size() && given == replicas_in_sync();
  COHORT_CHECK(given == 1 || (!component && (given == variable.size() || is_of_all)),
               ErrorCode::invalid_argument,
               "[variable.import_state] expected one value, or one for each of the ",
               variable.size(), " replicas of variable '", handle.name(), "', got ", given,
               "; export them without is_by_replica");
  if (is_of_all) {
    VariableRecord own = record;
    own.values.assign(
        record.values.begin() + first_replica(),
        record.values.begin() + first_replica() + static_cast<std::ptrdiff_t>(variable.size()));
    variable.take(own, /*may_keep=*/false);
    return variable.doubt_values();
  }
  const bool is_sum = given == 1 && variable.is_on_read() &&
                      variable.traits().aggregation == VariableAggregation::sum;
  if (component) {
    variable.take(*component, record.values[0], /*may_keep=*/false);
    variable.allow_difference();
  } else if (is_sum) {
    // The replicas get shares of the value, which is the sum of theirs.
    variable.write_all({handle, Effect::Kind::assign, record.values[0].tensor});
    for (std::size_t i = 0; i < variable.size(); ++i) {
      variable.take(i, {variable.component(i).detach(), record.values[0].slots},
                    /*may_keep=*/false);
    }
  } else {
    variable.take(record, /*may_keep=*/false);
  }
  if (has_workers()) variable.doubt_values();
  if (central_) variable.forget_central();
}

std::vector<Variable> MirroredHome::variables() const {
  std::vector<Variable> all;
  const Lock lock(mutex_);
  for (const auto& [name, weak] : by_name_) {
    if (auto impl = weak.lock()) all.emplace_back(std::move(impl));
  }
  return all;
}

void MirroredHome::check_use(std::string_view method, std::string_view variable) const {
  if (is_of_one_value()) return;
  check_not_mixing(owner_, name_, "variable." + std::string(method), {"variable", variable});
  COHORT_CHECK(are_values_whole_, ErrorCode::failed_precondition, "[variable.", method,
               "] expected the values of the present group of workers, got old ones, or a mixture, "
               "that a rebuild() of '",
               name_, "' has left when it failed; call rebuild() again");
}

void MirroredHome::check_can_minimize(const std::string& variable) const {
  if (!has_workers() || is_in_replica()) return;
  check_use("tensor", variable);  // another strategy may be current
  throw_error(ErrorCode::failed_precondition,
              "[optimizer.minimize] expected a call in run() for variable '", variable,
              "', which each of ", workers_->count(),
              " workers has, got one outside of run(), or in a merge_call(), where only the "
              "gradient of this worker's losses is known; call minimize() in the function that "
              "run() gets");
}

std::vector<at::Tensor> MirroredHome::read(std::span<const Variable> variables) const {
  if (central_ && !is_in_run()) return central_->values().read(variables);
  if (has_workers() && place_here().kind == Place::Kind::all) return read_over_workers(variables);
  agreement_.check(variables);
  std::vector<at::Tensor> values;
  for (const Variable& variable : variables) values.push_back(variable.impl()->copy());
  return values;
}

MirroredHome::Reach MirroredHome::reach_of(const Variable& variable, const Place& place,
                                           std::string_view call) const {
  const MirroredTarget target = target_of(variable);
  if (target.component) return {.kind = Reach::Kind::one, .value = *target.component};
  if (place.kind == Place::Kind::all) return {};
  const Reach own{.kind = Reach::Kind::one, .value = target.variable.value_of(place.component)};
  const bool is_direct =
      place.kind == Place::Kind::update || !has_several_replicas() || target.variable.is_on_read();
  if (is_direct) return own;
  if (target.variable.traits().aggregation != VariableAggregation::none)
    return {.kind = Reach::Kind::merged};
  COHORT_CHECK(!target.variable.is_plain(), ErrorCode::invalid_argument, "[", call,
               "] expected an aggregation for variable '", variable.name(), "', of which ",
               replicas_, " replicas of '", name_,
               "' share one value, got none; make it with VariableAggregation sum, mean or "
               "only_first_replica");
  return own;
}

void MirroredHome::check_module_use(std::string_view module) const {
  check_not_mixing(owner_, name_, "replicate", {"module", module});
  COHORT_CHECK(is_in_replica(), ErrorCode::failed_precondition,
               "[strategy.replicate] expected a replica of '", name_,
               "', got a use of the module outside of run(); for evaluation and saving, take an "
               "ordinary module with snapshot()");
}

void MirroredHome::check_outside_step(std::string_view call) const {
  COHORT_CHECK(!is_in_replica(), ErrorCode::failed_precondition, "[strategy.", call,
               "] expected a call outside of run(), got one in a replica of '", name_,
               "'; call it between two runs");
}

}  // namespace cohort::internal
