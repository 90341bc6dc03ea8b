// SPDX-License-Identifier: Apache-2.0
// Everything that one start of a coordinator has made on this task. Another start gets another
// Session.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "cohort/core/mutex.h"
#include "cohort/parameter_server/parameter_store.h"
#include "cohort/rpc/channel.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/error_record.h"
#include "cohort/server/closures/closure_runner.h"
#include "cohort/server/closures/iterator_table.h"
#include "cohort/server/session/shared_directory.h"
#include "cohort/server/writing/cut_writer.h"

namespace cohort::server {

struct SessionOptions {
  rpc::Identity self;
  std::string coordinator = {};  // the coordinator's task, "chief:0"
  std::uint64_t coordinator_incarnation = 0;
  std::uint64_t start_order = 0;  // a later start of the coordinator has a higher one
  bool is_shared = false;         // rpc::HandshakeRequest's
  std::vector<std::string> data_dirs = {};
  Duration data_timeout = std::chrono::minutes(5);
  PayloadChecksums payload_checksums = PayloadChecksums::between_hosts;
  std::size_t hot_rows = 0;  // see ServerOptions
  // Records the errors of the task, across all its sessions.
  std::shared_ptr<rpc::ErrorRecord> errors = std::make_shared<rpc::ErrorRecord>();
};

// Many methods because it takes each control call of a coordinator, and tells what decides between
// two of them. Thread-safe. After replace() it refuses all frames with rpc::replaced_error().
class Session final : public rpc::CoordinatorSession {
 public:
  explicit Session(SessionOptions options);
  ~Session() override;

  std::uint64_t coordinator_incarnation() const { return options_.coordinator_incarnation; }
  std::uint64_t start_order() const { return options_.start_order; }
  const std::string& coordinator() const { return options_.coordinator; }
  bool is_shared() const { return options_.is_shared; }
  // Before its coordinator has opened a channel, nothing says whether it lives.
  bool has_met_coordinator() const { return has_met_coordinator_; }
  // Called for each hello, before greeted().
  void meet(const std::string& task) {
    if (task == options_.coordinator) has_met_coordinator_ = true;
  }
  bool is_replaced() const { return is_replaced_; }
  PayloadChecksums payload_checksums() const { return options_.payload_checksums; }
  // Called when `task` has opened a channel. Pipelines ask for missing programs over the newest
  // channel of the coordinator.
  void greeted(const std::string& task, const std::shared_ptr<rpc::Channel>& channel,
               const std::shared_ptr<CompletionSender>& sender);
  void set_membership(const rpc::Membership& membership) override {
    tables_->servers->set(membership);
    runner_->set_closures_at_once(std::max<std::size_t>(1, membership.closures_at_once));
  }
  void place_variables(const rpc::Placement& placement) override;
  void register_function(const rpc::FunctionBody& body) override { tables_->functions.put(body); }
  void create_variables(const std::vector<rpc::VariableSpec>& variables) override {
    store_.create(variables);
  }
  void create_iterator(const rpc::IteratorSpec& iterator) override;
  void release(const std::vector<std::uint64_t>& resources) override {
    tables_->iterators.release(resources);
  }
  // Handles a frame after the hello. Throws the error that is sent to the peer.
  void handle(rpc::Frame frame, const std::shared_ptr<rpc::Channel>& channel,
              const std::shared_ptr<CompletionSender>& sender);
  // Called before hang_up() when the peer at this channel has said that its work has ended. If it
  // is the coordinator, whose strategy has ended, drops its variables and functions, unless its job
  // is shared: then other tasks may still train with them.
  void take_farewell(const std::shared_ptr<CompletionSender>& sender);
  // Called when the channel of `sender` has closed.
  void hang_up(const std::shared_ptr<CompletionSender>& sender);
  TaskHealth health() const;
  // Starts no more closures, and waits for those that run; returns false at the deadline.
  bool drain(Deadline deadline) { return runner_->drain(deadline); }
  // Starts no more closures, and lets all requests of the one that runs fail, as the destructor
  // does. Waits briefly for that closure; returns false if it is left behind.
  bool end() noexcept;
  // Called when another coordinator takes over: the session accepts nothing more, and ends.
  void replace() noexcept;

 private:
  void drop_state() noexcept;
  // `time_of_pipelines` is how long to wait for pipelines after the closures have ended.
  bool end_within(Duration time_of_pipelines) noexcept;
  // The coordinator's channel. It is shared with the threads of pipelines, which may outlive the
  // job.
  struct Asker {
    Mutex mutex;
    std::weak_ptr<rpc::Channel> channel COHORT_GUARDED_BY(mutex);
    std::weak_ptr<CompletionSender> sender COHORT_GUARDED_BY(mutex);
  };
  static void ask(Asker& asker, std::uint64_t iterator, const std::string& function,
                  const Fields& element);
  void peek(const rpc::PeekRequest& request, std::uint64_t id,
            const std::shared_ptr<rpc::Channel>& channel);

  const SessionOptions options_;
  ParameterStore store_;
  SharedDirectory directory_;
  const std::shared_ptr<Asker> asker_ = std::make_shared<Asker>();
  const std::shared_ptr<ClosureTables> tables_;
  const std::shared_ptr<ClosureRunner> runner_;
  CutWriter cut_writer_;
  std::atomic<bool> is_replaced_{false};
  std::atomic<bool> has_met_coordinator_{false};
};

}  // namespace cohort::server
