// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/internal/function_publisher.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "cohort/coordinator/detail/failure_policy.h"
#include "cohort/coordinator/internal/closure_scheduler.h"
#include "cohort/coordinator/internal/coordinator_options.h"
#include "cohort/coordinator/internal/iterator_pattern.h"
#include "cohort/core/log.h"

namespace cohort::coordinator {
namespace {

// So many traces of one function point at a signature that changes all the time.
constexpr std::size_t kTracesBeforeWarning = 5;

}  // namespace

std::shared_ptr<StepFunction> FunctionPublisher::known_step(const Function& fn,
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
void FunctionPublisher::retire(Steps& steps, const std::shared_ptr<StepFunction>& known) {
  const std::shared_ptr<StepFunction> step = known;
  retired_.push_back(step);
  std::erase(announced_, step);
  steps.reason =
      "a tensor that it captures was written to or replaced: pass it as an argument, or make it a "
      "variable";
  std::erase(steps.known, step);
}

// What a worker that returns gets: all that is announced, and what closures of before use.
std::vector<std::shared_ptr<StepFunction>> FunctionPublisher::needed_steps() {
  std::vector<std::shared_ptr<StepFunction>> steps = announced_;
  std::erase_if(retired_, [](const auto& step) { return step.expired(); });
  for (const auto& weak : retired_) {
    if (auto step = weak.lock()) steps.push_back(std::move(step));
  }
  return steps;
}

void FunctionPublisher::count_trace(const Function& fn, const std::string& reason) {
  Steps& steps = steps_[fn.state().get()];
  ++context_.totals.traces;
  if (++steps.traces == kTracesBeforeWarning) {
    log_warn("function '", fn.name(), "' was traced ", steps.traces, " times, which takes time; ",
             reason);
  }
}

// Known to other callers only when every worker that is there has it: until then they wait for the
// trace, and find it.
std::shared_ptr<StepFunction> FunctionPublisher::step_for(const Function& fn,
                                                          std::span<const Nest> arguments) {
  // Nothing is traced of a registered function: it runs in its worker's mode.
  const bool is_traced = fn.state()->registered_name.empty();
  const auto mode = is_traced ? function::TracingMode::current() : function::TracingMode();
  {
    const RuntimeLock lock(context_);
    // A later trace sets flags for its time.
    if (!is_tracing_late_) {
      if (auto step = known_step(fn, arguments, mode)) return step;
    }
  }
  const auto stand_ins = context_.home->lock_stand_ins();
  const Lock tracing(context_.tracing);
  std::uint32_t id = 0;
  {
    const RuntimeLock lock(context_);
    if (auto step = known_step(fn, arguments, mode)) return step;
    id = context_.numbers.next_function++;
  }
  const auto step =
      std::make_shared<StepFunction>(id, fn, signature_of(arguments, mode), context_.strategy);
  if (!step->traced().is_registered()) trace_first(*step, function::bind_arguments(arguments));
  introduce(fn, step);
  return step;
}

// A function that a worker refuses is forgotten: it would keep workers from coming back.
void FunctionPublisher::introduce(const Function& fn, const std::shared_ptr<StepFunction>& step) {
  {
    const RuntimeLock lock(context_);
    announced_.push_back(step);
    ++context_.version;
    if (!step->traced().is_registered()) count_trace(fn, reason_to_trace(*step));
  }
  try {
    announce(*step);
  } catch (...) {
    const RuntimeLock lock(context_);
    std::erase(announced_, step);
    throw;
  }
  const RuntimeLock lock(context_);
  steps_[fn.state().get()].known.push_back(step);
}

std::string FunctionPublisher::reason_to_trace(const StepFunction& step) {
  Steps& steps = steps_[step.traced().function().state().get()];
  std::string reason = std::exchange(steps.reason, {});
  if (!reason.empty() || steps.known.empty()) return reason;
  reason = step.traced().signature().difference_from(steps.known.back()->traced().signature());
  return reason.empty() ? "requires_grad flags of its variables were others" : reason;
}

void FunctionPublisher::trace_first(StepFunction& step, const function::BoundArguments& bound) {
  std::vector<Fields> elements;
  std::vector<Fields> others;
  for (const Nest& resource : bound.resources) {
    add_elements(dynamic_cast<const IteratorHandle&>(*resource.handle()), step.name(), elements,
                 others);
  }
  step.trace_first(elements, others);
}

// One element of a worker's, and another of the same specs.
void FunctionPublisher::add_elements(const IteratorHandle& iterator, const std::string& function,
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
rpc::PeekReply FunctionPublisher::peek(const IteratorHandle& iterator,
                                       const std::string& function) {
  constexpr std::uint64_t kForGood = std::numeric_limits<std::uint64_t>::max();
  Deadline deadline = context_.connection.control_deadline();
  std::map<std::uint32_t, std::uint64_t> passed;  // connections that had no element
  while (true) {
    const bool are_all_empty = passed.size() == context_.connection.num_workers() &&
                               std::all_of(passed.begin(), passed.end(),
                                           [](const auto& one) { return one.second == kForGood; });
    COHORT_CHECK(!are_all_empty, ErrorCode::out_of_range,
                 "[coordinator.schedule] expected an element to trace '", function,
                 "' with, got none: the dataset is empty on every worker; check its files and how "
                 "it is sharded");
    const auto [worker, link] = ready_worker(passed, deadline);
    const std::string task = "worker:" + std::to_string(worker);
    try {
      rpc::PeekReply reply = rpc::peek_reply_of(
          datasets_.call(*link.connection.data, rpc::to_frame(rpc::PeekRequest{iterator.id(), 2}),
                         deadline, "peeking at the data of " + task));
      if (reply.fields > 0) return reply;
      passed[worker] = kForGood;
    } catch (const Error& error) {
      if (context_.gives_way(error)) throw;
      const bool is_away = is_worker_away(error) || !link.connection.data->is_open();
      if (!is_away || deadline.has_expired()) {
        throw Error(error).during("drawing an element " + iterator.spec().to_string() + " of " +
                                  task + "'s dataset, to trace '" + function + "' with it");
      }
      log_warn(task, " did not show its data: ", error.what());
      link.connection.data->close();
      passed[worker] = link.epoch;
    }
  }
}

// Another program that a worker refuses is taken back; those before it serve on.
void FunctionPublisher::trace_drawn(StepFunction& step, const std::vector<at::Tensor>& drawn) {
  const std::string advice = step.traced().advice_for(drawn);
  COHORT_CHECK(step.traced().freshness() != function::Freshness::stale,
               ErrorCode::failed_precondition, "[coordinator.trace] '", step.name(),
               "' captures a tensor that was written to or replaced after schedule(), and a worker "
               "drew an element whose shapes need another trace, which would see the new values: "
               "pass it as an argument, or make it a variable (",
               advice, ")");
  const bool is_new = step.trace_drawn(drawn);
  if (is_new) {
    const RuntimeLock lock(context_);
    ++context_.version;
    count_trace(step.traced().function(), "the last time, " + advice);
  }
  try {
    announce(step);
  } catch (...) {
    if (is_new) step.drop_last_program();
    throw;
  }
}

// A worker that can answer over a connection newer than the one that was passed over.
std::pair<std::uint32_t, WorkerPool::Link> FunctionPublisher::ready_worker(
    const std::map<std::uint32_t, std::uint64_t>& passed, Deadline deadline) {
  const auto found = pool_.ready_worker(passed, deadline);
  context_.check_running("schedule");
  const RuntimeLock lock(context_);
  COHORT_CHECK(
      found, ErrorCode::unavailable, "[coordinator.schedule] expected a worker within ",
      internal::seconds_of(context_.connection.options().timeout),
      " s, to trace the function with an element of its data, got none: ", absent_workers(pool_),
      "; start the workers again, or raise ClusterOptions::timeout");
  return *found;
}

// Every worker that is there gets the function before a closure can name it. One that fails to take
// it for want of a connection will get it when it returns.
void FunctionPublisher::announce(const StepFunction& step) {
  const std::shared_ptr<const rpc::FunctionBody> body = step.body();
  std::vector<std::pair<std::uint32_t, WorkerPool::Link>> present;
  {
    const RuntimeLock lock(context_);
    present = pool_.ready_links();  // others get the function when they are furnished
  }
  for (const auto& [worker, link] : present) announce_to(worker, link, *body);
}

void FunctionPublisher::announce_to(std::uint32_t worker, const WorkerPool::Link& link,
                                    const rpc::FunctionBody& body) {
  try {
    link.connection.control->register_function(body, context_.connection.control_deadline());
  } catch (const Error& error) {
    if (context_.gives_way(error) || !is_worker_away(error)) throw;
    log_warn("worker:", worker, " did not take function '", body.name, "': ", error.what());
    link.connection.data->close();
  }
}

}  // namespace cohort::coordinator
