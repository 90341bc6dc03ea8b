// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/cluster_connection.h"

#include <atomic>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "cohort/cluster/validation.h"
#include "cohort/core/log.h"

namespace cohort {
namespace {

// "60", "0.5"
std::string seconds_of(Duration duration) {
  std::ostringstream text;
  text << std::chrono::duration<double>(duration).count();
  return text.str();
}

ClusterOptions checked(ClusterOptions options) {
  COHORT_CHECK(options.timeout > Duration::zero(), ErrorCode::invalid_argument,
               "[strategy.construct] expected ClusterOptions::timeout > 0, got ",
               seconds_of(options.timeout), " s");
  COHORT_CHECK(options.data_timeout > Duration::zero(), ErrorCode::invalid_argument,
               "[strategy.construct] expected ClusterOptions::data_timeout > 0, got ",
               seconds_of(options.data_timeout), " s");
  return options;
}

std::string address_of(const ClusterSpec& spec, const std::string& job, std::uint32_t index) {
  return spec.task_address(job, index);
}

// Threads that are joined, also where the system has no more of them. Used only from one thread.
class ConnectingThreads {
 public:
  explicit ConnectingThreads(std::atomic<bool>& should_stop) : should_stop_(should_stop) {}
  ~ConnectingThreads() { join(); }
  ConnectingThreads(const ConnectingThreads&) = delete;
  ConnectingThreads& operator=(const ConnectingThreads&) = delete;

  void emplace_back(std::function<void()> body) {
    try {
      threads_.emplace_back(std::move(body));
    } catch (const std::system_error& error) {
      should_stop_ = true;
      join();
      internal::throw_error(
          ErrorCode::resource_exhausted, "[strategy.connect] expected a thread for each task, got ",
          threads_.size(), " and then: ", error.what(), "; raise this process's limit of threads");
    }
  }
  void join() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  std::atomic<bool>& should_stop_;
  std::vector<std::thread> threads_;
};

}  // namespace

ClusterConnection::ClusterConnection(ClusterSpec spec, std::string self_task,
                                     ClusterOptions options)
    : options_(checked(std::move(options))),
      spec_(std::move(spec)),
      num_workers_(static_cast<std::uint32_t>(spec_.num_tasks("worker"))),
      num_ps_(static_cast<std::uint32_t>(spec_.num_tasks("ps"))),
      self_(rpc::identity_of_process(
          self_task,
          options_.job_id.empty() ? rpc::default_job_id(spec_.to_json()) : options_.job_id,
          rpc::new_incarnation())) {
  for (std::uint32_t i = 0; i < num_workers_; ++i) {
    workers_.push_back({"worker:" + std::to_string(i), address_of(spec_, "worker", i), {}});
  }
  for (std::uint32_t i = 0; i < num_ps_; ++i) {
    ps_.push_back({"ps:" + std::to_string(i), address_of(spec_, "ps", i), {}});
  }
}

ClusterConnection::~ClusterConnection() {
  for (const auto* tasks : {&workers_, &ps_}) {
    for (const Task& task : *tasks) {
      if (task.connection.data) task.connection.data->close();
    }
  }
}

rpc::ConnectionOptions ClusterConnection::options_for(const Task& task, std::uint64_t epoch,
                                                      Deadline deadline) const {
  rpc::ConnectionOptions options{.address = task.address,
                                 .task = task.name,
                                 .caller = self_,
                                 .coordinator_incarnation = self_.incarnation,
                                 .backend = options_.backend,
                                 .deadline = deadline};
  const bool is_worker = &task >= workers_.data() && &task < workers_.data() + workers_.size();
  if (is_worker) {
    const auto index = static_cast<std::uint32_t>(&task - workers_.data());
    options.on_one_way = [on_frame = handlers_.on_frame, index, epoch](rpc::Frame frame) {
      on_frame(index, epoch, std::move(frame));
    };
    options.on_closed = [on_lost = handlers_.on_lost, index, epoch](const Error& reason) {
      on_lost(index, epoch, reason);
    };
  }
  return options;
}

void ClusterConnection::connect_ps() {
  const Lock one(connecting_);
  TaskList missing;
  for (Task& task : ps_) {
    if (!task.connection.data) missing.push_back(&task);
  }
  connect(missing);
}

void ClusterConnection::connect_workers(const WorkerHandlers& handlers) {
  const Lock one(connecting_);
  handlers_ = handlers;
  TaskList missing;
  std::vector<rpc::Connection> old;
  {
    const Lock lock(mutex_);
    for (Task& task : ps_) {
      if (!task.connection.data) missing.push_back(&task);
    }
    for (Task& task : workers_) {
      old.push_back(std::exchange(task.connection, {}));
      ++task.epoch;
      missing.push_back(&task);
    }
  }
  for (const rpc::Connection& connection : old) {
    if (connection.data) connection.data->close();
  }
  old.clear();
  connect(missing);
}

// All at once; the first error that waiting cannot cure ends the others' attempts.
void ClusterConnection::connect(const TaskList& missing) {
  validate_addresses(spec_);
  std::vector<std::optional<Error>> errors(missing.size());
  std::atomic<bool> is_hopeless{false};
  ConnectingThreads threads(is_hopeless);
  for (std::size_t i = 0; i < missing.size(); ++i) {
    threads.emplace_back([&, i] {
      rpc::ConnectionOptions options =
          options_for(*missing[i], missing[i]->epoch, control_deadline());
      options.should_stop = [&] { return is_hopeless.load(); };
      try {
        rpc::Connection made = rpc::connect_task(options);
        const Lock lock(mutex_);
        missing[i]->connection = std::move(made);
      } catch (...) {
        errors[i] = current_error();
        const bool may_come = errors[i]->cause() == ErrorCause::peer_lost ||
                              errors[i]->code() == ErrorCode::deadline_exceeded;
        if (!may_come) is_hopeless = true;
      }
    });
  }
  threads.join();
  std::string names;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    if (!errors[i]) continue;
    const bool may_come = errors[i]->cause() == ErrorCause::peer_lost ||
                          errors[i]->code() == ErrorCode::deadline_exceeded;
    if (!may_come) throw *errors[i];
    names += (names.empty() ? "" : ", ") + missing[i]->name + " (" + missing[i]->address + ")";
  }
  if (names.empty()) return;
  throw Error(ErrorCode::unavailable,
              "[strategy.connect] no answer within " + seconds_of(options_.timeout) + " s from " +
                  names + "; start these tasks, or correct their addresses in TF_CONFIG",
              ErrorCause::peer_lost);
}

ClusterConnection::WorkerLink ClusterConnection::reconnect_worker(
    std::uint32_t worker, Deadline deadline, const std::function<bool()>& should_stop) {
  Task& task = workers_.at(worker);
  std::uint64_t epoch = 0;
  {
    const Lock lock(mutex_);
    epoch = ++task.epoch;
  }
  rpc::ConnectionOptions options = options_for(task, epoch, deadline);
  options.should_stop = should_stop;
  rpc::Connection made = rpc::connect_task(options);
  rpc::Connection old = made;  // ends outside the lock: that waits for its thread
  {
    const Lock lock(mutex_);
    std::swap(task.connection, old);
  }
  return {std::move(made), epoch};
}

ClusterConnection::WorkerLink ClusterConnection::worker(std::uint32_t worker) const {
  const Lock lock(mutex_);
  const Task& task = workers_.at(worker);
  return {task.connection, task.epoch};
}

rpc::Connection ClusterConnection::ps(std::uint32_t ps) {
  Task& task = ps_.at(ps);
  {
    const Lock lock(mutex_);
    if (task.connection.data && task.connection.data->is_open()) return task.connection;
  }
  const Lock one(connecting_);
  rpc::Connection old;
  {
    const Lock lock(mutex_);
    if (task.connection.data && task.connection.data->is_open()) return task.connection;
    old = task.connection;
  }
  rpc::Connection made = rpc::connect_task(options_for(task, 0, control_deadline()));
  if (old.data && made.incarnation != old.incarnation) {
    throw Error(ErrorCode::unavailable,
                "[strategy.connect] " + task.name +
                    " was restarted: its variables are lost; start the coordinator again",
                ErrorCause::handle_lost)
        .at(task.name, made.incarnation);
  }
  const Lock lock(mutex_);
  task.connection = made;
  return made;
}

}  // namespace cohort
