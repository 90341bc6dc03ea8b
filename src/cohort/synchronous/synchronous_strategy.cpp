// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/synchronous_strategy.h"

#include <c10/core/StreamGuard.h>
#include <torch/cuda.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "cohort/core/blas.h"
#include "cohort/core/call_site.h"
#include "cohort/core/error.h"
#include "cohort/core/task_progress.h"
#include "cohort/input/input_host.h"
#include "cohort/replicas/replica_devices.h"
#include "cohort/replicas/replica_threads.h"
#include "cohort/strategy/backward_context.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/synchronous/mirrored/central_copies.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/synchronous/synchronous_variables.h"
#include "cohort/synchronous/traced/traced_programs.h"
#include "cohort/synchronous/undo/optimizer_gradients.h"
#include "cohort/synchronous/undo/step_undo.h"
#include "cohort/workers/current_host.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort {
namespace {

std::atomic<int> logical_cpus = 1;

thread_local SyncOnReadScope* innermost_scope = nullptr;

CrossDeviceOps checked(CrossDeviceOps ops) {
  COHORT_CHECK(ops <= CrossDeviceOps::hierarchical_copy, ErrorCode::invalid_argument,
               "[strategy.mirrored] expected a CrossDeviceOps, got the number ",
               static_cast<int>(ops));
  return ops;
}

Device local_device(const std::string& name, std::string_view strategy) {
  const Device device = Device::parse(name);
  COHORT_CHECK(device.is_local(), ErrorCode::invalid_argument, "[strategy.", strategy,
               "] expected devices of this process, got ", device.to_string());
  // Every CPU:n exists, as in TensorFlow: several replicas may share the one CPU.
  if (device.type == "CPU") return device;
  const int gpus = static_cast<int>(torch::cuda::device_count());
  const bool is_there = device.type == "GPU" && device.index < gpus;
  COHORT_CHECK(is_there, ErrorCode::invalid_argument, "[strategy.", strategy,
               "] expected devices that this process has, got ", device.to_string(),
               "; there are CPU:0, CPU:1, … and ",
               gpus == 0   ? std::string("no GPU")
               : gpus == 1 ? std::string("GPU:0")
                           : "GPU:0 to GPU:" + std::to_string(gpus - 1));
  return device;
}

// Without names, returns all GPUs, or this many CPUs. `strategy` is for messages.
std::vector<Device> replica_devices(const std::vector<std::string>& names, int cpus,
                                    std::string_view strategy) {
  std::vector<Device> devices;
  for (const std::string& name : names) {
    const Device device = local_device(name, strategy);
    COHORT_CHECK(std::ranges::find(devices, device) == devices.end(), ErrorCode::invalid_argument,
                 "[strategy.", strategy, "] expected each device once, got ", device.to_string(),
                 " twice");
    devices.push_back(device);
  }
  if (!devices.empty()) return devices;
  const int gpus = static_cast<int>(torch::cuda::device_count());
  for (int i = 0; i < gpus; ++i) devices.push_back({.type = "GPU", .index = i});
  if (!devices.empty()) return devices;
  for (int i = 0; i < cpus; ++i) devices.push_back({.type = "CPU", .index = i});
  return devices;
}

// Throws inside a replica of a strategy other than the default one.
void check_outside_replicas(std::string_view method) {
  const ReplicaContext* replica = get_replica_context();
  COHORT_CHECK(replica == nullptr || &replica->strategy() == &default_strategy(),
               ErrorCode::invalid_argument, "[input.", method,
               "] expected cross-replica context, got replica ",
               replica->replica_id_in_sync_group(), " of '", replica->strategy().name(),
               "': draw from a distributed iterator outside run() and pass the element to run()");
}

// Parameters are compared at the start of each iterator, before an epoch is trained for nothing.
input::InputHost::Exchange exchange_of(std::shared_ptr<internal::StrategyWorkers> workers,
                                       std::weak_ptr<internal::MirroredHome> home) {
  return [workers = std::move(workers), home = std::move(home)](
             const input::InputExchange& what, const std::function<Bytes()>& make) {
    if (const auto known = what.compares_values ? home.lock() : nullptr) {
      std::vector<Variable> parameters = known->variables();
      std::erase_if(parameters, [](const Variable& each) { return !each.is_trainable(); });
      known->check_values_agree(what.call, parameters);
    }
    return workers->exchange({.call = what.call, .text = what.text, .combines = false},
                             [&]() -> internal::StrategyWorkers::Message {
                               return {"", make()};
                             });
  };
}

}  // namespace

SynchronousStrategy::SynchronousStrategy(input::InputHost&& host,
                                         const std::vector<std::string>& device_names,
                                         internal::VariableKind kind, int cpus,
                                         CrossDeviceOps cross_device_ops)
    : threads_(std::make_unique<internal::ReplicaThreads>()) {
  host.devices = replica_devices(device_names, cpus, host.strategy);
  take_blas_memory(host.devices.size());  // before the others wait for this process
  host.check_context = check_outside_replicas;
  workers_ = std::make_shared<internal::StrategyWorkers>(host.group ? host.group->split() : nullptr,
                                                         host.timeout, host.num_local_replicas(),
                                                         host.worker_calls);
  std::vector<c10::Device> devices;
  for (const Device& device : host.devices) devices.push_back(internal::torch_device(device));
  home_ = std::make_shared<internal::MirroredHome>(
      this, host.strategy, std::move(devices),
      kind == internal::VariableKind::central ? internal::VariableKind::plain : kind,
      cross_device_ops, workers_);
  host.exchange = exchange_of(workers_, home_);
  host.tell_failure = [workers = workers_] {
    workers->begin_run();
    workers->tell_failure();
  };
  functions_ = std::make_shared<internal::FunctionHost>(
      *this, host.devices, internal::StepReplicas{home_, threads_.get()});
  host_ = internal::CurrentHost::of(std::move(host));
  variables_ = std::make_shared<internal::SynchronousVariables>(
      *this, home_, kind == internal::VariableKind::central);
}

SynchronousStrategy::~SynchronousStrategy() {
  if (!home_) return;
  home_->agreement().warn_if_alone();
  home_->forget_owner();
}

void SynchronousStrategy::keep_values_in(std::shared_ptr<internal::CentralValues> values) {
  home_->keep_values_in(std::move(values));
}
internal::VariableKind SynchronousStrategy::kind_of_central_values(std::size_t devices) {
  return devices > 1 ? internal::VariableKind::central : internal::VariableKind::plain;
}

std::shared_ptr<const input::InputHost> SynchronousStrategy::host() const { return host_->get(); }
Duration SynchronousStrategy::timeout() const { return host_->first().timeout; }
void SynchronousStrategy::use_group(std::shared_ptr<collective::Group> group, bool is_first) {
  workers_->use(group->split());
  host_->use_group(std::move(group), is_first);
}
void SynchronousStrategy::end_group() { host_->end_group(); }

std::string_view SynchronousStrategy::name() const { return host_->first().strategy; }
int SynchronousStrategy::num_replicas_in_sync() const { return host()->num_replicas_in_sync(); }
const std::vector<Device>& SynchronousStrategy::devices() const { return host_->first().devices; }
int SynchronousStrategy::num_workers() const { return host()->num_workers(); }
int SynchronousStrategy::worker() const { return host()->worker(); }

OneDeviceStrategy::OneDeviceStrategy(const std::string& device)
    : SynchronousStrategy(
          {.strategy = "one_device", .handles_partial_batches = false, .wraps_values = false},
          {device}, internal::VariableKind::plain) {}

MirroredStrategy::MirroredStrategy(const std::vector<std::string>& devices,
                                   const MirroredOptions& options)
    : SynchronousStrategy({.strategy = "mirrored", .allows_per_replica = true}, devices,
                          internal::VariableKind::mirrored, logical_cpus,
                          checked(options.cross_device_ops)) {}

void set_logical_cpu_devices(int count) {
  COHORT_CHECK(count > 0, ErrorCode::invalid_argument,
               "[strategy.set_logical_cpu_devices] expected a number > 0, got ", count);
  logical_cpus = count;
}

CentralStorageStrategy::CentralStorageStrategy(const std::vector<std::string>& compute_devices,
                                               const std::string& parameter_device)
    : SynchronousStrategy({.strategy = "central_storage"}, compute_devices,
                          internal::VariableKind::central),
      parameter_device_("CPU:0") {
  if (!parameter_device.empty()) {
    parameter_device_ = local_device(parameter_device, name()).to_string();
  } else if (devices().size() == 1) {
    parameter_device_ = devices().front().to_string();
  }
}

std::vector<std::string> SynchronousStrategy::worker_devices() const {
  std::vector<std::string> names;
  for (const Device& device : devices()) names.push_back(device.to_string());
  return names;
}

int SynchronousStrategy::num_local_replicas() const { return host_->first().num_local_replicas(); }

void SynchronousStrategy::run_replicas(const std::function<void(ReplicaContext&)>& body) {
  const internal::CallSite site("is in run()");
  const auto run_once = [&] {
    const internal::UsedModules::ModesScope modes(home_->modules_around_step());
    internal::RunAgreement::Scope run(home_->agreement());
    internal::CentralCopies::Run central(home_->is_in_replica() ? nullptr : home_.get());
    internal::StepUndo::Scope undo(home_->undo_around_step(),
                                   {.is_only_replica = !home_->has_several_replicas()});
    const internal::GradientsScope gradients(home_->optimizer_gradients(), undo);
    run_here(body);
    if (!home_->is_in_replica()) home_->modules().check_used();
    run.finish();
    central.finish();
    undo.keep();
  };
  if (!home_->has_workers() || home_->is_in_replica()) return run_once();
  workers_->in_run([&] {
    run_once();
    ProgressMeter::of_process().note_step();
  });
}

void SynchronousStrategy::run_here(const std::function<void(ReplicaContext&)>& body) {
  const int replicas = num_local_replicas();
  const int first = home_->first_replica();
  if (home_->gpus() == 0) {
    internal::in_replica_contexts(*this, *threads_, first, replicas, body);
  } else {
    const std::vector<c10::Device>& devices = home_->devices();
    const std::vector<c10::Stream> streams = internal::current_streams(devices);
    const internal::SeveralGpusScope counted(home_->gpus() > 1);
    const auto on_own_device = [&](ReplicaContext& replica) {
      const c10::MultiStreamGuard streams_of_caller(streams);
      const internal::DeviceScope device(
          devices[static_cast<std::size_t>(replica.local_replica_id())]);
      const internal::BackwardContextScope backward(&replica);
      body(replica);
    };
    internal::in_replica_contexts(*this, *threads_, first, replicas, on_own_device);
  }
}

internal::StrategyTraits SynchronousStrategy::traits() const {
  return {.is_multi_worker = num_workers() > 1,
          .is_first_worker = worker() == 0,
          .is_between_graph = host()->group != nullptr,
          .updates_only_own_variables = host()->wraps_values,
          .runs_on_all_devices = true,
          .cross_device_ops = home_->cross_device_ops()};
}

internal::StrategyTraits CentralStorageStrategy::traits() const {
  return {.is_between_graph = true};
}

SyncOnReadScope::SyncOnReadScope() : outer_(std::exchange(innermost_scope, this)) {
  if (const ReplicaContext* const replica = get_replica_context()) replica_ = *replica;
}

SyncOnReadScope::~SyncOnReadScope() { innermost_scope = outer_; }

const at::Tensor& SyncOnReadScope::kept(const VariableImpl& variable, at::Tensor value) {
  return innermost_scope->values_.insert_or_assign(&variable, std::move(value)).first->second;
}

// A run's first replica is on its caller's thread, the others are not: what the caller has opened
// concerns none of them.
bool SyncOnReadScope::is_here() {
  if (innermost_scope == nullptr) return false;
  const ReplicaContext* const replica = get_replica_context();
  const std::optional<ReplicaContext>& made_in = innermost_scope->replica_;
  if (replica == nullptr || !made_in) return replica == nullptr && !made_in;
  return internal::StrategyAccess::is_same(*replica, *made_in);
}

}  // namespace cohort
