// SPDX-License-Identifier: Apache-2.0
// Epochs: steps that belong to one worker each, numbered, and scheduled ahead of the caller.
#include <algorithm>
#include <utility>

#include "cohort/coordinator/internal/callers.h"
#include "cohort/coordinator/internal/runtime.h"
#include "cohort/core/log.h"
#include "cohort/core/string_tensor.h"
#include "cohort/variable/detail/hyperparameter.h"

namespace cohort::coordinator {
namespace {

// Of the closures that a worker has in flight.
constexpr std::size_t kStepsAhead = 2;
constexpr std::size_t kBeforeUnknownEnd = 2;
// Steps that have ended and that a slow caller has not taken: their results take memory.
constexpr std::size_t kFinishedMax = 1024;
// The iterator of an epoch is its function's first resource.
constexpr std::int64_t kEpochResource = 0;

// Tensors as they are now, whatever their owner writes there during the epoch.
std::vector<Nest> private_arguments(const std::vector<Nest>& arguments) {
  std::vector<Nest> own;
  for (const Nest& argument : arguments) {
    own.push_back(argument.map_leaves([](const Nest& leaf) -> Nest {
      if (!leaf.is_tensor() || StringTensor::is(leaf.tensor())) return leaf;
      return leaf.tensor().detach().clone().requires_grad_(leaf.tensor().requires_grad());
    }));
  }
  return own;
}

void check_finite_data(const WorkerDatasets& datasets) {
  const std::vector<std::int64_t>& cardinalities = datasets.cardinalities();
  for (std::size_t i = 0; i < cardinalities.size(); ++i) {
    COHORT_CHECK(cardinalities[i] != kInfiniteCardinality, ErrorCode::invalid_argument,
                 "[coordinator.run_epoch] expected a dataset that ends, got one without an end (of "
                 "worker:",
                 i, "); leave out repeat(), or schedule() a fixed number of steps");
  }
}

Error epoch_is_over() {
  return Error(
      ErrorCode::failed_precondition,
      "[coordinator.run_epoch] expected an epoch that goes on, got one that has ended with "
      "an error; begin another one");
}

}  // namespace

void check_draws(bool does_draw, const std::string& step) {
  COHORT_CHECK(does_draw, ErrorCode::invalid_argument,
               "[coordinator.run_epoch] expected a step that draws from its iterator, got '", step,
               "', which draws nothing and would run for ever; call next() of its "
               "iterator in it");
}

std::shared_ptr<EpochRun> Runtime::begin_epoch(const Function& fn,
                                               const std::shared_ptr<WorkerDatasets>& datasets,
                                               std::vector<Nest> arguments) {
  check_outside_step("run_epoch");
  check_running("run_epoch");
  COHORT_CHECK(
      fn.state()->registered_name.empty(), ErrorCode::invalid_argument,
      "[coordinator.run_epoch] expected a function that is traced, got the registered one '",
      fn.name(), "', which can draw no elements; write the step as a cohort::Function");
  COHORT_CHECK(fn.state()->arity == arguments.size() + 1, ErrorCode::invalid_argument,
               "[coordinator.run_epoch] expected a step that takes the iterator and as many "
               "arguments as are given, ",
               arguments.size(), ", got '", fn.name(), "', which takes ", fn.state()->arity,
               " arguments in all");
  check_finite_data(*datasets);
  datasets_.warn_of_whole(*datasets);
  const auto iterator = create_iterator(datasets, datasets->begin_epoch());
  arguments.insert(arguments.begin(), Nest(std::shared_ptr<Handle>(iterator)));
  fn.convert_numbers(arguments);
  function::BoundArguments bound = function::bind_arguments(arguments);
  if (take_values_of_reads(arguments, bound)) bound = function::bind_arguments(arguments);
  check_iterators(bound);
  check_tensors(*home_, fn, arguments, bound);
  auto epoch =
      std::make_shared<EpochRun>(fn, private_arguments(arguments), datasets->changing_order(),
                                 connection_.num_workers(), iterator->files());
  for (std::uint32_t worker = 0; worker < connection_.num_workers(); ++worker) {
    const std::int64_t elements = datasets->cardinality_of(worker);
    if (elements >= 0) epoch->progress.expect(worker, static_cast<std::uint64_t>(elements));
  }
  const Lock lock(mutex_);
  std::erase_if(epochs_, [](const auto& one) { return one.expired(); });
  epochs_.push_back(epoch);
  return epoch;
}

// A step that finds the end of the data holds its number until the worker says so, and meanwhile
// steps of other workers get the numbers above it. So few are sent where the end is not known.
std::size_t Runtime::open_steps_max(const EpochRun& epoch, std::size_t worker) const {
  if (epoch.has_schedule && !epoch.progress.knows_end(worker)) return kBeforeUnknownEnd;
  return kStepsAhead * workers_[worker].window.size();
}

// One that has ended already; says whether a worker should get more steps.
std::optional<EpochStep> Runtime::take_finished(EpochRun& epoch, bool& wants_steps) {
  const Lock lock(mutex_);
  wants_steps = false;
  if (!epoch.is_over && !epoch.error && epoch.finished.size() < kFinishedMax) {
    for (std::size_t i = 0; i < workers_.size(); ++i)
      wants_steps =
          wants_steps || epoch.progress.wants_step(i, open_steps_max(epoch, i) / kStepsAhead + 1);
  }
  if (epoch.finished.empty() || wants_steps) return std::nullopt;
  EpochStep step = std::move(epoch.finished.front());
  epoch.finished.pop_front();
  return step;
}

std::optional<EpochStep> Runtime::next_step(const std::shared_ptr<EpochRun>& epoch) {
  check_outside_step("run_epoch");
  check_running("run_epoch");
  if (options_.run_eagerly) {
    raise_eager_error(*epoch);
    return next_eager_step(*epoch);
  }
  if (has_program_requests_) answer_program_requests();  // also where a step has ended meanwhile
  bool wants_steps = false;
  if (std::optional<EpochStep> step = take_finished(*epoch, wants_steps)) return step;
  std::shared_ptr<StepFunction> step;
  if (wants_steps) {
    step = step_for(epoch->function, epoch->arguments);
    check_draws(step->traced().draws_from(kEpochResource), step->name());
  }
  // Without a turn, so that others may schedule meanwhile: a step is put at once or not at all.
  const FetcherCount counted(*this);
  const Verdict verdict = settle({.call = "run_epoch", .epoch = epoch.get()},
                                 [&](Actions& actions) COHORT_NO_THREAD_SAFETY_ANALYSIS {
                                   return ask_for_step(epoch, step, actions);
                                 });
  if (verdict.kind == Verdict::Kind::raise) {
    const Lock lock(mutex_);
    epoch->is_over = true;
    if (!epoch->error) epoch->error = verdict.error;
    throw *verdict.error;
  }
  return end_of(*epoch);
}

// Proceeds when there is a step to hand out, or nothing comes any more.
Verdict Runtime::ask_for_step(const std::shared_ptr<EpochRun>& epoch,
                              const std::shared_ptr<StepFunction>& step, Actions& actions) {
  check_running("run_epoch");  // stop() has taken the steps, whose ends nobody tells the epoch
  const TimePoint now = Clock::system().now();
  const Verdict go_on{Verdict::Kind::wait, {}};
  if (epoch->is_over) return {};
  if (queue_.has_error()) return epoch->finished.empty() ? queue_.join(now, actions) : Verdict{};
  const bool has_rest = epoch->has_no_rate && epoch->progress.has_open();
  if (epoch->error && !has_rest) return {};
  if (queue_.has_waiting_for_program()) return {Verdict::Kind::trace, {}};
  const bool may_put = step != nullptr && !epoch->error;
  if (may_put) epoch->has_schedule = step->varies_with_updates();
  for (std::uint32_t worker = 0; may_put && worker < workers_.size(); ++worker) {
    while (epoch->progress.wants_step(worker, open_steps_max(*epoch, worker))) {
      Verdict verdict = put_step(epoch, worker, step, actions);
      if (verdict.kind != Verdict::Kind::proceed) return verdict;
    }
  }
  return epoch->finished.empty() && !epoch->progress.is_over() ? go_on : Verdict{};
}

Verdict Runtime::put_step(const std::shared_ptr<EpochRun>& epoch, std::uint32_t worker,
                          const std::shared_ptr<StepFunction>& step, Actions& actions) {
  const TimePoint now = Clock::system().now();
  function::BoundArguments bound = function::bind_arguments(epoch->arguments);
  Pending pending;
  pending.function = step;
  pending.resources = std::move(bound.resources);
  pending.arguments.share(std::move(bound.tensors));
  pending.in_epoch = {.run = epoch, .worker = worker, .step = epoch->progress.add_step(worker)};
  if (queue_.in_flight() + queue_.queued() == 0) last_progress_ = now;
  const ClosureId id = numbers_.next_closure++;
  admit(id, std::move(pending));
  Verdict verdict = queue_.put_on(worker, id, now, actions);
  if (verdict.kind != Verdict::Kind::proceed) pending_.erase(id);
  return verdict;
}

// When it is sent for the first time: steps that wait may never run, and others go before them.
// Returns false, and the epoch has the error, where a learning rate has no value.
bool Runtime::capture_for_step(Pending& pending) {
  EpochPlace& place = pending.in_epoch;
  EpochRun& epoch = *place.run;
  if (epoch.has_no_rate) return false;
  place.is_counted = !epoch.progress.expects_end(place.worker, place.step);
  pending.captured_at = hyperparameter_time();
  try {
    pending.captured = place.is_counted ? pending.function->captured(pending.counted)
                                        : pending.function->captured_uncounted();
    return true;
  } catch (...) {
    epoch.has_no_rate = true;
    if (!epoch.error) epoch.error = current_error();
    return false;
  }
}

// Nothing of their epochs that has not been sent leaves any more. Their slots are free again.
void Runtime::drop_refused(const Actions& refused) {
  const TimePoint now = Clock::system().now();
  Actions actions;
  for (const Action& one : refused) {
    const auto found = pending_.find(one.closure);
    COHORT_ASSERT(found != pending_.end());
    const EpochRun* epoch = found->second.in_epoch.run.get();
    for (const auto& [id, pending] : pending_)
      if (pending.in_epoch.run.get() == epoch && pending.epoch == 0)
        queue_.withdraw(id, now, actions);
  }
  // No worker has heard of them.
  std::erase_if(actions, [](const Action& action) { return action.kind == Action::Kind::cancel; });
  for (const Action& one : refused) {
    queue_.ended({.closure = one.closure, .worker = one.worker, .kind = Ended::Kind::cancelled},
                 now, actions);
  }
  carry_out(actions);
}

// What next() gives when it has not to wait any more.
std::optional<EpochStep> Runtime::end_of(EpochRun& epoch) {
  std::optional<Error> error;
  {
    const Lock lock(mutex_);
    if (!epoch.finished.empty()) {
      EpochStep step = std::move(epoch.finished.front());
      epoch.finished.pop_front();
      return step;
    }
    if (epoch.is_over) {
      if (epoch.error) throw epoch_is_over();
      return std::nullopt;
    }
    epoch.is_over = true;
    if (!epoch.error) epoch.error = epoch.progress.contradiction();
    const std::vector<std::uint64_t> steps = epoch.progress.steps();
    if (!epoch.error && std::all_of(steps.begin(), steps.end(), [](auto n) { return n == 0; })) {
      epoch.error =
          Error(ErrorCode::out_of_range,
                "[coordinator.run_epoch] expected elements for '" + epoch.function.name() +
                    "', got none: the dataset is empty on every worker; check its files "
                    "and how it is sharded");
    }
    error = epoch.error;
    Actions actions;
    if (error) withdraw_steps(epoch, actions);
    carry_out(actions);
  }
  flush();
  if (error) throw *error;
  return std::nullopt;
}

void Runtime::withdraw_steps(EpochRun& epoch, Actions& actions) {
  for (const auto& [id, pending] : pending_) {
    if (pending.in_epoch.run.get() == &epoch) queue_.withdraw(id, Clock::system().now(), actions);
  }
}

void Runtime::give_up(EpochRun& epoch, const std::optional<Error>& why) noexcept {
  try {
    std::deque<EpochStep> unwanted;  // they go unlocked
    {
      const Lock lock(mutex_);
      epoch.is_over = true;
      if (!epoch.error) epoch.error = why;
      unwanted.swap(epoch.finished);
      Actions actions;
      withdraw_steps(epoch, actions);
      carry_out(actions);
    }
    flush();
  } catch (...) {
    log_warn("the steps of an epoch that was given up run on: ", current_error().what());
  }
}

void Runtime::resolve_step(Pending& pending, const std::optional<Error>& error) {
  const EpochPlace& place = pending.in_epoch;
  EpochRun& epoch = *place.run;
  epoch.progress.close_step(place.worker);
  if (error) {
    if (!epoch.error) epoch.error = error;
    return;
  }
  if (place.is_end) return epoch.progress.note_end(place.worker, place.step);
  epoch.progress.note_run(place.worker, place.step);
  try {
    if (!place.is_counted) {  // its data has more elements than it said
      static_cast<void>(pending.function->captured(pending.counted));
      pending.counted.keep();
    }
    Nest result = pending.function->result_of(std::move(pending.reported));
    if (!epoch.is_over)
      epoch.finished.push_back({place.worker, place.step, place.rows, std::move(result)});
  } catch (...) {  // outputs that do not fill the function's result
    if (!epoch.error) epoch.error = current_error();
  }
}

// Of a worker that may draw its elements again from the beginning.
bool Runtime::check_order(EpochRun& epoch, std::uint32_t worker) const {
  if (epoch.changing_order.empty() || epoch.error || !epoch.progress.has_begun(worker) ||
      !epoch.progress.waits_for(worker))
    return true;
  const std::string name = "worker:" + std::to_string(worker);
  epoch.error =
      Error(ErrorCode::failed_precondition,
            "[coordinator.run_epoch] expected the elements of " + name +
                ", which was lost or runs a step again, in the same order as before, got a dataset "
                "that may yield them in another one (" +
                epoch.changing_order +
                "): some would come twice and others never; set deterministic to true, and start "
                "the epoch again from saved values",
            ErrorCause::application)
          .at(name);
  return false;
}

void Runtime::check_orders(std::uint32_t lost_worker) {
  for (const std::weak_ptr<EpochRun>& weak : epochs_) {
    if (const std::shared_ptr<EpochRun> epoch = weak.lock())
      if (!epoch->is_over) check_order(*epoch, lost_worker);
  }
}

std::string Runtime::debtors_of(const EpochRun& epoch) const {
  std::string names;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (!epoch.progress.waits_for(i)) continue;
    names += (names.empty() ? "worker:" : ", worker:") + std::to_string(i);
    if (worker.is_ready) continue;
    names += worker.refusal.empty() ? " (away" : " (away: " + worker.refusal;
    names += "; start it again: no other worker has its part of the data)";
  }
  return names.empty() ? debtors() : names;
}

// Of a closure that ran beside the epoch, which ends it as it does on workers.
void Runtime::raise_eager_error(EpochRun& epoch) {
  std::optional<Error> error;
  {
    const Lock lock(mutex_);
    if (epoch.is_over) return;
    error = std::exchange(eager_error_, std::nullopt);
    if (!error) return;
    epoch.is_over = true;
    epoch.error = error;
  }
  throw Error(*error);
}

// All workers' elements, one worker after the other.
std::optional<EpochStep> Runtime::next_eager_step(EpochRun& epoch) {
  const auto stand_ins = home_->lock_stand_ins();
  const Lock tracing(tracing_);
  ClosureId id = 0;
  while (epoch.eager_worker < connection_.num_workers()) {
    {
      const Lock lock(mutex_);
      if (epoch.is_over && epoch.error) throw epoch_is_over();
      id = numbers_.next_closure++;
    }
    const std::uint32_t worker = epoch.eager_worker;
    try {
      const std::optional<EagerSteps::Run> run =
          eager_steps_.run_next(epoch.function, epoch.arguments, id, worker);
      const VariableTraffic traffic = eager_steps_.take_traffic();
      const Lock lock(mutex_);
      if (!run) {
        epoch.progress.note_end(worker, epoch.progress.steps()[worker]);
        ++epoch.eager_worker;
        continue;
      }
      count_eager_end(std::nullopt, traffic);
      const std::uint64_t step = epoch.progress.steps()[worker];
      epoch.progress.note_run(worker, step);
      return EpochStep{worker, step, run->rows, run->result};
    } catch (...) {
      const VariableTraffic traffic = eager_steps_.take_traffic();
      const Lock lock(mutex_);
      epoch.is_over = true;
      epoch.error = current_error();
      count_eager_end(epoch.error, traffic);
      throw;
    }
  }
  return end_of(epoch);
}

}  // namespace cohort::coordinator
