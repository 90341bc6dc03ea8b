// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/queue/closure_sender.h"

#include <algorithm>
#include <utility>

#include "cohort/coordinator/datasets/iterator_handle.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/random.h"

namespace cohort::coordinator {

// Creates the lane on first use.
ClosureSender::Lane& ClosureSender::lane(std::uint32_t worker) {
  while (lanes_.size() <= worker) {
    lanes_.emplace_back().window =
        internal::InFlightWindow(static_cast<std::size_t>(context_.options.in_flight_per_worker),
                                 static_cast<std::size_t>(context_.options.closures_per_worker));
  }
  return lanes_[worker];
}

void ClosureSender::add(std::uint32_t worker, ClosureId closure, TimePoint now) {
  Lane& to = lane(worker);
  to.window.sent(now);
  to.outbox.push_back(closure);
  to_flush_.push_back(worker);
}

void ClosureSender::add_cancel(std::uint32_t worker, ClosureId closure) {
  lane(worker).cancels.push_back(closure);
  to_flush_.push_back(worker);
}

std::vector<ClosureId> ClosureSender::take_unsent(std::uint32_t worker) {
  lane(worker).cancels.clear();
  return std::exchange(lane(worker).outbox, {});
}

void ClosureSender::note_ends(std::uint32_t worker, std::size_t count, TimePoint now) {
  lane(worker).window.ended(count, now);
}

void ClosureSender::reset(std::uint32_t worker) {
  lane(worker).window.reset();
  lane(worker).sent.clear();
}

std::size_t ClosureSender::window_size(std::uint32_t worker) { return lane(worker).window.size(); }

bool ClosureSender::may_have_sent(std::uint32_t worker, ClosureId closure) {
  return lane(worker).sent.may_have(closure);
}

bool ClosureSender::can_wait(std::uint32_t worker) {
  const Lane& to = lane(worker);
  return to.cancels.empty() && to.window.can_wait(to.outbox.size());
}

void ClosureSender::flush(Flush how) {
  std::vector<std::uint32_t> workers;
  {
    const RuntimeLock lock(context_);
    const auto waits = [&](std::uint32_t worker)
                           COHORT_REQUIRES(runtime_lock) { return can_wait(worker); };
    const bool can_all_wait =
        how == Flush::batched && std::all_of(to_flush_.begin(), to_flush_.end(), waits);
    if (!can_all_wait) workers.swap(to_flush_);
  }
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  for (const std::uint32_t worker : workers) flush_worker(worker);
}

rpc::ClosureCall ClosureSender::call_of(ClosureId closure, PendingClosure& pending) {
  rpc::ClosureCall call{.closure_id = closure,
                        .function_id = pending.function->id(),
                        .seed = mix_seed(context_.connection.options().seed, closure),
                        .inputs = pending.function->restored(pending.arguments)};
  // If values are missing, the worker asks for a program.
  static_cast<void>(pending.add_captured());
  call.inputs.insert(call.inputs.end(), pending.captured.begin(), pending.captured.end());
  for (const Nest& resource : pending.resources)
    call.resources.push_back(static_cast<const IteratorHandle&>(*resource.handle()).id());
  if (const EpochRun* const epoch = pending.in_epoch.run.get()) {
    call.epoch_step = pending.in_epoch.step;
    if (epoch->snapshot != nullptr) call.snapshot = epoch->snapshot->number();
  }
  return call;
}

rpc::RunBatch ClosureSender::make_batch(Lane& lane) {
  rpc::RunBatch batch{.low_watermark = queue_.low_watermark()};
  batch.closures.reserve(lane.outbox.size());
  for (const ClosureId closure : lane.outbox) {
    PendingClosure* const pending = pending_.find(closure);
    if (pending == nullptr)
      continue;  // the worker has reported the end of an earlier attempt twice
    batch.closures.push_back(call_of(closure, *pending));
    lane.sent.add(closure);
  }
  lane.outbox.clear();
  return batch;
}

// Sends a worker's messages. One thread at a time does it, so that messages are sent in the order
// of the queue; closures that other threads add meanwhile are in its next message.
class ClosureSender::Sending {
 public:
  Sending(ClosureSender& sender, std::uint32_t worker) : sender_(sender), worker_(worker) {}
  ~Sending() {
    if (!is_mine_) return;
    const RuntimeLock lock(sender_.context_);
    sender_.lane(worker_).is_sending = false;
  }
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;

  // Returns false if there is nothing to send or another thread sends it.
  bool take() {
    const RuntimeLock lock(sender_.context_);
    Lane& lane = sender_.lane(worker_);
    if (!is_mine_ && lane.is_sending) return false;
    if (!sender_.pool_.is_ready(worker_) || (lane.outbox.empty() && lane.cancels.empty())) {
      if (is_mine_) lane.is_sending = is_mine_ = false;
      return false;
    }
    data_ = sender_.pool_.link(worker_).connection.data;
    batch_ = sender_.make_batch(lane);
    cancel_.closures.swap(lane.cancels);
    lane.is_sending = is_mine_ = true;
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
  ClosureSender& sender_;
  const std::uint32_t worker_;
  bool is_mine_ = false;
  std::shared_ptr<rpc::Requester> data_;
  rpc::RunBatch batch_;
  rpc::CancelRequest cancel_;
};

void ClosureSender::flush_worker(std::uint32_t worker) {
  Sending sending(*this, worker);
  try {
    while (sending.take()) sending.send();
  } catch (...) {
    // on_lost() reports the loss and takes the closures back, perhaps on this very thread, so do
    // not wait for it.
    sending.close();  // also if the message itself is the cause
    log_debug("sending to worker:", worker, " failed: ", current_error().what());
  }
}

}  // namespace cohort::coordinator
