// SPDX-License-Identifier: Apache-2.0
// Runs closures on a worker: draw, pull, interpret, push, report.
//
// One thread takes them in order, so draws from an iterator follow the order of the closures. It
// does not wait for a push to be acknowledged: a later pull on the same connection is answered
// after it. A closure that asks nothing of others, of a function that was short before, runs on the
// thread that brings it, when nothing is before it: waking another thread takes longer.
//
// A program that reads a variable which it has updated has several segments: at the end of each but
// the last the runner pushes, waits for the acknowledgements and pulls these variables again.
//
// The link to a parameter server that leaves a pull or a push without an answer for the data
// timeout is closed: every closure that waits for it ends with an error that names it.
//
// User code and pipelines may never return, and nothing can stop them: a runner that is ended while
// one runs leaves its thread behind, with all that the thread uses.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/rpc/health.h"
#include "cohort/rpc/messages.h"
#include "cohort/server/internal/completion_sender.h"
#include "cohort/server/internal/function_table.h"
#include "cohort/server/internal/iterator_table.h"
#include "cohort/server/internal/open_count.h"
#include "cohort/server/internal/open_pushes.h"
#include "cohort/server/internal/parameter_links.h"
#include "cohort/server/internal/push_collector.h"

namespace cohort::server {

// What closures use. Lives as long as one runs.
struct ClosureTables {
  explicit ClosureTables(ParameterLinkOptions parameter_servers)
      : links(std::move(parameter_servers)) {}

  FunctionTable functions;
  IteratorTable iterators;
  ParameterLinks links;
};

// Thread-safe.
class ClosureRunner {
 public:
  struct Options {
    std::string task;  // "worker:1": the origin of errors
    std::int64_t worker_index = 0;
    Duration data_timeout = std::chrono::minutes(5);  // of a pull, and of a push
    // Of closures that fail.
    std::shared_ptr<rpc::ErrorRecord> errors = std::make_shared<rpc::ErrorRecord>();
  };
  // Shared with its thread. Whoever starts one calls end().
  static std::shared_ptr<ClosureRunner> start(Options options,
                                              std::shared_ptr<ClosureTables> tables);
  ~ClosureRunner();
  ClosureRunner(const ClosureRunner&) = delete;
  ClosureRunner& operator=(const ClosureRunner&) = delete;
  // Drops what is queued and waits for the closure that runs; false at the deadline: its thread is
  // left behind. Not from a closure.
  bool end(Deadline deadline) noexcept;
  // The threads of this process that were left behind and still run.
  static int left_behind() noexcept;

  void enqueue(rpc::RunBatch batch, const std::shared_ptr<CompletionSender>& sender);
  // Starts no more closures and waits until those that run have been reported; false at the
  // deadline. What is queued is dropped: the coordinator takes it back.
  bool drain(Deadline deadline);
  // Those that have not started end as cancelled.
  void cancel(const std::vector<std::uint64_t>& closures);
  // Nobody waits for the ends of this sender's closures any more: those that have not started are
  // dropped.
  void drop(const std::shared_ptr<CompletionSender>& sender);
  // That ended well.
  std::uint64_t closures_run() const { return open_->ended_well; }
  struct Counts {
    std::uint64_t ended_well = 0;
    std::uint64_t failed = 0;
    std::uint64_t queued = 0;
    std::uint64_t running = 0;
    std::optional<Duration> since_last_end;  // of a closure that ended well or failed
  };
  Counts counts() const;

 private:
  using Draws = std::vector<Fields>;
  struct Item {
    rpc::ClosureCall call;
    std::uint64_t low_watermark;
    std::shared_ptr<CompletionSender> sender;
  };
  // The closures that have started and not been reported. Outlives the runner in answers to come.
  struct OpenClosures {
    OpenCount count;
    std::atomic<std::uint64_t> ended_well{0};
    std::atomic<std::uint64_t> failed{0};
    std::atomic<TimePoint> last_end{TimePoint::min()};
    std::shared_ptr<rpc::ErrorRecord> errors;

    void note_end(const rpc::ClosureEnd& end, TimePoint now);
  };
  struct Running;  // what a closure's end needs until its pushes are acknowledged
  class Host;      // the resources of a program that runs
  // A request to a parameter server.
  struct Question {
    std::uint32_t ps;
    bool is_push;
    rpc::Frame frame;
  };

  ClosureRunner(Options options, std::shared_ptr<ClosureTables> tables);
  std::size_t run_brief(rpc::RunBatch& batch, const std::shared_ptr<CompletionSender>& sender);
  void loop();
  void note_end();
  bool take(Item& item, bool& more_follow);
  void run(Item item, bool more_follow);
  void run_program(Item& item, const WorkerFunction& function,
                   const std::shared_ptr<Running>& running);
  // Nothing: a step of an epoch for which there is no element.
  std::optional<Draws> draw(const Item& item, const WorkerFunction& function, Running& running);
  Fields draw_one(const Item& item, const WorkerFunction& function, std::int64_t resource);
  std::optional<Fields> draw_for_epoch(const Item& item, const WorkerFunction& function,
                                       std::uint64_t number, Running& running);
  void park(const Item& item, Draws draws);
  std::vector<rpc::Frame> ask(std::vector<Question> questions, Running& running);

  const Options options_;
  const std::shared_ptr<ClosureTables> tables_;  // and three of its members
  FunctionTable& functions_;
  IteratorTable& iterators_;
  ParameterLinks& links_;
  mutable Mutex mutex_;
  Condition changed_;
  std::deque<Item> inbox_ COHORT_GUARDED_BY(mutex_);
  bool is_running_ COHORT_GUARDED_BY(mutex_) = false;  // a closure, on whatever thread
  bool is_stopping_ COHORT_GUARDED_BY(mutex_) = false;
  bool has_ended_ COHORT_GUARDED_BY(mutex_) = false;  // the thread, but for its last words
  bool is_left_ COHORT_GUARDED_BY(mutex_) = false;
  std::shared_ptr<CompletionSender> last_sender_ COHORT_GUARDED_BY(mutex_);
  const std::shared_ptr<OpenClosures> open_ = std::make_shared<OpenClosures>();
  const std::shared_ptr<OpenPushes> open_pushes_ = std::make_shared<OpenPushes>();
  // Elements drawn by closures that wait for a program. Used only by who has set is_running_.
  std::unordered_map<std::uint64_t, Draws> parked_;
  std::thread thread_;  // used only by who starts and ends the runner
};

}  // namespace cohort::server
