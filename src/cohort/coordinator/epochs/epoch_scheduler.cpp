// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/epochs/epoch_scheduler.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/string_tensor.h"

namespace cohort::coordinator {
namespace {

// Times the number of closures that a worker may have in flight.
constexpr std::size_t kStepsAhead = 2;
constexpr std::size_t kBeforeUnknownEnd = 2;
// Limits the memory of results that a slow caller has not taken yet.
constexpr std::size_t kFinishedMax = 1024;
// The iterator of an epoch is its function's first resource.
constexpr std::int64_t kEpochResource = 0;

// Copies of the tensors, so that their owner may write to them during the epoch.
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

}  // namespace

void check_epoch(const Function& fn, const WorkerDatasets& datasets, std::size_t arguments) {
  COHORT_CHECK(
      fn.state()->registered_name.empty(), ErrorCode::invalid_argument,
      "[coordinator.run_epoch] expected a function that is traced, got the registered one '",
      fn.name(), "', which can draw no elements; write the step as a cohort::Function");
  COHORT_CHECK(fn.state()->arity == arguments + 1, ErrorCode::invalid_argument,
               "[coordinator.run_epoch] expected a step that takes the iterator and as many "
               "arguments as are given, ",
               arguments, ", got '", fn.name(), "', which takes ", fn.state()->arity,
               " arguments in all");
  check_finite_data(datasets);
}

std::shared_ptr<EpochRun> EpochScheduler::begin(const Function& fn, const IteratorHandle& iterator,
                                                const Pass& pass,
                                                const std::vector<Nest>& arguments,
                                                std::shared_ptr<const ServerSnapshot> snapshot) {
  const WorkerDatasets& datasets = iterator.datasets();
  const std::uint32_t workers = context_.connection.num_workers();
  auto epoch =
      std::make_shared<EpochRun>(EpochRun{.function = fn,
                                          .arguments = private_arguments(arguments),
                                          .changing_order = datasets.changing_order(),
                                          .files = iterator.files(),
                                          .pass = pass.number,
                                          .seed = iterator.seed(context_.connection.options().seed),
                                          .snapshot = std::move(snapshot),
                                          .progress = internal::EpochProgress(workers)});
  for (std::uint32_t worker = 0; worker < workers; ++worker) {
    const std::int64_t elements = datasets.cardinality_of(worker);
    if (elements >= 0) epoch->progress.expect(worker, static_cast<std::uint64_t>(elements));
    if (pass.was_begun()) epoch->progress.begin_after(worker, pass.steps.at(worker));
  }
  datasets.passes().note_run(epoch);
  const RuntimeLock lock(context_);
  epochs_.add(epoch);
  return epoch;
}

// A step that finds the end of the data keeps its number until the worker reports it, and meanwhile
// steps of other workers get higher numbers. Therefore few steps are sent if the end is not known.
std::size_t EpochScheduler::open_steps_max(const EpochRun& epoch, std::uint32_t worker) {
  if (epoch.has_schedule && !epoch.progress.knows_end(worker)) return kBeforeUnknownEnd;
  return kStepsAhead * scheduler_.window_size(worker);
}

// Returns a step that has ended already; sets whether a worker should get more steps.
std::optional<EpochStep> EpochScheduler::take_finished(EpochRun& epoch, bool& wants_steps) {
  const RuntimeLock lock(context_);
  wants_steps = false;
  const bool may_send = !epoch.is_over && !epoch.error && !epochs_.are_held();
  if (may_send && epoch.finished.size() < kFinishedMax) {
    for (std::uint32_t i = 0; i < epoch.progress.num_workers(); ++i)
      wants_steps =
          wants_steps || epoch.progress.wants_step(i, open_steps_max(epoch, i) / kStepsAhead + 1);
  }
  return wants_steps ? std::nullopt : epoch.take_finished();
}

std::optional<EpochStep> EpochScheduler::next_step(const std::shared_ptr<EpochRun>& epoch) {
  bool wants_steps = false;
  if (std::optional<EpochStep> step = take_finished(*epoch, wants_steps)) return step;
  std::shared_ptr<StepFunction> step;
  if (wants_steps) {
    step = functions_.step_for(epoch->function, epoch->arguments);
    check_draws(step->traced().draws_from(kEpochResource), step->name());
  }
  // Takes no turn, so that others may schedule meanwhile: a step is put at once or not at all.
  callers_.settle({.call = "run_epoch", .epoch = epoch.get()},
                  [&](Actions& actions) COHORT_REQUIRES(runtime_lock) {
                    Verdict verdict = ask_for_step(epoch, step, actions);
                    if (verdict.kind == Verdict::Kind::raise) {
                      epoch->is_over = true;
                      if (!epoch->error) epoch->error = verdict.error;
                    }
                    return verdict;
                  });
  return end_of(*epoch);
}

// Proceeds if a step has ended, or if no more steps will end.
Verdict EpochScheduler::ask_for_step(const std::shared_ptr<EpochRun>& epoch,
                                     const std::shared_ptr<StepFunction>& step, Actions& actions) {
  context_.check_running(
      "run_epoch");  // stop() has taken the steps, so their ends are not reported to the epoch
  if (epoch->is_over) return {};
  if (scheduler_.queue().has_error())
    return epoch->finished.empty() ? scheduler_.join(actions) : Verdict{};
  const bool has_rest = epoch->has_no_rate && epoch->progress.has_open();
  if (epoch->error && !has_rest) return {};
  if (scheduler_.queue().has_waiting_for_program()) return {Verdict::Kind::trace, {}};
  const bool may_put = step != nullptr && !epoch->error && !epochs_.are_held();
  if (may_put) epoch->has_schedule = step->varies_with_updates();
  for (std::uint32_t worker = 0; may_put && worker < epoch->progress.num_workers(); ++worker) {
    while (epoch->progress.wants_step(worker, open_steps_max(*epoch, worker))) {
      Verdict verdict = put_step(epoch, worker, step, actions);
      if (verdict.kind != Verdict::Kind::proceed) return verdict;
    }
  }
  const bool must_wait = epoch->finished.empty() && !epoch->progress.is_over();
  return {must_wait ? Verdict::Kind::wait : Verdict::Kind::proceed, {}};
}

Verdict EpochScheduler::put_step(const std::shared_ptr<EpochRun>& epoch, std::uint32_t worker,
                                 const std::shared_ptr<StepFunction>& step, Actions& actions) {
  function::BoundArguments bound = function::bind_arguments(epoch->arguments);
  PendingClosure pending;
  pending.function = step;
  pending.resources = std::move(bound.resources);
  pending.arguments.share(std::move(bound.tensors));
  pending.in_epoch = {.run = epoch, .worker = worker, .step = epoch->progress.add_step(worker)};
  return scheduler_.put_on(worker, std::move(pending), actions);
}

std::optional<EpochStep> EpochScheduler::end_of(EpochRun& epoch) {
  std::optional<Error> error;
  {
    const RuntimeLock lock(context_);
    if (std::optional<EpochStep> step = epoch.take_finished()) return step;
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
    if (error) scheduler_.withdraw_steps(epoch, ClosureScheduler::Steps::all, actions);
    scheduler_.carry_out(std::move(actions));
  }
  scheduler_.flush();
  if (error) throw *error;
  return std::nullopt;
}

void EpochScheduler::hold() {
  std::vector<std::shared_ptr<EpochRun>> open;
  {
    const RuntimeLock lock(context_);
    epochs_.hold();
    open = epochs_.open();
  }
  try {
    for (const std::shared_ptr<EpochRun>& epoch : open) {
      callers_.settle({.call = "save", .epoch = epoch.get()},
                      [&](Actions&) COHORT_REQUIRES(runtime_lock) -> Verdict {
                        context_.check_running("save");
                        const bool has_failed = epoch->error || scheduler_.queue().has_error();
                        if (epoch->is_over || has_failed) return {};
                        if (scheduler_.queue().has_waiting_for_program())
                          return {Verdict::Kind::trace, {}};
                        const bool must_wait = epoch->progress.has_open();
                        return {must_wait ? Verdict::Kind::wait : Verdict::Kind::proceed, {}};
                      });
    }
  } catch (...) {
    release();
    throw;
  }
}

void EpochScheduler::release() noexcept {
  const RuntimeLock lock(context_);
  epochs_.release();
  // Nothing could end meanwhile, so the next steps have the full time.
  context_.last_progress = Clock::system().now();
  context_.changed.notify_all();
}

void EpochScheduler::give_up(EpochRun& epoch, const std::optional<Error>& why) noexcept {
  try {
    std::deque<EpochStep> unwanted;  // destroyed after the lock is released
    {
      const RuntimeLock lock(context_);
      epoch.is_over = true;
      if (!epoch.error) epoch.error = why;
      unwanted.swap(epoch.finished);
      Actions actions;
      scheduler_.withdraw_steps(epoch, ClosureScheduler::Steps::all, actions);
      scheduler_.carry_out(std::move(actions));
    }
    scheduler_.flush();
  } catch (...) {
    log_warn("the steps of an epoch that was given up run on: ", current_error().what());
  }
}

}  // namespace cohort::coordinator
