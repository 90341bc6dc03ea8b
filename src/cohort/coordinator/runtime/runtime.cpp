// SPDX-License-Identifier: Apache-2.0
// The calls of the coordinator's handles.
#include "cohort/coordinator/runtime/runtime.h"

#include <algorithm>
#include <utility>

#include "cohort/coordinator/epochs/epoch_position.h"
#include "cohort/coordinator/failure_policy.h"
#include "cohort/coordinator/functions/scheduled_arguments.h"
#include "cohort/core/address_room.h"
#include "cohort/core/error.h"

namespace cohort::coordinator {
namespace {

// References to an argument while it is scheduled: one in its nest, one among the inputs.
constexpr std::size_t kArgumentHandles = 2;

// An expanded tensor may be larger than memory, as its copy would be.
void check_memory(const Function& fn, const std::vector<at::Tensor>& arguments) {
  const std::uint64_t memory = host_memory_bytes();
  std::uint64_t bytes = 0;
  for (const at::Tensor& argument : arguments) bytes += argument.nbytes();
  COHORT_CHECK(bytes <= memory, ErrorCode::resource_exhausted,
               "[coordinator.schedule] expected arguments of '", fn.name(),
               "' that this host can copy, at most ", memory, " bytes, got ", bytes,
               " bytes; pass less, or let the step compute it");
}

// Counted from now on.
Deadline deadline_of(const ScheduleOptions& how) {
  return how.deadline ? Deadline::after(*how.deadline) : Deadline();
}

// Waits for the results of remote values among the arguments, and puts them in their places.
void fetch_remote_values(std::vector<Nest>& arguments) {
  for (Nest& argument : arguments) {
    argument = argument.map_leaves([](const Nest& leaf) -> Nest {
      if (leaf.kind() != Nest::Kind::handle) return leaf;
      auto state = std::dynamic_pointer_cast<RemoteState>(leaf.handle());
      return state ? RemoteValue(std::move(state)).fetch() : leaf;
    });
  }
}

}  // namespace

void Runtime::check_schedule(const Function& fn, std::span<const std::vector<Nest>> calls,
                             const ScheduleOptions& how) const {
  check_outside_step("schedule");
  for (const std::vector<Nest>& arguments : calls) {
    COHORT_CHECK(!fn.state()->registered_name.empty() || fn.state()->arity == arguments.size(),
                 ErrorCode::invalid_argument, "[coordinator.schedule] '", fn.name(), "' takes ",
                 fn.state()->arity, " arguments, got ", arguments.size());
  }
  context_->check_running("schedule");
  const int workers = static_cast<int>(context_->connection.num_workers());
  COHORT_CHECK(!how.worker || (*how.worker >= 0 && *how.worker < workers),
               ErrorCode::invalid_argument,
               "[coordinator.schedule] expected ScheduleOptions::worker from 0 to ", workers - 1,
               ", got ", how.worker.value_or(0));
  COHORT_CHECK(!how.deadline || *how.deadline > Duration::zero(), ErrorCode::invalid_argument,
               "[coordinator.schedule] expected a ScheduleOptions::deadline above 0, got ",
               seconds_of(how.deadline.value_or(Duration::zero())), " s");
}

PendingClosure Runtime::new_closure(const Function& fn, std::vector<Nest>& arguments,
                                    const ScheduleOptions& how,
                                    const std::shared_ptr<RemoteState>& result) {
  function::BoundArguments bound = prepare_arguments(*this, *context_->home, fn, arguments);
  check_memory(fn, bound.tensors);
  PendingClosure pending;
  try {
    pending.function = functions_.step_for(fn, arguments);
  } catch (const Error& error) {
    // As in tf, the closure fails, not this call.
    if (!is_broken_resource(error)) throw;
    pending.function = functions_.step_without_program(fn, arguments);
  }
  pending.resources = std::move(bound.resources);
  pending.arguments.keep(bound.tensors, kArgumentHandles);
  pending.captured_at = hyperparameter_time();
  pending.captured = pending.function->captured(pending.counted);
  pending.result = result;
  pending.priority = how.priority;
  return pending;
}

void Runtime::put(std::span<PendingClosure> closures, const ScheduleOptions& how,
                  Deadline deadline) {
  if (how.deadline) {
    deadline_watch_.start();
    for (PendingClosure& closure : closures)
      closure.deadline = {.at = deadline.time(), .after = *how.deadline};
  }
  if (how.worker) {
    callers_.put_on(static_cast<std::uint32_t>(*how.worker), closures);
  } else {
    callers_.put(closures);
  }
}

RemoteValue Runtime::schedule(const Function& fn, std::vector<Nest> arguments,
                              const ScheduleOptions& how) {
  const Deadline deadline = deadline_of(how);
  check_schedule(fn, {&arguments, 1}, how);
  if (how.moves_remote_values) fetch_remote_values(arguments);
  const auto result = std::make_shared<RemoteState>(weak_from_this());
  if (options().run_eagerly) {
    prepare_arguments(*this, *context_->home, fn, arguments);
    eager_.raise_error();
    eager_.run(fn, arguments, static_cast<std::uint32_t>(how.worker.value_or(0)), *result);
    return RemoteValue(result);
  }
  PendingClosure closure = new_closure(fn, arguments, how, result);
  put({&closure, 1}, how, deadline);
  return RemoteValue(result);
}

std::vector<RemoteValue> Runtime::schedule_many(const Function& fn,
                                                std::vector<std::vector<Nest>> calls,
                                                const ScheduleOptions& how) {
  const Deadline deadline = deadline_of(how);
  check_schedule(fn, calls, how);
  std::vector<RemoteValue> results;
  results.reserve(calls.size());
  if (options().run_eagerly) {
    for (std::vector<Nest>& arguments : calls)
      results.push_back(schedule(fn, std::move(arguments), how));
    return results;
  }
  std::vector<PendingClosure> closures;
  closures.reserve(calls.size());
  for (std::vector<Nest>& arguments : calls) {
    if (how.moves_remote_values) fetch_remote_values(arguments);
    const auto result = std::make_shared<RemoteState>(weak_from_this());
    closures.push_back(new_closure(fn, arguments, how, result));
    results.emplace_back(result);
    arguments.clear();
  }
  put(closures, how, deadline);
  return results;
}

bool Runtime::join(std::optional<Duration> timeout) {
  check_outside_step("join");
  eager_.raise_error();
  const bool have_all_ended = callers_.join(timeout);
  functions_.forget_unused();
  return have_all_ended;
}

bool Runtime::done() {
  check_outside_step("done");
  eager_.raise_error();
  return callers_.done();
}

std::shared_ptr<IteratorHandle> Runtime::create_iterator(std::shared_ptr<WorkerDatasets> datasets,
                                                         const IteratorHandle::Use& use) {
  check_outside_step("create_iterator");
  context_->check_running("create_iterator");
  return iterators_.create(std::move(datasets), use, weak_from_this());
}

std::shared_ptr<EpochRun> Runtime::begin_epoch(const Function& fn,
                                               const std::shared_ptr<WorkerDatasets>& datasets,
                                               std::vector<Nest> arguments,
                                               const EpochOptions& options) {
  check_outside_step("run_epoch");
  context_->check_running("run_epoch");
  check_epoch(fn, *datasets, arguments.size());
  datasets_.warn_of_whole(*datasets);
  const Pass pass = datasets->passes().begin();
  try {
    const auto iterator = create_iterator(datasets, {.pass = pass});
    arguments.insert(arguments.begin(), Nest(std::shared_ptr<Handle>(iterator)));
    prepare_arguments(*this, *context_->home, fn, arguments);
    return epochs_.begin(fn, *iterator, pass, arguments,
                         options.reads_snapshot ? snapshot_for(fn, arguments) : nullptr);
  } catch (...) {
    datasets->passes().give_back(pass);
    throw;
  }
}

// Traces the step first, to know what it reads.
std::shared_ptr<const ServerSnapshot> Runtime::snapshot_for(const Function& fn,
                                                            std::span<const Nest> arguments) {
  COHORT_CHECK(!this->options().run_eagerly, ErrorCode::unimplemented,
               "[coordinator.run_epoch] expected steps that workers run, got run_eagerly, with "
               "which steps read the values of now (step '",
               fn.name(),
               "'); leave out reads_snapshot, and train nothing meanwhile, or switch run_eagerly "
               "off");
  return std::make_shared<const ServerSnapshot>(*this,
                                                functions_.step_for(fn, arguments)->only_read());
}

std::shared_ptr<void> Runtime::hold_epochs() {
  epochs_.hold();
  return std::shared_ptr<void>(
      nullptr, [own = shared_from_this()](std::nullptr_t) { own->epochs_.release(); });
}

Bytes Runtime::save_position(const WorkerDatasets& datasets) {
  check_outside_step("save");
  const std::shared_ptr<void> hold = hold_epochs();
  return encode(position_in(*context_, datasets));
}

void Runtime::restore_position(const WorkerDatasets& datasets,
                               std::span<const std::byte> position) {
  check_outside_step("restore");
  set_position(*context_, datasets, decode_epoch_position(position));
}

std::optional<EpochStep> Runtime::next_step(const std::shared_ptr<EpochRun>& epoch) {
  check_outside_step("run_epoch");
  context_->check_running("run_epoch");
  if (options().run_eagerly) {
    std::optional<EpochStep> step = eager_.next_step(*epoch);
    return step ? std::move(step) : epochs_.end_of(*epoch);
  }
  dataset_programs_.answer_all();  // also if a step has ended meanwhile
  return epochs_.next_step(epoch);
}

CoordinatorStatistics Runtime::statistics() const {
  const RuntimeLock lock(*context_);
  CoordinatorStatistics statistics = context_->totals;
  for (const WorkerHealth& worker : pool_.health()) statistics.closures.push_back(worker.closures);
  return statistics;
}

std::size_t Runtime::pending_count() const {
  const RuntimeLock lock(*context_);
  return scheduler_.pending().size();
}

TaskHealth Runtime::health() const {
  const TimePoint now = Clock::system().now();
  TaskHealth health;
  health.incarnation = public_incarnation_;
  health.task = context_->connection.self().task;
  health.uptime = now - started_;
  health.last_error = context_->errors.get();
  CoordinatorHealth own;
  const RuntimeLock lock(*context_);
  const CoordinatorStatistics& totals = context_->totals;
  health.pushes_dropped = totals.pushes_dropped;
  health.pulled_bytes = totals.pulled_bytes;
  health.pushed_bytes = totals.pushed_bytes;
  health.broken_frames = totals.broken_frames;
  health.protocol_errors = totals.protocol_errors;
  if (context_->ends.last) health.since_last_end = now - *context_->ends.last;
  own.queued = scheduler_.queue().queued();
  own.in_flight = scheduler_.queue().in_flight();
  own.failed = context_->ends.failed;
  own.cancelled = context_->ends.cancelled;
  own.retries = totals.retries;
  own.traces = totals.traces;
  own.workers = pool_.health();
  for (const WorkerHealth& worker : own.workers) {
    own.completed += worker.closures;
    health.connections_lost += worker.times_lost;
  }
  health.coordinator = std::move(own);
  return health;
}

CoordinatorNumbers Runtime::numbers() {
  std::vector<std::uint64_t> left = iterators_.take_left();
  const RuntimeLock lock(*context_);
  CoordinatorNumbers numbers = context_->numbers;
  numbers.left_iterators = std::move(left);
  return numbers;
}

}  // namespace cohort::coordinator
