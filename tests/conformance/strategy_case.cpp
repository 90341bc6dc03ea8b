// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy_case.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/testing/cpu_devices.h"
#include "tests/conformance/strategy_tensors.h"

namespace cohort::conformance::strategy {
namespace {

// The host on which the cases were recorded has these devices.
constexpr int kHostDevices = 4;
constexpr int kMostNames = 64;

void set_variable_of_environment(const std::string& name, const std::optional<std::string>& value) {
  if (value) {
    ::setenv(name.c_str(), value->c_str(), 1);
  } else {
    ::unsetenv(name.c_str());
  }
}

std::vector<std::string> devices_in(const Json& spec) {
  if (!spec.contains("devices")) return testing::cpu_devices(member_or(spec, "replicas", 0));
  std::vector<std::string> devices;
  for (const Json& device : spec["devices"]) devices.push_back(device_text(device));
  return devices;
}

// Longer than a loaded machine needs for a case.
constexpr Duration kWorkerTimeout = std::chrono::seconds(20);

std::unique_ptr<Strategy> made_multi_worker(const Json& spec, const WorkerPlace& place) {
  const Json options = member_or(spec, "options", Json::object());
  const double seconds = member_or(options, "timeout_seconds", 0.0);
  return std::make_unique<MultiWorkerMirroredStrategy>(
      *place.resolver,
      MultiWorkerMirroredOptions{
          .devices = {"CPU:0"},
          .timeout = seconds > 0 ? std::chrono::duration_cast<Duration>(
                                       std::chrono::duration<double>(seconds))
                                 : kWorkerTimeout,
          .backend = place.backend,
          .communication = {.bytes_per_pack = member_or<std::int64_t>(options, "bytes_per_pack", 0),
                            .implementation = communication_implementation(
                                member_or<std::string>(options, "implementation", "AUTO"))}});
}

std::unique_ptr<Strategy> made_strategy(const Json& spec, const WorkerPlace& place) {
  const auto kind = member(spec, "kind").get<std::string>();
  if (kind == "one_device") {
    return std::make_unique<OneDeviceStrategy>(
        device_text(member_or<std::string>(spec, "device", "cpu:0")));
  }
  if (kind == "multi_worker_mirrored") return made_multi_worker(spec, place);
  if (kind == "mirrored") return std::make_unique<MirroredStrategy>(devices_in(spec));
  if (kind == "central_storage") {
    return std::make_unique<CentralStorageStrategy>(
        devices_in(spec), device_text(member_or<std::string>(spec, "parameter_device", "cpu:0")));
  }
  throw CaseFault("unknown kind of strategy " + brief(spec, 120));
}

// Outside of strategies, tf.Variable is a variable of this process alone.
Variable created_local_variable(const std::string& name, const at::Tensor& initial_value,
                                const VariableOptions& options) {
  const bool is_trainable =
      options.is_trainable.value_or(options.synchronization != VariableSynchronization::on_read &&
                                    initial_value.is_floating_point());
  const bool is_text = StringTensor::is(initial_value);
  return local_variable(name, is_text ? initial_value : initial_value.detach().clone(),
                        is_trainable);
}

}  // namespace

void refuse_type(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "[conformance] C++ does not compile this: " + what,
              ErrorCause::wrong_type);
}

std::string device_text(const std::string& text) {
  // Device::parse() takes "cpu:1" and "job:ps/task:2", but "/device:CPU:1" only with its slash.
  return text.starts_with("device:") ? "/" + text : text;
}

std::string place_of(const Frame& frame) {
  if (frame.component()) return "u" + std::to_string(*frame.component());
  const ReplicaContext* const replica = get_replica_context();
  return replica == nullptr ? "x" : "r" + std::to_string(replica->replica_id_in_sync_group());
}

// --- Frame --------------------------------------------------------------------------------------

Frame::~Frame() {
  while (!open_.empty()) open_.pop_back();
}

void Frame::bind(const std::string& name, Value value) {
  const std::lock_guard lock(mutex_);
  values_[name] = std::move(value);
}

Value Frame::find(const std::string& name) const {
  {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(name);
    if (found != values_.end()) return found->second;
  }
  if (outer_ == nullptr) throw CaseFault("nothing has the name '" + name + "'");
  return outer_->find(name);
}

std::vector<std::string> Frame::names_of(const Variable& variable) const {
  std::vector<std::string> names =
      outer_ == nullptr ? std::vector<std::string>() : outer_->names_of(variable);
  const std::lock_guard lock(mutex_);
  for (const auto& [name, value] : values_) {
    if (value.variable() != nullptr && *value.variable() == variable) names.push_back(name);
  }
  return names;
}

std::optional<std::size_t> Frame::component() const {
  if (component_) return component_;
  return is_update_over_ || outer_ == nullptr ? std::nullopt : outer_->component();
}

void Frame::enter(const std::string& name, std::unique_ptr<OpenContext> context) {
  open_.emplace_back(name, std::move(context));
}

void Frame::exit(const std::string& name) {
  const auto last = std::find_if(open_.rbegin(), open_.rend(),
                                 [&](const auto& context) { return context.first == name; });
  if (last == open_.rend()) throw CaseFault("no context '" + name + "' is open here");
  last->second->exit();
  open_.erase(std::next(last).base());
}

// --- StrategyCase -------------------------------------------------------------------------------

StrategyCase::StrategyCase(const Json& content, const WorkerPlace& place) : place_(place) {
  set_logical_cpu_devices(kHostDevices);
  strategies_["default"] = &default_strategy();
  add_strategy("S", member_or(content, "strategy", Json{{"kind", "default"}}));
  const Json others = member_or(content, "others", Json::object());
  for (const auto& [name, spec] : others.items()) {
    add_strategy(name, spec);
  }
}

StrategyCase::~StrategyCase() {
  try {
    set_strategy(nullptr);
  } catch (const Error&) {  // a failed case may have left its contexts entered
  }
  for (const auto& [name, value] : environment_) set_variable_of_environment(name, value);
}

void StrategyCase::add_strategy(const std::string& name, const Json& spec) {
  if (member(spec, "kind") == "default") {
    const std::lock_guard lock(mutex_);
    strategies_[name] = &default_strategy();
    return;
  }
  std::unique_ptr<Strategy> made = make_strategy(name, spec);
  const std::lock_guard lock(mutex_);
  strategies_[name] = made.get();
  made_.push_back(std::move(made));
}

std::unique_ptr<Strategy> StrategyCase::make_strategy(const std::string& name, const Json& spec) {
  if (member(spec, "kind") != "parameter_server") return made_strategy(spec, place_);
  std::shared_ptr<CaseCluster>& cluster = clusters_[name];
  cluster = cluster_of_size(member(spec, "workers").get<int>(), member(spec, "ps").get<int>(),
                            place_.program);
  return cluster->make_strategy(partitioner_in(spec));
}

CaseCluster& StrategyCase::cluster() {
  const auto found = clusters_.find("S");
  if (found == clusters_.end()) throw CaseFault("S has no workers and parameter servers");
  return *found->second;
}

Strategy& StrategyCase::strategy(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = strategies_.find(name);
  if (found == strategies_.end()) throw CaseFault("no strategy has the name '" + name + "'");
  return *found->second;
}

std::string StrategyCase::name_of(const Strategy& strategy) {
  if (&strategy == &default_strategy()) return "default";
  const std::lock_guard lock(mutex_);
  for (const auto& [name, known] : strategies_) {
    if (known == &strategy) return name;
  }
  throw CaseFault("a strategy that the case did not make is current");
}

Variable StrategyCase::create_variable(const std::string& name, const at::Tensor& initial_value,
                                       const VariableOptions& options) {
  return create_variable(name, options, [&](Strategy& current, const std::string& unique) {
    return &current == &default_strategy() ? created_local_variable(unique, initial_value, options)
                                           : current.variable(unique, initial_value, options);
  });
}

Variable StrategyCase::create_variable(
    const std::string& name, const VariableOptions& options,
    const std::function<Variable(Strategy&, const std::string&)>& make) {
  Strategy& current = get_strategy();
  // TensorFlow gives the name to any number of variables. Each replica makes the same attempts.
  for (int attempt = 0;; ++attempt) {
    const std::string unique = attempt == 0 ? name : name + "_" + std::to_string(attempt);
    try {
      const Variable variable = make(current, unique);
      const std::lock_guard lock(mutex_);
      origins_.try_emplace(variable.impl().get(), Origin{&current, name, options,
                                                         std::make_shared<VariableLeaf>(variable)});
      return variable;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::already_exists || attempt == kMostNames) throw;
    }
  }
}

StrategyCase::Origin& StrategyCase::origin_of(const Variable& variable) {
  const auto found = origins_.find(variable.impl().get());
  if (found != origins_.end()) return found->second;
  // A component, which its strategy made.
  Strategy* owner = &get_strategy();
  for (const auto& [impl, origin] : origins_) {
    if (impl->home() == variable.impl()->home()) owner = origin.strategy;
  }
  return origins_
      .emplace(variable.impl().get(),
               Origin{owner, variable.name(), {}, std::make_shared<VariableLeaf>(variable)})
      .first->second;
}

Strategy& StrategyCase::strategy_of(const Variable& variable) {
  const std::lock_guard lock(mutex_);
  return *origin_of(variable).strategy;
}

VariableOptions StrategyCase::options_of(const Variable& variable) {
  const std::lock_guard lock(mutex_);
  return origin_of(variable).options;
}

std::string StrategyCase::given_name_of(const Variable& variable) {
  const std::lock_guard lock(mutex_);
  return origin_of(variable).name;
}

std::vector<Variable> StrategyCase::components_of(const Variable& variable) {
  if (!variable.impl()->shards().empty()) return ShardedVariable(variable).shards();
  return strategy_of(variable).local_results(variable);
}

Value StrategyCase::value_of(const Variable& variable) {
  const std::lock_guard lock(mutex_);
  return Value::of(Nest(std::shared_ptr<Handle>(origin_of(variable).leaf)));
}

void StrategyCase::keep_constants(const Json& json) {
  if (is_tensor_json(json)) {
    constants_.emplace(json, read_tensor(json));
  } else if (json.is_structured()) {
    for (const Json& part : json) keep_constants(part);
  }
}

at::Tensor StrategyCase::constant(const Json& json) const {
  const auto found = constants_.find(json);
  return found == constants_.end() ? read_tensor(json) : found->second;
}

void StrategyCase::emit(const std::string& label, const Frame& frame, Json value) {
  const std::string place = place_of(frame);
  const std::lock_guard lock(mutex_);
  emits_[label][place].push_back(std::move(value));
}

void StrategyCase::emit_context(const std::string& label, Json value) {
  const std::lock_guard lock(mutex_);
  emits_[label].push_back(std::move(value));
}

Json StrategyCase::take_emits() {
  const std::lock_guard lock(mutex_);
  return std::exchange(emits_, Json::object());
}

void StrategyCase::keep_context(const std::string& name, const ReplicaContext& context) {
  const std::lock_guard lock(mutex_);
  contexts_.insert_or_assign(name, context);
}

ReplicaContext StrategyCase::kept_context(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = contexts_.find(name);
  if (found == contexts_.end()) throw CaseFault("no context was kept as '" + name + "'");
  return found->second;
}

void StrategyCase::set_environment(const std::string& name,
                                   const std::optional<std::string>& value) {
  const char* const before = std::getenv(name.c_str());
  environment_.emplace(name, before == nullptr ? std::nullopt : std::optional<std::string>(before));
  set_variable_of_environment(name, value);
}

}  // namespace cohort::conformance::strategy
