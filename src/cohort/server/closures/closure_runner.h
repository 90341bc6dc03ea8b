// SPDX-License-Identifier: Apache-2.0
// Runs closures on a worker: draws elements, pulls variables, interprets the program, pushes
// updates, and reports the end.
//
// One thread takes the closures in order, so the draws from an iterator have the order of the
// closures. If the coordinator asks for it, several threads run closures at once, each with its
// share of LibTorch's threads; a closure starts only after the one before it has drawn, so the
// order of the draws is the same. A thread does not wait for the acknowledgement of a push, because
// a later pull on the same connection is answered after the push. If one closure runs at a time,
// and needs neither variables nor data, and its function was short the last time, and no other
// closure waits, it runs on the thread that receives it, as waking another thread would take
// longer.
//
// A program that reads a variable after updating it has several segments. At the end of each
// segment except the last one the runner pushes, waits for the acknowledgements, and pulls these
// variables again.
//
// If a parameter server does not answer a pull or a push within the data timeout, the link to it is
// closed, and every closure that waits for this server ends with an error that names it.
//
// User code and pipelines may never return, and cannot be stopped. If a runner is ended while such
// code runs, its thread is left behind, with everything that the thread uses.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/parameter_server/parameter_client.h"
#include "cohort/parameter_server/placement_table.h"
#include "cohort/parameter_server/server_links.h"
#include "cohort/rpc/error_record.h"
#include "cohort/rpc/messages.h"
#include "cohort/server/closures/closure_draws.h"
#include "cohort/server/closures/completion_sender.h"
#include "cohort/server/closures/function_table.h"
#include "cohort/server/closures/iterator_table.h"
#include "cohort/server/closures/running_closure.h"

namespace cohort::server {

// The tables that closures use. They live as long as a closure runs.
struct ClosureTables {
  explicit ClosureTables(parameter_server::ServerLinks::Options links)
      : servers(std::make_shared<parameter_server::ServerLinks>(std::move(links))) {}

  FunctionTable functions;
  IteratorTable iterators;
  parameter_server::PlacementTable placement;
  const std::shared_ptr<parameter_server::ServerLinks> servers;
};

// Thread-safe.
class ClosureRunner : public std::enable_shared_from_this<ClosureRunner> {
 public:
  struct Options {
    std::string task;  // "worker:1": the origin of errors
    std::int64_t worker_index = 0;
    std::uint64_t coordinator_incarnation = 0;
    // Records the errors of closures that fail.
    std::shared_ptr<rpc::ErrorRecord> errors = std::make_shared<rpc::ErrorRecord>();
  };
  // Its threads share the ownership. The caller of start() must call end().
  static std::shared_ptr<ClosureRunner> start(Options options,
                                              std::shared_ptr<ClosureTables> tables);
  ~ClosureRunner();
  ClosureRunner(const ClosureRunner&) = delete;
  ClosureRunner& operator=(const ClosureRunner&) = delete;
  // Drops the queued closures and waits for those that run. Returns false at the deadline; then
  // the threads are left behind. Must not be called from a closure.
  bool end(Deadline deadline) noexcept;
  // The number of threads of this process that were left behind and still run.
  static int left_behind() noexcept;

  // How many closures run at once, for those that start from now on; at the start, 1. Throws
  // resource_exhausted if the system has no threads for it.
  void set_closures_at_once(std::size_t count);
  void enqueue(rpc::RunBatch batch, const std::shared_ptr<CompletionSender>& sender);
  // Starts no more closures and waits until the ones that run have been reported; returns false at
  // the deadline. Queued closures are dropped, as the coordinator takes them back.
  bool drain(Deadline deadline);
  // Cancels these closures. If one has not started, it is reported as cancelled at once. One
  // that runs ends before its next operator, or where it waits for the value of a variable; it
  // fails with `cancelled` then, or has ended well before. A registered function runs to its end.
  void cancel(const std::vector<std::uint64_t>& closures);
  // Drops the closures of this sender that have not started, and cancels those that run, because
  // nobody waits for their ends any more.
  void drop(const std::shared_ptr<CompletionSender>& sender);
  struct Counts {
    std::uint64_t ended_well = 0;  // without an error
    std::uint64_t failed = 0;
    std::uint64_t queued = 0;
    std::uint64_t running = 0;
    std::optional<Duration> since_last_end;  // since a closure ended well or failed
  };
  Counts counts() const;

 private:
  using Draws = ClosureDraws::Draws;
  struct Item {
    rpc::ClosureCall call;
    std::uint64_t low_watermark;
    std::shared_ptr<CompletionSender> sender;
  };

  // Belongs to the closure that starts now: until next(), or its end, no other one starts. Used
  // only by the thread of the closure.
  class Start {
   public:
    // `runner`: nullptr if the others start only after its end.
    explicit Start(ClosureRunner* runner) : runner_(runner) {}
    void next();
    // Whether next() did nothing.
    bool is_held() const { return is_held_; }

   private:
    ClosureRunner* const runner_;
    bool is_held_ = true;
  };
  struct Taken {
    Item item;
    std::shared_ptr<RunningClosure> running;
    bool more_follow = false;
    std::size_t at_once = 1;
  };

  ClosureRunner(Options options, std::shared_ptr<ClosureTables> tables);
  void add_threads() COHORT_REQUIRES(mutex_);
  bool may_start() const COHORT_REQUIRES(mutex_) {
    return !is_starting_ && num_running_ < at_once_;
  }
  template <class Is>
  void cancel_running(const Is& is_meant) COHORT_REQUIRES(mutex_);
  std::size_t run_brief(rpc::RunBatch& batch, const std::shared_ptr<CompletionSender>& sender);
  void loop(std::size_t thread);
  void note_end();
  std::optional<Taken> take(std::size_t thread);
  void run(Taken taken, Start& start);
  std::shared_ptr<RunningClosure> running_closure(const Item& item) const;
  void run_program(Item& item, const WorkerFunction& function,
                   const std::shared_ptr<RunningClosure>& running, Start& start);

  const Options options_;
  const std::shared_ptr<ClosureTables> tables_;  // the references below are its members
  FunctionTable& functions_;
  const parameter_server::ParameterClient client_;
  mutable Mutex mutex_;
  Condition changed_;
  std::deque<Item> inbox_ COHORT_GUARDED_BY(mutex_);
  std::size_t at_once_ COHORT_GUARDED_BY(mutex_) = 1;
  std::size_t num_running_ COHORT_GUARDED_BY(mutex_) = 0;  // closures, on any thread
  bool is_starting_ COHORT_GUARDED_BY(mutex_) = false;     // one of them has not called next()
  bool is_stopping_ COHORT_GUARDED_BY(mutex_) = false;
  std::size_t num_alive_ COHORT_GUARDED_BY(mutex_) = 0;  // threads that may use this
  bool is_left_ COHORT_GUARDED_BY(mutex_) = false;
  std::atomic<bool> has_one_thread_{true};
  // The newest closure of each thread, which may have ended.
  std::vector<std::shared_ptr<RunningClosure>> newest_ COHORT_GUARDED_BY(mutex_);
  std::shared_ptr<CompletionSender> last_sender_ COHORT_GUARDED_BY(mutex_);
  const std::shared_ptr<OpenClosures> open_ = std::make_shared<OpenClosures>();
  // Used only by the thread that has set is_starting_.
  ClosureDraws draws_;
  std::vector<std::thread> threads_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::server
