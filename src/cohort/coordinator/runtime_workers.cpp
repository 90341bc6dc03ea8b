// SPDX-License-Identifier: Apache-2.0
// The workers' side: sending closures and hearing of their ends; the begin and end of all.
#include <algorithm>
#include <exception>
#include <utility>

#include "cohort/coordinator/internal/runtime.h"
#include "cohort/core/detail/random.h"
#include "cohort/core/detail/start_thread.h"
#include "cohort/core/log.h"

namespace cohort::coordinator {
namespace {

// More would lie in no core's cache when they are used again.
constexpr std::size_t kSparesMax = 1024;

std::string name_of_worker(std::uint32_t worker) { return "worker:" + std::to_string(worker); }

Error never_sent(std::uint32_t worker, ClosureId closure) {
  const std::string name = name_of_worker(worker);
  return Error(ErrorCode::data_loss, "[coordinator.receive] expected ends of closures that " +
                                         name + " was sent, got that of closure " +
                                         std::to_string(closure) +
                                         "; see whether the worker's memory is sound")
      .at(name);
}

Error no_epoch(std::uint32_t worker, ClosureId closure) {
  const std::string name = name_of_worker(worker);
  return Error(ErrorCode::data_loss, "[coordinator.receive] expected ends of data of epochs, got " +
                                         name + "'s for closure " + std::to_string(closure) +
                                         ", which is of none; see whether the worker's memory is "
                                         "sound")
      .at(name);
}

Error lost_updates(std::uint32_t worker, const rpc::ClosureEnd& end) {
  const std::string name = name_of_worker(worker);
  return Error(ErrorCode::data_loss,
               "[coordinator.receive] expected all updates of closure " +
                   std::to_string(end.closure_id) +
                   " to be applied, which ran for the first time, got " +
                   std::to_string(end.pushes_dropped) +
                   " messages with updates that a parameter server dropped as late; updates are "
                   "missing: start again from saved values, and see whether the memory of " +
                   name + " and of the parameter servers is sound",
               ErrorCause::application)
      .at(name);
}

}  // namespace

void Runtime::start() {
  // First: who waits for missing tasks can be asked, too.
  listener_ = internal::HealthListener::start(home_->own_address(), connection_.self(),
                                              [this] { return health(); });
  const std::weak_ptr<Runtime> self = weak_from_this();
  ClusterConnection::WorkerHandlers handlers;
  handlers.on_frame = [self](std::uint32_t worker, std::uint64_t epoch, rpc::Frame frame) {
    if (const auto runtime = self.lock()) runtime->on_frame(worker, epoch, std::move(frame));
  };
  handlers.on_lost = [self](std::uint32_t worker, std::uint64_t epoch, const Error& reason) {
    if (const auto runtime = self.lock()) runtime->on_lost(worker, epoch, reason);
  };
  handlers.on_ps_lost = [self](const Error& reason) {
    if (const auto runtime = self.lock()) runtime->gives_way(reason);
  };
  connection_.connect_workers(handlers);
  {
    const Lock lock(mutex_);
    Actions actions;
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      const ClusterConnection::WorkerLink link = connection_.worker(i);
      if (workers_[i].lost_epoch < link.epoch) {
        make_ready(i, link, actions);
        continue;
      }
      workers_[i].link = link;  // lost between the others' answers
      workers_[i].needs_recovery = true;
      start_recovery(i);
    }
    carry_out(actions);
  }
  flush();
  if (options_.heartbeat > Duration::zero())
    watcher_ = start_thread("to watch the workers", [this] { watch(); });
}

Runtime::~Runtime() { stop(); }

void Runtime::stop() noexcept {
  if (is_stopping_.exchange(true)) return;
  listener_.reset();
  std::vector<std::thread> recoveries;
  std::vector<rpc::Connection> links;
  std::unordered_map<ClosureId, Pending> cancelled;
  {
    const Lock lock(mutex_);
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      if (worker.recovery.joinable()) recoveries.push_back(std::move(worker.recovery));
      links.push_back(worker.link.connection);
      links.push_back(connection_.worker(i).connection);  // perhaps being set up
      worker.is_ready = false;
      empty_outbox(worker);
    }
    cancelled.swap(pending_);
    const Error gone(
        ErrorCode::cancelled,
        "[coordinator.destroy] the coordinator was destroyed before the closure ended");
    for (auto& [id, pending] : cancelled) {
      if (pending.runs > 0) pending.counted.keep();
      if (const auto result = pending.result.lock()) result->fail(gone);
    }
    if (!is_replaced_) warn_of_what_is_left();
    Actions ignored;
    queue_.stop(ignored);
  }
  for (const rpc::Connection& link : links) {
    if (link.control) link.control->cancel();
    if (link.data) link.data->close();
  }
  changed_.notify_all();
  stopped_.notify_all();
  for (std::thread& recovery : recoveries) recovery.join();
  if (watcher_.joinable()) watcher_.join();
}

// Of work that nobody has waited for, which would else be missing without a word.
void Runtime::warn_of_what_is_left() {
  const std::size_t left = queue_.queued() + queue_.in_flight();
  Actions ignored;
  const Verdict verdict = queue_.done(Clock::system().now(), ignored);
  // The program ends by an exception: it had no chance to call join(), and what it reads is the
  // error that it ends with.
  const bool is_unwinding = std::uncaught_exceptions() > uncaught_at_start_;
  if (verdict.kind == Verdict::Kind::raise) {
    log_warn("the coordinator goes with an error of a closure that no call has thrown",
             is_unwinding ? ": " : "; call join() before: ", verdict.error->what());
  }
  if (left == 0 || is_unwinding) return;
  log_warn("the coordinator goes and cancels ", left, " closure", left == 1 ? "" : "s",
           " that had not ended; call join() before, which waits for them");
}

bool Runtime::gives_way(const Error& error) {
  if (!rpc::is_replaced(error)) return false;
  std::unordered_map<ClosureId, Pending> ended;
  {
    const Lock lock(mutex_);
    if (is_over()) return true;
    log_error("giving up: ", error.what());
    replaced_ = error;
    is_replaced_ = true;
    for (Worker& worker : workers_) {
      worker.is_ready = false;
      empty_outbox(worker);
    }
    ended.swap(pending_);
    for (auto& [id, pending] : ended) {
      if (pending.runs > 0) pending.counted.keep();
      if (const auto result = pending.result.lock()) result->fail(error);
    }
    Actions ignored;
    queue_.stop(ignored);
  }
  changed_.notify_all();
  stopped_.notify_all();
  return true;
}

void Runtime::carry_out(Actions& actions) {
  if (actions.empty()) return;
  const TimePoint now = Clock::system().now();
  bool must_wake = false;
  Actions refused;
  for (Action& action : actions) {
    switch (action.kind) {
      case Action::Kind::dispatch: {
        const Dispatched dispatched = dispatch(action.closure, action.worker, now);
        must_wake = must_wake || dispatched != Dispatched::well;
        if (dispatched == Dispatched::refused) refused.push_back(action);
        break;
      }
      case Action::Kind::complete:
        resolve(action.closure, std::nullopt, now);
        must_wake = must_wake || fetchers_ > 0;
        break;
      case Action::Kind::fail:
        resolve(action.closure, action.error, now);
        must_wake = must_wake || fetchers_ > 0;
        break;
      case Action::Kind::cancel:
        workers_[action.worker].cancels.push_back(action.closure);
        to_flush_.push_back(action.worker);
        break;
      case Action::Kind::recover_worker: {
        Worker& worker = workers_[action.worker];
        worker.is_ready = false;
        empty_outbox(worker);
        worker.needs_recovery = true;
        check_orders(action.worker);
        ++worker.times_lost;
        start_recovery(action.worker);
        must_wake = true;
        break;
      }
      case Action::Kind::wake_waiters:
      case Action::Kind::need_program:
        must_wake = true;
        break;
    }
  }
  actions.clear();
  if (!refused.empty()) drop_refused(refused);
  if (must_wake) changed_.notify_all();
}

void Runtime::empty_outbox(Worker& worker) {
  for (const ClosureId closure : worker.outbox) {
    const auto found = pending_.find(closure);
    if (found != pending_.end() && found->second.runs > 0) --found->second.runs;
  }
  worker.outbox.clear();
  worker.cancels.clear();
}

void Runtime::give_back(Actions actions) {
  if (actions.capacity() <= kSparesMax) spare_actions_ = std::move(actions);
}

void Runtime::admit(ClosureId closure, Pending&& pending) {
  if (spare_pending_.empty()) {
    pending_.emplace(closure, std::move(pending));
    return;
  }
  auto node = std::move(spare_pending_.back());
  spare_pending_.pop_back();
  node.key() = closure;
  node.mapped() = std::move(pending);
  pending_.insert(std::move(node));
}

Runtime::Dispatched Runtime::dispatch(ClosureId closure, std::uint32_t worker, TimePoint now) {
  const auto found = pending_.find(closure);
  COHORT_ASSERT(found != pending_.end());
  Pending& pending = found->second;
  const bool is_first_of_epoch = pending.epoch == 0 && pending.in_epoch.run != nullptr;
  if (is_first_of_epoch && !capture_for_step(pending)) return Dispatched::refused;
  const std::uint64_t epoch = workers_[worker].link.epoch;
  bool is_in_order = true;
  const bool is_resumed = std::exchange(pending.waits_for_program, false) &&
                          pending.worker == worker && pending.epoch == epoch;
  if (pending.epoch != 0 && !is_resumed) {
    ++totals_.retries;
    pending.is_retried = true;
    if (pending.in_epoch.run) is_in_order = check_order(*pending.in_epoch.run, worker);
  }
  ++pending.runs;
  pending.worker = worker;
  pending.epoch = epoch;
  workers_[worker].window.sent(now);
  workers_[worker].outbox.push_back(closure);
  to_flush_.push_back(worker);
  return is_in_order ? Dispatched::well : Dispatched::out_of_order;
}

void Runtime::resolve(ClosureId closure, const std::optional<Error>& error, TimePoint now) {
  const auto found = pending_.find(closure);
  if (found == pending_.end()) return;
  Pending& pending = found->second;
  last_progress_ = now;
  if (!pending.in_epoch.is_end) {
    count_end(error, now);
    if (!error) ++workers_[pending.worker].closures;
  }
  if (error ? pending.runs > 0 : !pending.in_epoch.is_end) pending.counted.keep();
  if (pending.in_epoch.run) {
    resolve_step(pending, error);
  } else if (const std::shared_ptr<RemoteState> result = pending.result.lock()) {
    try {
      if (error) throw Error(*error);
      result->set(pending.function->result_of(std::move(pending.reported)));
    } catch (...) {  // also outputs that do not fill the function's result
      result->fail(current_error());
    }
  }
  auto node = pending_.extract(found);
  node.mapped() = {};
  if (spare_pending_.size() < kSparesMax) spare_pending_.push_back(std::move(node));
}

bool Runtime::can_wait(const Worker& worker) const {
  return worker.cancels.empty() && worker.window.can_wait(worker.outbox.size());
}

void Runtime::flush(Flush how) {
  std::vector<std::uint32_t> workers;
  {
    const Lock lock(mutex_);
    const auto waits = [&](std::uint32_t worker)
                           COHORT_NO_THREAD_SAFETY_ANALYSIS { return can_wait(workers_[worker]); };
    const bool can_all_wait =
        how == Flush::batched && std::all_of(to_flush_.begin(), to_flush_.end(), waits);
    if (!can_all_wait) workers.swap(to_flush_);
  }
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  for (const std::uint32_t worker : workers) flush_worker(worker);
}

rpc::RunBatch Runtime::make_batch(Worker& worker) {
  rpc::RunBatch batch{.low_watermark = queue_.low_watermark()};
  batch.closures.reserve(worker.outbox.size());
  for (const ClosureId closure : worker.outbox) {
    const auto found = pending_.find(closure);
    if (found == pending_.end())
      continue;  // its worker has reported two ends of an earlier attempt
    Pending& pending = found->second;
    rpc::ClosureCall call{.closure_id = closure,
                          .function_id = pending.function->id(),
                          .seed = mix_seed(connection_.options().seed, closure),
                          .inputs = pending.function->restored(pending.arguments)};
    // Else a worker that needs what is lacking asks for a program.
    static_cast<void>(add_captured(pending));
    call.inputs.insert(call.inputs.end(), pending.captured.begin(), pending.captured.end());
    for (const Nest& resource : pending.resources)
      call.resources.push_back(static_cast<const IteratorHandle&>(*resource.handle()).id());
    if (pending.in_epoch.run) call.epoch_step = pending.in_epoch.step;
    batch.closures.push_back(std::move(call));
    worker.sent.add(closure);
  }
  worker.outbox.clear();
  return batch;
}

// What leaves for a worker next. One thread at a time sends, so frames leave in the order of the
// queue; what others add meanwhile goes with its next frame.
class Runtime::Sending {
 public:
  Sending(Runtime& runtime, std::uint32_t worker) : runtime_(runtime), worker_(worker) {}
  ~Sending() {
    if (!is_mine_) return;
    const Lock lock(runtime_.mutex_);
    runtime_.workers_[worker_].is_sending = false;
  }
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;

  // False: there is nothing, or another thread sends it.
  bool take() {
    const Lock lock(runtime_.mutex_);
    Worker& worker = runtime_.workers_[worker_];
    if (!is_mine_ && worker.is_sending) return false;
    if (!worker.is_ready || (worker.outbox.empty() && worker.cancels.empty())) {
      if (is_mine_) worker.is_sending = is_mine_ = false;
      return false;
    }
    data_ = worker.link.connection.data;
    batch_ = runtime_.make_batch(worker);
    cancel_.closures.swap(worker.cancels);
    worker.is_sending = is_mine_ = true;
    return true;
  }
  void send() {
    if (!batch_.closures.empty()) data_->send_one_way(rpc::to_frame(std::move(batch_)));
    if (!cancel_.closures.empty()) data_->send_one_way(rpc::to_frame(cancel_));
    cancel_.closures.clear();
  }
  void close() {
    if (data_) data_->close();
  }

 private:
  Runtime& runtime_;
  const std::uint32_t worker_;
  bool is_mine_ = false;
  std::shared_ptr<rpc::Requester> data_;
  rpc::RunBatch batch_;
  rpc::CancelRequest cancel_;
};

void Runtime::flush_worker(std::uint32_t worker) {
  Sending sending(*this, worker);
  try {
    while (sending.take()) sending.send();
  } catch (...) {
    // Its loss is on the way through on_lost, which takes the closures back: perhaps on this very
    // thread, so it is not to be waited for.
    sending.close();  // also where what was sent is at fault
    log_debug("sending to worker:", worker, " failed: ", current_error().what());
  }
}

void Runtime::on_frame(std::uint32_t worker, std::uint64_t epoch, rpc::Frame frame) {
  const auto type = static_cast<rpc::MessageType>(frame.type);
  if (type == rpc::MessageType::program_request)
    return on_program_request(worker, std::move(frame));
  if (type != rpc::MessageType::completed) return;
  rpc::CompletedBatch batch = rpc::completed_of(std::move(frame));
  for (const rpc::ClosureEnd& end : batch.ends) {
    if (end.error && gives_way(*end.error)) return;
  }
  std::optional<Error> wrong;
  {
    const Lock lock(mutex_);
    if (!workers_[worker].is_ready || workers_[worker].link.epoch != epoch) {
      totals_.duplicate_reports_dropped += batch.ends.size();
      return;
    }
    const TimePoint now = Clock::system().now();
    Actions actions = take_actions();
    workers_[worker].window.ended(batch.ends.size(), now);
    queue_.set_in_flight(worker, workers_[worker].window.size(), actions);
    for (rpc::ClosureEnd& end : batch.ends) {
      wrong = on_end(worker, std::move(end), now, actions);
      if (wrong) break;
    }
    if (wrong) ++totals_.protocol_errors;
    carry_out(actions);
    give_back(std::move(actions));
  }
  flush();
  if (wrong) throw Error(*wrong);  // closes the channel, with a line in the log
}

std::optional<Error> Runtime::on_end(std::uint32_t worker, rpc::ClosureEnd end, TimePoint now,
                                     Actions& actions) {
  totals_.pulled_bytes += end.pulled_bytes;
  totals_.pushed_bytes += end.pushed_bytes;
  totals_.pushes_dropped += end.pushes_dropped;
  if (end.error) errors_.note(*end.error);  // also where the closure is retried
  if (!workers_[worker].sent.may_have(end.closure_id)) return never_sent(worker, end.closure_id);
  // An end before it in the same report may have cost the worker its closures.
  if (!queue_.is_running(end.closure_id, worker)) {
    ++totals_.duplicate_reports_dropped;
    return std::nullopt;
  }
  const auto found = pending_.find(end.closure_id);
  COHORT_ASSERT(found != pending_.end());
  if (const auto& epoch = found->second.in_epoch.run)
    epoch->files->note(worker, std::move(end.files));
  Ended ended{.closure = end.closure_id, .worker = worker, .error = end.error};
  if (end.pushes_dropped > 0 && !found->second.is_retried) {
    ended.kind = Ended::Kind::failed;  // another attempt's updates would be dropped as well
    ended.error = lost_updates(worker, end);
    queue_.ended(ended, now, actions);
    return ended.error;
  }
  switch (end.status) {
    case rpc::ClosureEnd::Status::ok:
      found->second.reported = std::move(end.tensors);
      found->second.in_epoch.rows = end.rows;
      ended.kind = Ended::Kind::ok;
      break;
    case rpc::ClosureEnd::Status::failed:
      ended.kind = Ended::Kind::failed;
      break;
    case rpc::ClosureEnd::Status::cancelled:
      --found->second.runs;  // before it began
      ended.kind = Ended::Kind::cancelled;
      break;
    case rpc::ClosureEnd::Status::needs_program:
      found->second.reported = std::move(end.tensors);
      found->second.waits_for_program = true;
      --found->second.runs;
      ended.kind = Ended::Kind::needs_program;
      break;
    case rpc::ClosureEnd::Status::end_of_data:
      if (!found->second.in_epoch.run) return no_epoch(worker, end.closure_id);
      found->second.in_epoch.is_end = true;
      ended.kind = Ended::Kind::ok;
      break;
  }
  queue_.ended(ended, now, actions);
  return std::nullopt;
}

}  // namespace cohort::coordinator
