// SPDX-License-Identifier: Apache-2.0
// The calls in which the workers of one synchronous strategy wait for each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/collective/worker_calls.h"
#include "cohort/core/bytes.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/mutex.h"
#include "cohort/workers/stop_flag.h"

namespace cohort::internal {

class WorkerGroups;

// A worker's request in a call. All workers must have the same `text`; it may have several lines,
// of which messages name the first that differs. It refers to texts of the caller.
struct WorkerRequest {
  std::string_view call;  // "variable", for messages
  std::string_view text = {};
  std::optional<Duration> timeout = {};  // not given: that of the strategy
  bool combines = true;                  // values of the workers, as a sum of gradients does
};

// All workers make the same calls in the same order. If they do not, each of them throws
// invalid_argument, which says what which worker did, and in which call of the user's program it is
// where that is known (CallSite); if a worker fails where the others wait for
// it, they throw its error, with its name as the origin. After both, further calls work. After
// deadline_exceeded, or if a worker is gone, they throw aborted.
//
// While no call runs, a second thread may make one; while one runs, it gets failed_precondition.
// Thread-safe. Many methods because calls that workers match by their order have one place.
class COHORT_API StrategyWorkers {
 public:
  // `group`: nullptr for a strategy of one worker. `local_replicas` must be the same for all.
  StrategyWorkers(std::shared_ptr<collective::Group> group, Duration timeout, int local_replicas,
                  std::shared_ptr<collective::WorkerCalls> calls);

  // Before the first call: MultiWorkerMirroredOptions::shard_optimizer_state, which must be the
  // same for all.
  void set_shards(bool shards) { shards_ = shards; }

  bool are_several() const { return count_.load(std::memory_order_relaxed) > 1; }
  int count() const { return count_.load(std::memory_order_relaxed); }
  int own() const { return own_.load(std::memory_order_relaxed); }  // the index of this worker
  std::string name_of(int worker) const;
  std::uint64_t num_elements() const { return calls_->num_elements(); }
  // How many calls that combine values have succeeded.
  std::uint64_t num_combined() const { return num_combined_.load(std::memory_order_relaxed); }

  // Goes on with other workers; no call may run. Agreements with the earlier ones no longer count.
  void use(std::shared_ptr<collective::Group> group);
  // Who forms this worker's groups, if it is a process of a cluster. To be set before the first
  // call.
  void ask_groups(std::weak_ptr<WorkerGroups> groups) { groups_ = std::move(groups); }
  // While no call runs: whether the others have ended the group because of this worker. They go on
  // without it, so its values may be older than theirs.
  bool is_given_up() const;
  // After a call that has failed: whether there is nobody with whom this worker could form a group.
  bool have_others_ended() const;
  // The number of the group, as in collective::Membership; 0 if there can be no other.
  std::uint64_t membership_number() const;
  // How many groups there were before.
  std::uint64_t group_number() const { return group_number_.load(std::memory_order_relaxed); }
  // Changes with each group, and with each call that has failed.
  std::uint64_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  // `callback` is called after each change of epoch(), on any thread; it must not throw, nor call
  // this object. nullptr: nothing is called from now on.
  void on_new_epoch(std::function<void()> callback);
  Duration timeout() const { return timeout_; }
  // A group of the same workers, for calls that are not made by this object. All split in the same
  // order.
  std::shared_ptr<collective::Group> split() { return group()->split(); }
  // To be called when a call of such a group has thrown.
  void note_failure(ErrorCode code);

  struct Message {
    std::string text;  // WorkerRequest::text of a call that is known only now
    Bytes bytes;
  };
  // Returns what each worker has made. If `make` throws on one, all throw that error.
  std::vector<Bytes> exchange(const WorkerRequest& request, const std::function<Message()>& make);
  // As Group's methods.
  void all_reduce(const WorkerRequest& request, std::span<const at::Tensor> tensors);
  void broadcast(const WorkerRequest& request, std::span<const at::Tensor> tensors);
  at::Tensor reduce_scatter(const WorkerRequest& request, const at::Tensor& tensor);
  at::Tensor all_gather(const WorkerRequest& request, const at::Tensor& tensor, std::int64_t axis);

  // Whether a worker wants to stop: the same answer on all, which make this call at the same point.
  // A message, unless the flags have travelled with the sums of a step since the last call.
  bool agree_to_stop(bool wants);
  // The flag that a sum of a step takes along, and the one that has come with it.
  bool wants_stop() const { return stop_.is_wanted(); }
  void note_stop(bool any) { stop_.note(any, epoch()); }

  // Around a run: a worker that fails there tells the others, who may wait for it.
  void begin_run() {
    has_failed_together_.store(false, std::memory_order_relaxed);
    num_runs_.fetch_add(1, std::memory_order_relaxed);
  }
  template <class F>
  auto in_run(const F& body) {
    begin_run();
    try {
      return body();
    } catch (...) {
      tell_failure();
      throw;
    }
  }
  // In a catch block. Waits for the others' next call, unless they know the error already.
  void tell_failure();

 private:
  struct Failure {
    std::optional<Error> error = {};
    std::string text;
  };
  // Makes a call of the group. If the workers have made different ones, throws what all of them
  // find out together.
  void together(const WorkerRequest& request, const std::optional<Error>& failure,
                const std::function<void(collective::Group&, Deadline)>& call);
  void introduce(collective::Group& group, Deadline deadline);
  [[noreturn]] void explain(collective::Group& group, const WorkerRequest& request,
                            const std::optional<Error>& failure, const Error& found,
                            Deadline deadline);
  std::shared_ptr<collective::Group> group() const;
  void begin_epoch();

  const Duration timeout_;
  const int local_replicas_;
  std::atomic<bool> shards_ = false;
  const std::shared_ptr<collective::WorkerCalls> calls_;
  std::weak_ptr<WorkerGroups> groups_;  // none: the workers are one group for ever
  std::atomic<int> count_ = 1;
  std::atomic<int> own_ = 0;
  std::atomic<std::uint64_t> group_number_ = 0;
  std::atomic<std::uint64_t> epoch_ = 0;
  std::atomic<std::uint64_t> num_combined_ = 0;
  std::atomic<bool> has_failed_together_ = false;  // the last call has thrown on all workers
  std::atomic<bool> is_introduced_ = false;
  std::atomic<std::uint64_t> num_runs_ = 0;  // in this group; for messages
  StopFlag stop_;
  mutable Mutex mutex_;
  std::shared_ptr<collective::Group> group_ COHORT_GUARDED_BY(mutex_);
  Mutex callback_mutex_;
  std::function<void()> on_new_epoch_ COHORT_GUARDED_BY(callback_mutex_);
};

}  // namespace cohort::internal
