// SPDX-License-Identifier: Apache-2.0
// The coordinator's queue and failure policy as a pure state machine: no threads, sockets or clocks
// inside. Every call is an event; what must follow is returned as actions for the runtime.
//
// Follows tf's _CoordinatedClosureQueue and failure handling (spec: put, get, finished, put_back,
// failed, join, done, cancel-all), with several closures in flight on a worker, and retried
// closures first in line in id order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/coordinator/failure_policy.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"

namespace cohort::coordinator {

using ClosureId = std::uint64_t;
using WorkerId = std::uint32_t;

struct QueueOptions {
  // Queued closures; 0: unbounded.
  std::size_t capacity = 256 * 1024;
  std::size_t in_flight_per_worker = 4;
  FailureOptions failures = {};
  // A closure is started at most this many times; then its last error is an application error.
  std::uint32_t max_attempts = 100;
};

// An action that the runtime must take; actions are taken in order.
struct Action {
  enum class Kind : std::uint8_t {
    dispatch,        // send `closure` to `worker`
    complete,        // closure's RemoteValue becomes ready (the runtime has its result)
    fail,            // closure's RemoteValue holds `error`
    cancel,          // ask `worker` to cancel the running `closure`; its end is still awaited
    recover_worker,  // reconnect `worker`, rebuild its resources, then call worker_ready()
    wake_waiters,    // something that schedule, join or done wait for may have changed
    // `closure` waits until a caller's thread has traced it for the element that `worker` drew.
    need_program,
  };
  Kind kind;
  ClosureId closure = 0;
  WorkerId worker = 0;
  std::optional<Error> error;
};
using Actions = std::vector<Action>;

// Tells a caller of schedule, join or done how to continue.
struct Verdict {
  enum class Kind : std::uint8_t {
    proceed,  // schedule: queued; join: everything has ended; done: true
    no,       // done only: something still runs or waits
    wait,     // call again after the next wake_waiters
    trace,    // nothing was done: trace for waiting_for_program(), then call again
    // Throw `error`, the first application error: nothing runs any more, and the queue forgets it.
    raise,
  };
  Kind kind = Kind::proceed;
  std::optional<Error> error;
};

// How a closure ended on a worker.
struct Ended {
  ClosureId closure = 0;
  WorkerId worker = 0;
  enum class Kind : std::uint8_t { ok, failed, cancelled, needs_program } kind = Kind::ok;
  std::optional<Error> error;  // failed
};

// Used only under its owner's lock.
//
// A worker may report an end that the queue does not await, because the worker was lost meanwhile:
// it is ignored. The owner must drop everything that arrives over a lost worker's old connection,
// since the same closure may run there again.
class COHORT_API ClosureQueue {
 public:
  ClosureQueue(QueueOptions options, std::size_t workers);
  ~ClosureQueue();

  // Callers. Each may be called again with the same arguments after `wait`; actions are appended
  // whatever the verdict.
  // schedule: waits while the queue is full. If an error is set, it cancels everything, including
  // `closure`, and raises. Ids grow from call to call: one caller at a time may be in schedule
  // (tf's put/wait lock). A closure with a higher priority runs before others that wait too.
  Verdict put(ClosureId closure, Actions& actions, std::int32_t priority = 0);
  // join: waits until nothing is queued or in flight, or an error is set.
  Verdict join(Actions& actions);
  Verdict done(Actions& actions);
  // A closure that only `worker` may run: if it is retried or the worker is lost, it waits for that
  // worker. A worker takes such closures in id order, in turn with those of the same priority that
  // any worker may run.
  // Ids grow over put() and put_on() together. The capacity does not count. Call it only while
  // !has_error().
  Verdict put_on(WorkerId worker, ClosureId closure, Actions& actions, std::int32_t priority = 0);
  // A closure ends as cancelled: at once if it does not run, otherwise when its worker has
  // cancelled it or it would be retried. No caller is asked to trace for it any more.
  void withdraw(ClosureId closure, Actions& actions);
  // The same for a closure whose deadline has passed: it ends with `late`, unless it still ends
  // well or with an error of its own. The others go on; when all have ended, join or done raises
  // the first such error, unless another one was raised before.
  void expire(ClosureId closure, const Error& late, Actions& actions);
  // Whether the next call of put, join or done raises an error, before all closures have ended.
  bool has_error() const;
  // The error of a parameter server for which the last closure that ended runs again; nullopt if
  // that one has ended well.
  const std::optional<Error>& last_again() const;

  // From now on no closure begins, until as many calls of resume(); those that run go on.
  void pause();
  void resume(Actions& actions);
  // Closures that workers have, without those that wait for a program or a slot.
  std::size_t running() const;

  // Workers. No worker is ready at the start.
  void worker_ready(WorkerId worker, Actions& actions);
  // The worker's closures go back to the front of the queue, in id order, or are cancelled if an
  // error is set; at most one recovery runs for a worker.
  void worker_lost(WorkerId worker, const Error& error, Actions& actions);
  // Replaces in_flight_per_worker for this worker, whether it is ready or not. The closures that it
  // has stay there.
  void set_in_flight(WorkerId worker, std::size_t limit, Actions& actions);
  // Frees the closure's slot on the worker, whatever the kind of end. If a ps cannot be reached,
  // the job's current work ends with an application error for the callers, unless the failure is
  // transient.
  void ended(const Ended& end, TimePoint now, Actions& actions);
  // A caller's thread has made the program that `closure` waited for: the closure goes to `worker`
  // again, which holds its element, or to the front of the queue if that worker is lost. Does
  // nothing for a closure that does not wait (any more).
  void program_ready(ClosureId closure, Actions& actions);
  // The trace failed: an application error.
  void program_failed(ClosureId closure, const Error& error, Actions& actions);

  // Every closure ends as cancelled; from now on put raises.
  void stop(Actions& actions);

  // All closures below this one are retired: parameter servers may drop messages of theirs that
  // still arrive.
  ClosureId low_watermark() const;
  std::size_t queued() const;
  // Closures that run, or that wait for a program or a slot while a worker holds their element.
  std::size_t in_flight() const;
  bool is_running(ClosureId closure, WorkerId worker) const;
  // Whether a put() took it; it may have ended since.
  bool has_accepted(ClosureId closure) const;
  std::vector<ClosureId> waiting_for_program() const;
  bool has_waiting_for_program() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort::coordinator
