// SPDX-License-Identifier: Apache-2.0
// The coordinator's queue and failure policy as a pure state machine: no threads, sockets or clocks
// inside. Every call is an event that happens `now`; what must follow is returned as actions for
// the runtime.
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

#include "cohort/coordinator/detail/failure_policy.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"

namespace cohort::coordinator {

using ClosureId = std::uint64_t;
using WorkerId = std::uint32_t;

struct QueueOptions {
  // Queued closures; 0: unbounded.
  std::size_t capacity = 256 * 1024;
  std::size_t in_flight_per_worker = 4;
  // TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES: this many reports of one ps are fatal; <= 0: one
  // is.
  int max_transient_ps_failures = 3;
  // TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS: likewise for timeouts; -1: workers / 10.
  int max_transient_timeouts = -1;
  // Reports older than this are forgotten.
  Duration transient_window = std::chrono::minutes(10);
  // Reports of one ps within it count once, since closures in flight fail together; zero: each
  // counts.
  Duration same_event = Duration::zero();
  // Starts of one closure; after these its last error is an application error.
  std::uint32_t max_attempts = 100;
};

// What the runtime has to do, in order.
struct Action {
  enum class Kind : std::uint8_t {
    dispatch,        // send `closure` to `worker`
    complete,        // closure's RemoteValue becomes ready (its result is with the runtime)
    fail,            // closure's RemoteValue holds `error`
    cancel,          // ask `worker` to cancel the running `closure`; its end is still awaited
    recover_worker,  // reconnect `worker`, rebuild its resources, then call worker_ready()
    wake_waiters,    // something that schedule, join or done wait for may have changed
    need_program,    // `closure` waits until a caller's thread has traced for what `worker` drew
  };
  Kind kind;
  ClosureId closure = 0;
  WorkerId worker = 0;
  std::optional<Error> error;
};
using Actions = std::vector<Action>;

// What a caller of schedule, join or done does next.
struct Verdict {
  enum class Kind : std::uint8_t {
    proceed,  // schedule: queued; join: everything has ended; done: true
    no,       // done only: something still runs or waits
    wait,     // call again after the next wake_waiters
    trace,    // nothing was done: trace what waiting_for_program() names, then call again
    raise,    // throw `error`, the first application error: nothing runs any more, it is forgotten
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
// What ran on a worker may be reported once: an end that is not awaited (its worker was lost
// meanwhile) is ignored. The owner drops what still comes over a lost worker's old connection,
// since the same closure may run there again.
class COHORT_API ClosureQueue {
 public:
  ClosureQueue(QueueOptions options, std::size_t workers);
  ~ClosureQueue();

  // Callers. Each may be called again with the same arguments after `wait`; actions are appended
  // whatever the verdict.
  // schedule: waits while the queue is full. With an error set it cancels everything, `closure`
  // too, and raises. Ids grow from call to call: one caller at a time may be in schedule (tf's
  // put/wait lock).
  Verdict put(ClosureId closure, TimePoint now, Actions& actions);
  // join: waits until nothing is queued or in flight, or an error is set.
  Verdict join(TimePoint now, Actions& actions);
  Verdict done(TimePoint now, Actions& actions);
  // A closure of one worker alone, which is retried there, too, and waits for it while it is lost;
  // in id order, and in turn with those that any worker may run. Ids grow over put() and put_on()
  // together. The capacity does not count. Call it only while !has_error().
  Verdict put_on(WorkerId worker, ClosureId closure, TimePoint now, Actions& actions);
  // Such a closure ends as cancelled, at once or, where it runs, when its worker has cancelled it
  // or it would be retried. Nobody is asked to trace for it any more.
  void withdraw(ClosureId closure, TimePoint now, Actions& actions);
  // An error that the next call of put, join or done raises.
  bool has_error() const;

  // Workers. A worker starts as not ready.
  void worker_ready(WorkerId worker, TimePoint now, Actions& actions);
  // Its closures go back to the front of the queue, in id order, or are cancelled when an error is
  // set; at most one recovery runs for a worker.
  void worker_lost(WorkerId worker, const Error& error, TimePoint now, Actions& actions);
  // Another limit than in_flight_per_worker from now on, whether the worker is ready or not. What
  // it has stays there.
  void set_in_flight(WorkerId worker, std::size_t limit, Actions& actions);
  // Whatever its kind, the closure's slot on the worker is free again.
  // A ps that cannot be reached ends the job's current work: an application error for the callers,
  // unless transient.
  void ended(const Ended& end, TimePoint now, Actions& actions);
  // A caller's thread has traced what `closure` waited for: it goes to `worker` again, which holds
  // its element, or to the front of the queue when that worker is lost. Does nothing for a closure
  // that does not wait (any more).
  void program_ready(ClosureId closure, TimePoint now, Actions& actions);
  // Its trace failed: an application error.
  void program_failed(ClosureId closure, const Error& error, TimePoint now, Actions& actions);

  // Every closure ends as cancelled; put raises from now on.
  void stop(Actions& actions);

  // Closures below it are all retired: parameter servers may drop whatever still comes from them.
  ClosureId low_watermark() const;
  std::size_t queued() const;
  // Running, or with a worker's element waiting for a program or a slot.
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
