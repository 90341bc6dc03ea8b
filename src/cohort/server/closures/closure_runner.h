// SPDX-License-Identifier: Apache-2.0
// Runs closures on a worker: draws elements, pulls variables, interprets the program, pushes
// updates, and reports the end.
//
// One thread takes the closures in order, so the draws from an iterator have the order of the
// closures. It does not wait for the acknowledgement of a push, because a later pull on the same
// connection is answered after the push. If a closure needs neither variables nor data, and its
// function was short the last time, and no other closure waits, it runs on the thread that receives
// it, as waking another thread would take longer.
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
class ClosureRunner {
 public:
  struct Options {
    std::string task;  // "worker:1": the origin of errors
    std::int64_t worker_index = 0;
    std::uint64_t coordinator_incarnation = 0;
    // Records the errors of closures that fail.
    std::shared_ptr<rpc::ErrorRecord> errors = std::make_shared<rpc::ErrorRecord>();
  };
  // Its thread shares the ownership. The caller of start() must call end().
  static std::shared_ptr<ClosureRunner> start(Options options,
                                              std::shared_ptr<ClosureTables> tables);
  ~ClosureRunner();
  ClosureRunner(const ClosureRunner&) = delete;
  ClosureRunner& operator=(const ClosureRunner&) = delete;
  // Drops the queued closures and waits for the one that runs. Returns false at the deadline; then
  // the thread is left behind. Must not be called from a closure.
  bool end(Deadline deadline) noexcept;
  // The number of threads of this process that were left behind and still run.
  static int left_behind() noexcept;

  void enqueue(rpc::RunBatch batch, const std::shared_ptr<CompletionSender>& sender);
  // Starts no more closures and waits until the ones that run have been reported; returns false at
  // the deadline. Queued closures are dropped, as the coordinator takes them back.
  bool drain(Deadline deadline);
  // Cancels these closures. If one has not started, it is reported as cancelled at once. The one
  // that runs ends before its next operator, or where it waits for the value of a variable; it
  // fails with `cancelled` then, or has ended well before. A registered function runs to its end.
  void cancel(const std::vector<std::uint64_t>& closures);
  // Drops the closures of this sender that have not started, and cancels the one that runs, because
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

  ClosureRunner(Options options, std::shared_ptr<ClosureTables> tables);
  std::size_t run_brief(rpc::RunBatch& batch, const std::shared_ptr<CompletionSender>& sender);
  void loop();
  void note_end();
  std::shared_ptr<RunningClosure> take(Item& item, bool& more_follow);
  void run(Item item, const std::shared_ptr<RunningClosure>& running, bool more_follow);
  std::shared_ptr<RunningClosure> running_closure(const Item& item) const;
  void run_program(Item& item, const WorkerFunction& function,
                   const std::shared_ptr<RunningClosure>& running);

  const Options options_;
  const std::shared_ptr<ClosureTables> tables_;  // the references below are its members
  FunctionTable& functions_;
  const parameter_server::ParameterClient client_;
  mutable Mutex mutex_;
  Condition changed_;
  std::deque<Item> inbox_ COHORT_GUARDED_BY(mutex_);
  bool is_running_ COHORT_GUARDED_BY(mutex_) = false;  // whether a closure runs, on any thread
  bool is_stopping_ COHORT_GUARDED_BY(mutex_) = false;
  bool has_ended_ COHORT_GUARDED_BY(mutex_) = false;  // the thread uses nothing of this any more
  bool is_left_ COHORT_GUARDED_BY(mutex_) = false;
  // The newest closure of the runner's thread, which may have ended.
  std::shared_ptr<RunningClosure> newest_ COHORT_GUARDED_BY(mutex_);
  std::shared_ptr<CompletionSender> last_sender_ COHORT_GUARDED_BY(mutex_);
  const std::shared_ptr<OpenClosures> open_ = std::make_shared<OpenClosures>();
  // Used only by the thread that has set is_running_.
  ClosureDraws draws_;
  std::thread thread_;  // used only by the callers of start() and end()
};

}  // namespace cohort::server
