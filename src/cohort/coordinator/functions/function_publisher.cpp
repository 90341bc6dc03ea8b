// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/functions/function_publisher.h"

#include <algorithm>
#include <limits>

#include "cohort/coordinator/datasets/iterator_pattern.h"
#include "cohort/coordinator/failure_policy.h"
#include "cohort/coordinator/queue/closure_scheduler.h"
#include "cohort/coordinator/runtime/coordinator_options.h"
#include "cohort/core/log.h"

namespace cohort::coordinator {
namespace {

// After this many traces of one function its signature probably changes all the time.
constexpr std::size_t kTracesBeforeWarning = 5;
// To compare a call with so few signatures takes no longer than its hash.
constexpr std::size_t kComparedAll = 4;
// In place of the number of a connection: the worker is passed, whatever its connection.
constexpr std::uint64_t kForGood = std::numeric_limits<std::uint64_t>::max();

}  // namespace

std::shared_ptr<StepFunction> FunctionPublisher::known_step(const Function& fn,
                                                            std::span<const Nest> arguments,
                                                            const function::TracingMode& mode) {
  const auto found = steps_.find(fn.state().get());
  if (found == steps_.end()) return nullptr;
  const auto& all = found->second.known;
  const auto [begin, end] = all.size() <= kComparedAll
                                ? std::pair(all.begin(), all.end())
                                : all.equal_range(function::CallSignature::hash_of(arguments));
  for (auto each = begin; each != end; ++each) {
    const std::shared_ptr<StepFunction>& step = each->second;
    if (!step->traced().signature().matches(arguments, mode)) continue;
    const function::Freshness freshness = step->traced().freshness();
    if (freshness == function::Freshness::current) return step;
    if (freshness == function::Freshness::other_flags) continue;
    retire(found->second, step);
    return nullptr;
  }
  return nullptr;
}

// Replaces a step whose captured constants have changed.
void FunctionPublisher::retire(Steps& steps, std::shared_ptr<StepFunction> step) {
  retired_.push_back(step);
  std::erase(announced_, step);
  steps.reason =
      "a tensor that it captures was written to or replaced: pass it as an argument, or make it a "
      "variable";
  std::erase_if(steps.known, [&](const auto& each) { return each.second == step; });
  if (steps.last == step) steps.last = steps.known.empty() ? nullptr : steps.known.begin()->second;
}

std::vector<std::shared_ptr<StepFunction>> FunctionPublisher::needed_steps() {
  std::vector<std::shared_ptr<StepFunction>> steps = announced_;
  std::erase_if(retired_, [](const auto& step) { return step.expired(); });
  for (const auto& weak : retired_) {
    if (auto step = weak.lock()) steps.push_back(std::move(step));
  }
  return steps;
}

// Closures that have not ended keep their steps, which a worker that returns still gets.
void FunctionPublisher::forget_unused() {
  // Destroyed without the lock, because they hold the user's objects.
  std::vector<std::shared_ptr<StepFunction>> unused;
  const RuntimeLock lock(context_);
  std::erase_if(steps_, [&](const auto& each) COHORT_REQUIRES(runtime_lock) {
    const auto& known = each.second.known;
    if (known.empty()) return false;
    const Function& function = known.begin()->second->traced().function();
    const bool is_used = static_cast<std::size_t>(function.state().use_count()) > known.size();
    if (is_used) return false;
    for (const auto& [hash, step] : known) {
      retired_.push_back(step);
      std::erase(announced_, step);
      unused.push_back(step);
    }
    return true;
  });
}

void FunctionPublisher::count_trace(const Function& fn, const std::string& reason) {
  Steps& steps = steps_[fn.state().get()];
  ++context_.totals.traces;
  if (++steps.traces == kTracesBeforeWarning) {
    log_warn("function '", fn.name(), "' was traced ", steps.traces, " times, which takes time; ",
             reason);
  }
}

std::shared_ptr<StepFunction> FunctionPublisher::step_for(const Function& fn,
                                                          std::span<const Nest> arguments) {
  // A registered function is not traced: it runs in its worker's mode.
  const bool is_traced = fn.state()->registered_name.empty();
  const auto mode = is_traced ? function::TracingMode::current() : function::TracingMode();
  {
    const RuntimeLock lock(context_);
    // A later trace sets requires_grad flags while it runs.
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
  introduce(fn, function::CallSignature::hash_of(arguments), step);
  return step;
}

std::shared_ptr<StepFunction> FunctionPublisher::step_without_program(
    const Function& fn, std::span<const Nest> arguments) {
  std::uint32_t id = 0;
  {
    const RuntimeLock lock(context_);
    id = context_.numbers.next_function++;
  }
  const auto step = std::make_shared<StepFunction>(
      id, fn, signature_of(arguments, function::TracingMode::current()), context_.strategy);
  {
    const RuntimeLock lock(context_);
    retired_.push_back(step);  // no other call uses it
    ++context_.version;
  }
  announce(*step, 0);
  return step;
}

// Forgets a function that a worker refuses, since otherwise no worker could return.
void FunctionPublisher::introduce(const Function& fn, std::size_t hash,
                                  const std::shared_ptr<StepFunction>& step) {
  forget_unused();
  {
    const RuntimeLock lock(context_);
    announced_.push_back(step);
    ++context_.version;
    if (!step->traced().is_registered()) count_trace(fn, reason_to_trace(*step));
  }
  try {
    announce(*step, 0);
  } catch (...) {
    const RuntimeLock lock(context_);
    std::erase(announced_, step);
    throw;
  }
  const RuntimeLock lock(context_);
  Steps& steps = steps_[fn.state().get()];
  steps.known.emplace(hash, step);
  steps.last = step;
}

std::string FunctionPublisher::reason_to_trace(const StepFunction& step) {
  Steps& steps = steps_[step.traced().function().state().get()];
  std::string reason = std::exchange(steps.reason, {});
  if (!reason.empty() || steps.last == nullptr) return reason;
  reason = step.traced().signature().difference_from(steps.last->traced().signature());
  return reason.empty() ? "the requires_grad flags of its variables have changed" : reason;
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

// Adds one element of a worker to `elements`, and another with the same specs to `others`.
void FunctionPublisher::add_elements(const IteratorHandle& iterator, const std::string& function,
                                     std::vector<Fields>& elements, std::vector<Fields>& others) {
  const rpc::PeekReply reply = peek(iterator, function);
  const auto begin = reply.tensors.begin();
  const auto width = static_cast<std::ptrdiff_t>(reply.fields);
  elements.emplace_back(begin, begin + width);
  Fields second;
  if (reply.tensors.size() >= 2 * static_cast<std::size_t>(reply.fields))
    second.assign(begin + width, begin + 2 * width);
  const bool has_second = function::specs_of(second) == function::specs_of(elements.back());
  others.push_back(has_second ? std::move(second) : function::rotated(elements.back()));
}

// Returns elements of the first worker that has some. A worker that is lost meanwhile is skipped
// until it returns.
rpc::PeekReply FunctionPublisher::peek(const IteratorHandle& iterator,
                                       const std::string& function) {
  Deadline deadline = context_.connection.control_deadline();
  // By worker: the connection over which it had no element or was lost; 0: not passed.
  std::vector<std::uint64_t> passed(context_.connection.num_workers());
  std::optional<Error> broken;
  while (true) {
    const bool is_any_left =
        std::ranges::any_of(passed, [](std::uint64_t each) { return each != kForGood; });
    if (!is_any_left && broken) throw Error(*broken);
    COHORT_CHECK(
        is_any_left, ErrorCode::out_of_range,
        "[coordinator.schedule] expected an element to trace '", function,
        "' with, got none: the dataset is empty on every worker; check its files and how it is "
        "sharded");
    const auto [worker, link] = ready_worker(passed, deadline);
    const std::string task = "worker:" + std::to_string(worker);
    try {
      rpc::PeekReply reply = rpc::message_of<rpc::PeekReply>(
          datasets_.call(*link.connection.data, rpc::to_frame(rpc::PeekRequest{iterator.id(), 2}),
                         deadline, "peeking at the data of " + task));
      if (reply.fields > 0) return reply;
      passed[worker] = kForGood;
    } catch (const Error& error) {
      if (context_.end_if_replaced(error)) throw;
      if (is_broken_resource(error)) {
        broken = Error(error).at(task);
        passed[worker] = kForGood;
        continue;
      }
      const bool is_away = is_worker_away(error) || !link.connection.data->is_open();
      if (!is_away || deadline.has_expired()) {
        throw Error(error).during("drawing an element " + iterator.spec().to_string() + " of " +
                                  task + "'s dataset, to trace '" + function + "' with it");
      }
      log_warn(task, " did not return an element: ", error.what());
      link.connection.data->close();
      passed[worker] = link.epoch;
    }
  }
}

// If a worker refuses a new program, removes it; the earlier programs stay in use.
void FunctionPublisher::trace_drawn(StepFunction& step, const std::vector<at::Tensor>& drawn) {
  COHORT_CHECK(step.program_count() > 0, ErrorCode::failed_precondition, "[coordinator.trace] '",
               step.name(),
               "' has no program, since an iterator among its arguments was broken on every worker "
               "at schedule(); now a worker has it: schedule it again");
  const std::string advice = step.traced().advice_for(drawn);
  COHORT_CHECK(step.traced().freshness() != function::Freshness::stale,
               ErrorCode::failed_precondition, "[coordinator.trace] '", step.name(),
               "' captures a tensor that was written to or replaced after schedule(), and a worker "
               "drew an element whose shapes need another trace, which would see the new values: "
               "pass it as an argument, or make it a variable (",
               advice, ")");
  if (step.traced().has_program_for(drawn)) return;  // every worker has it
  check_bound(step, advice);
  const std::size_t before = step.program_count();
  step.trace_drawn(drawn);
  {
    const RuntimeLock lock(context_);
    ++context_.version;
    count_trace(step.traced().function(), "the last time, " + advice);
  }
  try {
    announce(step, before);
  } catch (...) {
    step.drop_last_program();
    throw;
  }
}

// A worker with a connection newer than the one that was skipped.
std::pair<std::uint32_t, WorkerPool::Link> FunctionPublisher::ready_worker(
    const std::vector<std::uint64_t>& passed, Deadline deadline) {
  const auto found = pool_.ready_worker(passed, deadline);
  context_.check_running("schedule");
  const RuntimeLock lock(context_);
  COHORT_CHECK(
      found, ErrorCode::unavailable, "[coordinator.schedule] expected a worker within ",
      seconds_of(context_.connection.options().timeout),
      " s, to trace the function with an element of its data, got none: ", absent_workers(pool_),
      "; start the workers again, or raise ClusterOptions::timeout");
  return *found;
}

// Sends the programs that are not among the first ones to every ready worker, before a closure can
// name them. A worker that cannot be reached gets the whole function when it returns.
void FunctionPublisher::announce(const StepFunction& step, std::size_t programs_before) {
  const rpc::FunctionBody body = step.body(programs_before);
  std::vector<std::pair<std::uint32_t, WorkerPool::Link>> present;
  {
    const RuntimeLock lock(context_);
    present = pool_.ready_links();  // other workers get the function when they are set up
  }
  for (const auto& [worker, link] : present) announce_to(worker, link, step, body);
}

void FunctionPublisher::announce_to(std::uint32_t worker, const WorkerPool::Link& link,
                                    const StepFunction& step, const rpc::FunctionBody& body) {
  rpc::ControlClient& control = *link.connection.control;
  try {
    try {
      step.send(body, control);
    } catch (const Error& error) {
      // It was restarted since, and this call is the first to notice.
      if (body.programs_before == 0 || error.cause() != ErrorCause::function_missing) throw;
      step.send(step.body(), control);
    }
  } catch (const Error& error) {
    if (context_.end_if_replaced(error) || !is_worker_away(error)) throw;
    log_warn("worker:", worker, " did not take function '", body.name, "': ", error.what());
    link.connection.data->close();
  }
}

// Limits the programs of a step whose elements all have different shapes.
void FunctionPublisher::check_bound(const StepFunction& step, const std::string& advice) const {
  const auto limit = static_cast<std::size_t>(context_.options.max_traces_per_step);
  COHORT_CHECK(step.program_count() <= limit, ErrorCode::resource_exhausted,
               "[coordinator.trace] expected elements of at most ", limit,
               " more shapes than the first one for '", step.name(), "', got one more: ", advice,
               "; each shape costs a trace, and memory on every worker: make them fewer, or raise "
               "CoordinatorOptions::max_traces_per_step");
}

}  // namespace cohort::coordinator
