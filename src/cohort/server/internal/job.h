// SPDX-License-Identifier: Apache-2.0
// Everything one start of a coordinator has made on this task. A new coordinator gets a new one.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>

#include "cohort/core/mutex.h"
#include "cohort/rpc/channel.h"
#include "cohort/rpc/control.h"
#include "cohort/server/internal/closure_runner.h"
#include "cohort/server/internal/function_table.h"
#include "cohort/server/internal/iterator_table.h"
#include "cohort/server/internal/parameter_links.h"
#include "cohort/server/internal/parameter_store.h"

namespace cohort::server {

struct JobOptions {
  rpc::Identity self;
  std::string coordinator;  // its task: "chief:0"
  std::uint64_t coordinator_incarnation = 0;
  std::uint64_t start_order = 0;  // of the coordinator's start
  std::vector<std::string> ps_addresses;
  std::vector<std::string> data_dirs;
  Duration data_timeout = std::chrono::minutes(5);
  rpc::PayloadChecksums payload_checksums = rpc::PayloadChecksums::between_hosts;
  // The task's, over all its jobs.
  std::shared_ptr<rpc::ErrorRecord> errors = std::make_shared<rpc::ErrorRecord>();
};

// Thread-safe. Once replaced, it refuses frames as rpc::replaced_error() says.
class Job final : public rpc::ControlledJob {
 public:
  explicit Job(JobOptions options);
  ~Job() override;

  std::uint64_t coordinator_incarnation() const { return options_.coordinator_incarnation; }
  std::uint64_t start_order() const { return options_.start_order; }
  const std::string& coordinator() const { return options_.coordinator; }
  rpc::PayloadChecksums payload_checksums() const { return options_.payload_checksums; }
  // A channel that `task` has opened, and its sender: the newest of the coordinator's hears of the
  // programs that pipelines lack.
  void greeted(const std::string& task, const std::shared_ptr<rpc::Channel>& channel,
               const std::shared_ptr<CompletionSender>& sender);
  void register_function(const rpc::FunctionBody& body) override { tables_->functions.put(body); }
  void create_variables(const std::vector<rpc::VariableSpec>& variables) override {
    store_.create(variables);
  }
  void create_iterator(const rpc::IteratorSpec& iterator) override;
  void release(const std::vector<std::uint64_t>& resources) override {
    tables_->iterators.release(resources);
  }
  // A frame after the hello. Throws what the peer should hear.
  void handle(rpc::Frame frame, const std::shared_ptr<rpc::Channel>& channel,
              const std::shared_ptr<CompletionSender>& sender);
  // The channel of `sender` has closed.
  void hang_up(const std::shared_ptr<CompletionSender>& sender);
  rpc::Health health() const;
  // Lets the closures that run end, and starts no other; false at the deadline.
  bool drain(Deadline deadline) { return runner_->drain(deadline); }
  // What a closure asks of others fails from here on, and no other is started, as when the job
  // goes. Waits a moment for the one that runs; false when it is left behind.
  bool end() noexcept;
  // Another coordinator has taken the place of its own: accepts nothing more, and ends.
  void replace() noexcept;

 private:
  // `time_of_pipelines`: for those whose closures have ended.
  bool end_within(Duration time_of_pipelines) noexcept;
  // Of the coordinator, for the threads of pipelines, which may outlive the job.
  struct Asker {
    Mutex mutex;
    std::weak_ptr<rpc::Channel> channel COHORT_GUARDED_BY(mutex);
    std::weak_ptr<CompletionSender> sender COHORT_GUARDED_BY(mutex);
  };
  static void ask(Asker& asker, std::uint64_t iterator, const std::string& function,
                  const Fields& element);
  void peek(const rpc::PeekRequest& request, std::uint64_t id,
            const std::shared_ptr<rpc::Channel>& channel);

  const JobOptions options_;
  ParameterStore store_;
  const std::shared_ptr<Asker> asker_ = std::make_shared<Asker>();
  const std::shared_ptr<ClosureTables> tables_;
  const std::shared_ptr<ClosureRunner> runner_;
  std::atomic<bool> is_replaced_{false};
};

}  // namespace cohort::server
