// SPDX-License-Identifier: Apache-2.0
// Starts and stops a coordinator.
#include <exception>
#include <utility>

#include "cohort/coordinator/runtime/runtime.h"
#include "cohort/core/log.h"

namespace cohort::coordinator {

Runtime::Runtime(ParameterServerStrategy& strategy, CoordinatorOptions options,
                 CoordinatorNumbers numbers)
    : context_(std::make_shared<RuntimeContext>(strategy, options, numbers)),
      datasets_(context_->connection.num_workers(),
                static_cast<std::size_t>(options.max_traces_per_dataset_function)),
      pool_(*context_, *this),
      eager_(*context_, pool_),
      iterators_(*context_, pool_, eager_, std::move(numbers.left_iterators)),
      dataset_programs_(*context_, pool_, iterators_),
      functions_(*context_, pool_, dataset_programs_),
      scheduler_(*context_, pool_, open_epochs_),
      deadline_watch_(*context_, scheduler_),
      callers_(*context_, pool_, scheduler_, functions_, dataset_programs_),
      epochs_(*context_, open_epochs_, scheduler_, functions_, callers_) {
  context_->on_replaced = [this](const Error& error) { on_replaced(error); };
}

Runtime::~Runtime() { stop(); }

void Runtime::start() {
  // Started first, so that it also answers while the coordinator waits for missing tasks.
  listener_ = internal::HealthListener::start(
      context_->home->own_address(), context_->connection.self(), [this] { return health(); },
      options().serves_metrics);
  const std::weak_ptr<Runtime> self = weak_from_this();
  ClusterConnection::WorkerHandlers handlers;
  handlers.on_frame = [self](std::uint32_t worker, std::uint64_t connection, rpc::Frame frame) {
    if (const auto runtime = self.lock()) runtime->on_frame(worker, connection, std::move(frame));
  };
  handlers.on_lost = [self](std::uint32_t worker, std::uint64_t connection, const Error& reason) {
    if (const auto runtime = self.lock()) runtime->pool_.on_lost(worker, connection, reason);
  };
  handlers.on_ps_lost = [self](const Error& reason) {
    if (const auto runtime = self.lock()) runtime->context_->end_if_replaced(reason);
  };
  handlers.closures_at_once = static_cast<std::uint32_t>(options().closures_per_worker);
  context_->home->set_forget_functions([self] {
    if (const auto runtime = self.lock()) runtime->functions_.forget_unused();
  });
  context_->connection.connect_workers(handlers);
  pool_.start();
}

void Runtime::stop() noexcept {
  if (context_->is_stopping.exchange(true)) return;
  listener_.reset();
  PendingClosures::Map cancelled;
  {
    const RuntimeLock lock(*context_);
    pool_.set_all_away();
    if (!context_->is_replaced) warn_of_unfinished_work();
    cancelled = scheduler_.end_all(
        Error(ErrorCode::cancelled,
              "[coordinator.destroy] the coordinator was destroyed before the closure ended"));
  }
  pool_.stop();
  deadline_watch_.stop();
}

// Warns of closures for which no call has waited, and whose loss would otherwise go unnoticed.
void Runtime::warn_of_unfinished_work() {
  const std::size_t left = scheduler_.queue().queued() + scheduler_.queue().in_flight();
  Actions ignored;
  const Verdict verdict = scheduler_.done(ignored);
  // If an exception ends the program, it could not call join(), and the user needs to see that
  // exception.
  const bool is_unwinding = std::uncaught_exceptions() > uncaught_at_start_;
  if (verdict.kind == Verdict::Kind::raise) {
    log_warn("the coordinator ends with an error of a closure that no call has thrown",
             is_unwinding ? ": " : "; call join() before: ", verdict.error->what());
  }
  if (left == 0 || is_unwinding) return;
  log_warn("the coordinator ends and cancels ", left, " closure", left == 1 ? "" : "s",
           " that had not ended; call join() before, which waits for them");
}

std::string Runtime::consequence_of_loss(std::uint32_t worker) const {
  if (scheduler_.queue().has_error())
    return "; its closures are cancelled, since another closure has failed";
  return open_epochs_.wait_for(worker)
             ? "; the epoch waits until it returns, as no other worker has its part of the "
               "data: start it again; closures outside the epoch run elsewhere"
             : "; its closures run elsewhere until it returns";
}

WorkerSetup Runtime::worker_setup(std::set<std::uint64_t>& iterators) {
  WorkerSetup all{.functions = functions_.needed_steps(),
                  .released = iterators_.take_dropped(iterators),
                  .iterators = iterators_.used()};
  for (const auto& iterator : all.iterators) iterators.insert(iterator->id());
  return all;
}

void Runtime::on_replaced(const Error& error) {
  PendingClosures::Map ended;
  {
    const RuntimeLock lock(*context_);
    if (context_->is_over()) return;
    log_error("giving up: ", error.what());
    context_->replaced = error;
    context_->is_replaced = true;
    pool_.set_all_away();
    ended = scheduler_.end_all(error);
  }
  context_->changed.notify_all();
  context_->stopped.notify_all();
}

void Runtime::on_frame(std::uint32_t worker, std::uint64_t connection, rpc::Frame frame) {
  const auto type = static_cast<rpc::MessageType>(frame.type);
  if (type == rpc::MessageType::program_request)
    return dataset_programs_.ask(worker, std::move(frame));
  if (type != rpc::MessageType::completed) return;
  scheduler_.on_completed(worker, connection,
                          rpc::message_of<rpc::CompletedBatch>(std::move(frame)));
}

}  // namespace cohort::coordinator
