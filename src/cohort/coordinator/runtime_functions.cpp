// SPDX-License-Identifier: Apache-2.0
// Functions: the traces, which run on callers' threads, and handing their programs to the workers.
#include <algorithm>
#include <limits>
#include <utility>

#include "cohort/coordinator/internal/coordinator_options.h"
#include "cohort/coordinator/internal/iterator_pattern.h"
#include "cohort/coordinator/internal/runtime.h"
#include "cohort/core/log.h"

namespace cohort::coordinator {
namespace {

// So many traces of one function point at a signature that changes all the time.
constexpr std::size_t kTracesBeforeWarning = 5;

Error forgotten_hyperparameter(const std::string& function) {
  return Error(ErrorCode::failed_precondition,
               "[coordinator.trace] '" + function +
                   "' reads a hyperparameter that it did not read for the first element, and its "
                   "value at schedule() is no longer known: it was set more than 4096 times since; "
                   "set it less often, join() in between, or give all elements one shape");
}

}  // namespace

std::shared_ptr<StepFunction> Runtime::known_step(const Function& fn,
                                                  std::span<const Nest> arguments,
                                                  const function::TracingMode& mode) {
  const auto found = steps_.find(fn.state().get());
  if (found == steps_.end()) return nullptr;
  for (const auto& step : found->second.known) {
    if (!step->traced().signature().matches(arguments, mode)) continue;
    const function::Freshness freshness = step->traced().freshness();
    if (freshness == function::Freshness::current) return step;
    if (freshness == function::Freshness::other_flags) continue;
    retire(found->second, step);
    return nullptr;
  }
  return nullptr;
}

// Its constants are not those of the next call.
void Runtime::retire(Steps& steps, const std::shared_ptr<StepFunction>& known) {
  const std::shared_ptr<StepFunction> step = known;
  retired_.push_back(step);
  std::erase(announced_, step);
  steps.reason =
      "a tensor that it captures was written to or replaced: pass it as an argument, or make it a "
      "variable";
  std::erase(steps.known, step);
}

// What a worker that returns gets: all that is announced, and what closures of before use.
std::vector<std::shared_ptr<StepFunction>> Runtime::needed_steps() {
  std::vector<std::shared_ptr<StepFunction>> steps = announced_;
  std::erase_if(retired_, [](const auto& step) { return step.expired(); });
  for (const auto& weak : retired_) {
    if (auto step = weak.lock()) steps.push_back(std::move(step));
  }
  return steps;
}

void Runtime::count_trace(const Function& fn, const std::string& reason) {
  Steps& steps = steps_[fn.state().get()];
  ++totals_.traces;
  if (++steps.traces == kTracesBeforeWarning) {
    log_warn("function '", fn.name(), "' was traced ", steps.traces, " times, which takes time; ",
             reason);
  }
}

// Known to other callers only when every worker that is there has it: until then they wait for the
// trace, and find it.
std::shared_ptr<StepFunction> Runtime::step_for(const Function& fn,
                                                std::span<const Nest> arguments) {
  // Nothing is traced of a registered function: it runs in its worker's mode.
  const bool is_traced = fn.state()->registered_name.empty();
  const auto mode = is_traced ? function::TracingMode::current() : function::TracingMode();
  {
    const Lock lock(mutex_);
    // A later trace sets flags for its time.
    if (!is_tracing_late_) {
      if (auto step = known_step(fn, arguments, mode)) return step;
    }
  }
  const auto stand_ins = home_->lock_stand_ins();
  const Lock tracing(tracing_);
  std::uint32_t id = 0;
  {
    const Lock lock(mutex_);
    if (auto step = known_step(fn, arguments, mode)) return step;
    id = numbers_.next_function++;
  }
  const auto step =
      std::make_shared<StepFunction>(id, fn, signature_of(arguments, mode), strategy_);
  if (!step->traced().is_registered()) trace_first(*step, function::bind_arguments(arguments));
  introduce(fn, step);
  return step;
}

// A function that a worker refuses is forgotten: it would keep workers from coming back.
void Runtime::introduce(const Function& fn, const std::shared_ptr<StepFunction>& step) {
  {
    const Lock lock(mutex_);
    announced_.push_back(step);
    ++version_;
    if (!step->traced().is_registered()) count_trace(fn, reason_to_trace(*step));
  }
  try {
    announce(*step);
  } catch (...) {
    const Lock lock(mutex_);
    std::erase(announced_, step);
    throw;
  }
  const Lock lock(mutex_);
  steps_[fn.state().get()].known.push_back(step);
}

std::string Runtime::reason_to_trace(const StepFunction& step) {
  Steps& steps = steps_[step.traced().function().state().get()];
  std::string reason = std::exchange(steps.reason, {});
  if (!reason.empty() || steps.known.empty()) return reason;
  reason = step.traced().signature().difference_from(steps.known.back()->traced().signature());
  return reason.empty() ? "requires_grad flags of its variables were others" : reason;
}

void Runtime::trace_first(StepFunction& step, const function::BoundArguments& bound) {
  std::vector<Fields> elements;
  std::vector<Fields> others;
  for (const Nest& resource : bound.resources) {
    add_elements(dynamic_cast<const IteratorHandle&>(*resource.handle()), step.name(), elements,
                 others);
  }
  step.trace_first(elements, others);
}

// One element of a worker's, and another of the same specs.
void Runtime::add_elements(const IteratorHandle& iterator, const std::string& function,
                           std::vector<Fields>& elements, std::vector<Fields>& others) {
  const rpc::PeekReply reply = peek(iterator, function);
  const auto begin = reply.tensors.begin();
  const auto width = static_cast<std::ptrdiff_t>(reply.fields);
  elements.emplace_back(begin, begin + width);
  const bool has_second = reply.tensors.size() >= 2 * static_cast<std::size_t>(reply.fields);
  Fields second =
      has_second ? Fields(begin + width, begin + 2 * width) : function::rotated(elements.back());
  for (std::size_t i = 0; i < second.size(); ++i) {
    if (TensorSpec::of(second[i]) == TensorSpec::of(elements.back()[i])) continue;
    second = function::rotated(elements.back());
    break;
  }
  others.push_back(std::move(second));
}

// Of the first worker that has some. One that goes meanwhile is passed over until it is back.
rpc::PeekReply Runtime::peek(const IteratorHandle& iterator, const std::string& function) {
  constexpr std::uint64_t kForGood = std::numeric_limits<std::uint64_t>::max();
  Deadline deadline = connection_.control_deadline();
  std::vector<std::uint64_t> passed_epochs(connection_.num_workers(), 0);
  while (true) {
    const bool all_are_empty = std::all_of(passed_epochs.begin(), passed_epochs.end(),
                                           [](std::uint64_t epoch) { return epoch == kForGood; });
    COHORT_CHECK(!all_are_empty, ErrorCode::out_of_range,
                 "[coordinator.schedule] expected an element to trace '", function,
                 "' with, got none: the dataset is empty on every worker; check its files and how "
                 "it is sharded");
    const auto [worker, link] = ready_worker(passed_epochs, deadline);
    const std::string task = "worker:" + std::to_string(worker);
    try {
      rpc::PeekReply reply = rpc::peek_reply_of(
          call_and_trace(*link.connection.data, rpc::to_frame(rpc::PeekRequest{iterator.id(), 2}),
                         deadline, "peeking at the data of " + task));
      if (reply.fields > 0) return reply;
      passed_epochs[worker] = kForGood;
    } catch (const Error& error) {
      if (gives_way(error)) throw;
      const bool is_away = is_worker_away(error) || !link.connection.data->is_open();
      if (!is_away || deadline.has_expired()) {
        throw Error(error).during("drawing an element " + iterator.spec().to_string() + " of " +
                                  task + "'s dataset, to trace '" + function + "' with it");
      }
      log_warn(task, " did not show its data: ", error.what());
      link.connection.data->close();
      passed_epochs[worker] = link.epoch;
    }
  }
}

void Runtime::trace_waiting() {
  std::vector<ClosureId> waiting;
  {
    const Lock lock(mutex_);
    waiting = queue_.waiting_for_program();
  }
  for (const ClosureId closure : waiting) trace_one(closure);
}

// What traces have captured since its schedule(), as it was then; false where that is not known.
bool Runtime::add_captured(Pending& pending) {
  const bool is_counted = pending.in_epoch.run == nullptr || pending.in_epoch.is_counted;
  return pending.function->add_captured(pending.captured, pending.captured_at,
                                        is_counted ? &pending.counted : nullptr);
}

// What its step captures, as it was at its schedule().
bool Runtime::has_captured(ClosureId closure) {
  const auto found = pending_.find(closure);
  if (found == pending_.end()) return true;
  return add_captured(found->second);
}

void Runtime::trace_one(ClosureId closure) {
  const auto stand_ins = home_->lock_stand_ins();
  const Lock tracing(tracing_);
  std::shared_ptr<StepFunction> step;
  std::vector<at::Tensor> drawn;
  {
    const Lock lock(mutex_);
    const auto found = pending_.find(closure);
    if (found == pending_.end()) return;
    step = found->second.function;
    drawn = found->second.reported;
    is_tracing_late_ = true;
  }
  std::optional<Error> error;
  try {
    trace_for(*step, drawn);
  } catch (...) {
    error = current_error();
  }
  {
    const Lock lock(mutex_);
    is_tracing_late_ = false;
    const TimePoint now = Clock::system().now();
    last_progress_ = now;  // the closure waited for this process until now, not for a task
    if (!error && !has_captured(closure)) error = forgotten_hyperparameter(step->name());
    Actions actions;
    if (error) {
      queue_.program_failed(closure, *error, now, actions);
    } else {
      queue_.program_ready(closure, now, actions);
    }
    carry_out(actions);
  }
  flush();
}

// Another program that a worker refuses is taken back; those before it serve on.
void Runtime::trace_for(StepFunction& step, const std::vector<at::Tensor>& drawn) {
  const std::string advice = step.traced().advice_for(drawn);
  COHORT_CHECK(step.traced().freshness() != function::Freshness::stale,
               ErrorCode::failed_precondition, "[coordinator.trace] '", step.name(),
               "' captures a tensor that was written to or replaced after schedule(), and a worker "
               "drew an element whose shapes need another trace, which would see the new values: "
               "pass it as an argument, or make it a variable (",
               advice, ")");
  const bool is_new = step.trace_drawn(drawn);
  if (is_new) {
    const Lock lock(mutex_);
    ++version_;
    count_trace(step.traced().function(), "the last time, " + advice);
  }
  try {
    announce(step);
  } catch (...) {
    if (is_new) step.drop_last_program();
    throw;
  }
}

// Every worker that is there gets the function before a closure can name it. One that fails to take
// it for want of a connection will get it when it returns.
void Runtime::announce(const StepFunction& step) {
  const std::shared_ptr<const rpc::FunctionBody> body = step.body();
  for (std::uint32_t i = 0; i < connection_.num_workers(); ++i) {
    ClusterConnection::WorkerLink link;
    {
      const Lock lock(mutex_);
      if (!workers_[i].is_ready) continue;
      link = workers_[i].link;
    }
    announce_to(i, link, *body);
  }
}

void Runtime::announce_to(std::uint32_t worker, const ClusterConnection::WorkerLink& link,
                          const rpc::FunctionBody& body) {
  try {
    link.connection.control->register_function(body, connection_.control_deadline());
  } catch (const Error& error) {
    if (gives_way(error) || !is_worker_away(error)) throw;
    log_warn("worker:", worker, " did not take function '", body.name, "': ", error.what());
    link.connection.data->close();
  }
}

std::pair<std::uint32_t, ClusterConnection::WorkerLink> Runtime::ready_worker(
    const std::vector<std::uint64_t>& passed_epochs, Deadline deadline) {
  const Lock lock(mutex_);
  std::uint32_t worker = 0;
  const bool is_found = changed_.wait(mutex_, deadline, [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
    if (is_over()) return true;
    for (worker = 0; worker < workers_.size(); ++worker) {
      if (workers_[worker].is_ready && workers_[worker].link.epoch > passed_epochs[worker])
        return true;
    }
    return false;
  });
  check_running("schedule");
  COHORT_CHECK(is_found, ErrorCode::unavailable, "[coordinator.schedule] expected a worker within ",
               internal::seconds_of(connection_.options().timeout),
               " s, to trace the function with an element of its data, got none: ", debtors(),
               "; start the workers again, or raise ClusterOptions::timeout");
  return {worker, workers_[worker].link};
}

}  // namespace cohort::coordinator
