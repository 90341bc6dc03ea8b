// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/cluster_coordinator.h"

#include <c10/util/Exception.h>

#include "cohort/coordinator/functions/scheduled_arguments.h"
#include "cohort/coordinator/held_epochs.h"
#include "cohort/coordinator/open_closures.h"
#include "cohort/coordinator/runtime/coordinator_options.h"
#include "cohort/coordinator/runtime/runtime.h"
#include "cohort/core/error.h"
#include "cohort/function/step_scope.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/parameter_server_strategy/server_variables.h"

namespace cohort {
namespace coordinator {

IteratorHandle::~IteratorHandle() {
  const std::shared_ptr<Runtime> runtime = runtime_.lock();
  if (runtime) runtime->release_iterator(id_, std::move(datasets_));
}

}  // namespace coordinator

using coordinator::Runtime;

namespace {

// The last handle stops the runtime on its thread, even if others still refer to it. The deleter
// then drops the home and the runtime itself, since the strategy's weak reference keeps the deleter
// alive.
std::shared_ptr<Runtime> start_runtime(ParameterServerStrategy& strategy,
                                       const CoordinatorOptions& options, CoordinatorLease& lease)
    COHORT_REQUIRES(lease.mutex) {
  auto made = std::make_shared<Runtime>(strategy, options, lease.numbers);
  made->start();
  lease.is_taken = true;
  std::shared_ptr<Runtime> runtime(made.get(),
                                   [made, &lease, home = strategy.home()](Runtime* ending) mutable {
                                     const std::shared_ptr<void> keeps_lease = std::move(home);
                                     ending->stop();
                                     {
                                       const Lock lock(lease.mutex);
                                       lease.numbers = ending->numbers();
                                       lease.is_taken = false;
                                     }
                                     lease.changed.notify_all();
                                     made.reset();
                                   });
  lease.coordinator = runtime;
  return runtime;
}

// The dataset that fn returns for each worker.
std::vector<Dataset> datasets_of(const ClusterCoordinator& coordinator,
                                 const std::function<Dataset(const InputContext&)>& fn) {
  std::vector<Dataset> datasets;
  const StrategyScope scope = coordinator.strategy().scope();
  const DatasetFunctionScope making;
  const std::int64_t workers = coordinator.num_workers();
  for (std::int64_t i = 0; i < workers; ++i) {
    try {
      datasets.push_back(
          fn({.num_input_pipelines = workers, .input_pipeline_id = i, .num_replicas_in_sync = 1}));
    } catch (const c10::Error&) {  // its what() would contain a page of stack frames
      throw current_error().during("making the dataset of worker:" + std::to_string(i));
    }
  }
  return datasets;
}

}  // namespace

std::shared_ptr<Runtime> coordinator::runtime_of(const ParameterServerStrategy& strategy) {
  CoordinatorLease& lease = strategy.home()->coordinator_lease();
  const Lock lock(lease.mutex);
  return std::static_pointer_cast<Runtime>(lease.coordinator.lock());
}

std::size_t coordinator::open_closures_of(const ParameterServerStrategy& strategy) {
  const std::shared_ptr<Runtime> runtime = runtime_of(strategy);
  return runtime == nullptr ? 0 : runtime->pending_count();
}

std::shared_ptr<void> coordinator::hold_epochs(const ParameterServerStrategy& strategy) {
  const std::shared_ptr<Runtime> runtime = runtime_of(strategy);
  return runtime == nullptr ? nullptr : runtime->hold_epochs();
}

ClusterCoordinator::ClusterCoordinator(ParameterServerStrategy& strategy,
                                       CoordinatorOptions options) {
  const bool is_default = options == CoordinatorOptions();
  options = coordinator::internal::checked(options);
  CoordinatorLease& lease = strategy.home()->coordinator_lease();
  const Lock lock(lease.mutex);
  // The previous coordinator may be ending on another thread.
  const bool is_settled =
      lease.changed.wait(lease.mutex, strategy.home()->connection().control_deadline(),
                         [&]() COHORT_REQUIRES(lease.mutex) {
                           runtime_ = std::static_pointer_cast<Runtime>(lease.coordinator.lock());
                           return runtime_ != nullptr || !lease.is_taken;
                         });
  COHORT_CHECK(
      is_settled, ErrorCode::deadline_exceeded,
      "[coordinator.construct] expected the strategy's last coordinator to end within ",
      seconds_of(strategy.home()->connection().options().timeout),
      " s, got no end; see what keeps it running (a call in it, or a function that it traces), "
      "or raise ClusterOptions::timeout");
  if (runtime_ == nullptr) {
    runtime_ = start_runtime(strategy, options, lease);
    return;
  }
  COHORT_CHECK(is_default || runtime_->options() == options, ErrorCode::failed_precondition,
               "[coordinator.construct] expected no options, or those of the coordinator that the "
               "strategy has already, got others; destroy that one first");
}

ParameterServerStrategy& ClusterCoordinator::strategy() const { return runtime_->strategy(); }

RemoteValue ClusterCoordinator::schedule_nests(const Function& fn, std::vector<Nest> arguments,
                                               const ScheduleOptions& options) {
  return runtime_->schedule(fn, std::move(arguments), options);
}

std::vector<RemoteValue> ClusterCoordinator::schedule_many(const Function& fn,
                                                           std::vector<std::vector<Nest>> calls,
                                                           const ScheduleOptions& options) {
  return runtime_->schedule_many(fn, std::move(calls), options);
}

void ClusterCoordinator::join() { runtime_->join(std::nullopt); }
bool ClusterCoordinator::join(Duration timeout) { return runtime_->join(timeout); }
bool ClusterCoordinator::done() { return runtime_->done(); }

Nest ClusterCoordinator::fetch(const Nest& values) {
  return values.map_leaves([this](const Nest& leaf) -> Nest {
    if (leaf.is_tensor())
      strategy().home()->check_is_no_stand_in("coordinator.fetch", leaf.tensor());
    if (leaf.kind() != Nest::Kind::handle) return leaf;
    auto state = std::dynamic_pointer_cast<coordinator::RemoteState>(leaf.handle());
    return state ? RemoteValue(std::move(state)).fetch() : leaf;
  });
}

PerWorkerDataset ClusterCoordinator::create_per_worker_dataset(
    const std::function<Dataset(const InputContext&)>& fn) {
  coordinator::check_outside_step("create_per_worker_dataset");
  return {runtime_->datasets().ship(datasets_of(*this, fn)), runtime_->shared_from_this()};
}

PerWorkerDataset ClusterCoordinator::create_per_worker_dataset(
    const std::function<DatasetFunction()>& fn) {
  DatasetFunction make;
  return create_per_worker_dataset([&](const InputContext& worker) {
    if (make == nullptr) make = fn();
    COHORT_CHECK(make != nullptr, ErrorCode::invalid_argument,
                 "[coordinator.create_per_worker_dataset] expected a function that returns a "
                 "function which makes a dataset, got an empty one");
    return make(worker);
  });
}

PerWorkerValue ClusterCoordinator::create_per_worker_value(const Function& fn) {
  coordinator::check_outside_step("create_per_worker_value");
  const auto datasets = datasets_of(*this, [&](const InputContext& worker) {
    return Dataset::from_tensors(Nest(function::worker_index_tensor(worker.input_pipeline_id)))
        .map(fn);
  });
  return PerWorkerValue(
      runtime_->create_iterator(runtime_->datasets().ship(datasets), {.is_value = true}));
}

PerWorkerValue ClusterCoordinator::create_per_worker_value(
    const std::function<Nest(const InputContext&)>& fn) {
  coordinator::check_outside_step("create_per_worker_value");
  const auto datasets = datasets_of(
      *this, [&](const InputContext& worker) { return Dataset::from_tensors(fn(worker)); });
  return PerWorkerValue(
      runtime_->create_iterator(runtime_->datasets().ship(datasets), {.is_value = true}));
}

PerWorkerDataset ClusterCoordinator::create_per_worker_dataset(const Dataset& dataset) {
  coordinator::check_outside_step("create_per_worker_dataset");
  return {runtime_->datasets().ship({dataset}), runtime_->shared_from_this()};
}

PerWorkerDataset ClusterCoordinator::distribute_dataset(const Dataset& dataset) {
  coordinator::check_outside_step("distribute_dataset");
  return {runtime_->datasets().distribute(dataset), runtime_->shared_from_this()};
}

EpochResult ClusterCoordinator::run_epoch_nests(const Function& step,
                                                const PerWorkerDataset& dataset,
                                                std::vector<Nest> arguments,
                                                const EpochOptions& options) {
  Epoch epoch = begin_epoch_nests(step, dataset, std::move(arguments), options);
  while (const std::optional<EpochStep> done = epoch.try_next()) {
    if (options.on_step) options.on_step(*done);
  }
  return epoch.result();
}

Epoch ClusterCoordinator::begin_epoch_nests(const Function& step, const PerWorkerDataset& dataset,
                                            std::vector<Nest> arguments,
                                            const EpochOptions& options) {
  return {runtime_->shared_from_this(),
          runtime_->begin_epoch(step, dataset.datasets(), std::move(arguments), options)};
}

CoordinatorStatistics ClusterCoordinator::statistics() const { return runtime_->statistics(); }
int ClusterCoordinator::num_workers() const {
  return static_cast<int>(runtime_->strategy().home()->connection().num_workers());
}

PerWorkerDataset::PerWorkerDataset(std::shared_ptr<coordinator::WorkerDatasets> datasets,
                                   std::shared_ptr<coordinator::Runtime> runtime)
    : datasets_(std::move(datasets)), runtime_(std::move(runtime)) {}

const ElementSpec& PerWorkerDataset::element_spec() const { return datasets_->spec(); }

Bytes PerWorkerDataset::save() const { return runtime_->save_position(*datasets_); }
void PerWorkerDataset::restore(std::span<const std::byte> position) const {
  runtime_->restore_position(*datasets_, position);
}

PerWorkerIterator PerWorkerDataset::iterator() const {
  return PerWorkerIterator(runtime_->create_iterator(datasets_));
}

PerWorkerValue::operator Nest() const { return Nest(std::shared_ptr<Handle>(handle_)); }
const ElementSpec& PerWorkerValue::spec() const { return handle_->spec(); }
PerWorkerIterator::operator Nest() const { return Nest(std::shared_ptr<Handle>(handle_)); }
const ElementSpec& PerWorkerIterator::element_spec() const { return handle_->spec(); }

}  // namespace cohort
