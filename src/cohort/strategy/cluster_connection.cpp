// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/detail/cluster_connection.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "cohort/cluster/detail/validation.h"
#include "cohort/core/detail/start_thread.h"
#include "cohort/core/log.h"
#include "cohort/rpc/detail/descriptor_room.h"
#include "cohort/rpc/detail/refusal.h"

namespace cohort {
namespace {

// Time limit of the check whether a host refuses connections; a host that is up answers within a
// round trip.
constexpr auto kRefusal = std::chrono::milliseconds(500);
// Reserved for descriptors that the program and LibTorch open meanwhile.
constexpr std::size_t kOwnDescriptors = 8;

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

// Joins its threads, even if the system cannot start another one. Used only from one thread.
class ConnectingThreads {
 public:
  explicit ConnectingThreads(std::atomic<bool>& should_stop) : should_stop_(should_stop) {}
  ~ConnectingThreads() { join(); }
  ConnectingThreads(const ConnectingThreads&) = delete;
  ConnectingThreads& operator=(const ConnectingThreads&) = delete;

  void start(std::function<void()> body) {
    try {
      threads_.push_back(start_thread("for each task to connect to", std::move(body)));
    } catch (...) {
      should_stop_ = true;
      join();
      throw;
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

// Logs which tasks the start-up still waits for. Thread-safe.
class Awaited {
 public:
  explicit Awaited(std::set<std::string> names) : names_(std::move(names)) {}

  void has_come(const std::string& name) {
    const Lock lock(mutex_);
    names_.erase(name);
    changed_.notify_all();
  }
  // Returns when no task is left.
  void wait() {
    const Lock lock(mutex_);
    for (Duration pause = kFirstWord; !is_over(pause); pause = kNextWord) {
      std::string text;
      for (const std::string& name : names_) text += (text.empty() ? "" : ", ") + name;
      log_warn("waiting for ", text);
    }
  }

 private:
  static constexpr Duration kFirstWord = std::chrono::seconds(3);
  static constexpr Duration kNextWord = std::chrono::seconds(10);

  bool is_over(Duration pause) COHORT_REQUIRES(mutex_) {
    return changed_.wait(mutex_, Deadline::after(pause),
                         [this]() COHORT_REQUIRES(mutex_) { return names_.empty(); });
  }

  Mutex mutex_;
  Condition changed_;
  std::set<std::string> names_ COHORT_GUARDED_BY(mutex_);
};

// Throws for tasks other than a chief: as a coordinator, such a task would replace the chief's
// coordinator and end its job.
void check_can_coordinate(const std::string& task) {
  if (task.starts_with("chief:")) return;
  const bool is_evaluator = task.starts_with("evaluator:");
  ::cohort::internal::throw_error(
      ErrorCode::invalid_argument,
      "[strategy.connect] expected a coordinator's task (chief, or none), got ", task,
      is_evaluator ? ", which is no part of the training cluster; start a program of its own for it"
                   : "; run a server there: if (resolver.is_server()) return "
                     "Server(resolver).join()",
      ", or change task.type in TF_CONFIG");
}

}  // namespace

ClusterConnection::ClusterConnection(ClusterSpec spec, std::string self_task,
                                     ClusterOptions options)
    : options_(checked(std::move(options))),
      spec_(std::move(spec)),
      workers_(tasks_of(spec_, "worker")),
      ps_(tasks_of(spec_, "ps")),
      self_(rpc::identity_of_process(
          self_task,
          options_.job_id.empty() ? rpc::default_job_id(spec_.to_json()) : options_.job_id,
          rpc::new_incarnation())),
      worker_links_(workers_.size()),
      ps_connections_(ps_.size()),
      start_order_(rpc::start_order_now()) {}

ClusterConnection::~ClusterConnection() {
  std::vector<rpc::Connection> open;
  {
    const Lock lock(mutex_);
    for (const WorkerLink& link : worker_links_) open.push_back(link.connection);
    open.insert(open.end(), ps_connections_.begin(), ps_connections_.end());
  }
  for (const rpc::Connection& connection : open) {
    if (connection.data) connection.data->leave();
  }
}

void ClusterConnection::PsWatch::set(std::function<void(const Error&)> on_lost) {
  const Lock lock(mutex_);
  on_lost_ = std::move(on_lost);
}

void ClusterConnection::PsWatch::lost(const Error& reason) const {
  std::function<void(const Error&)> on_lost;
  {
    const Lock lock(mutex_);
    on_lost = on_lost_;
  }
  if (on_lost) on_lost(reason);
}

std::vector<ClusterConnection::Task> ClusterConnection::tasks_of(const ClusterSpec& spec,
                                                                 const std::string& job) {
  std::vector<Task> tasks;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(spec.num_tasks(job)); ++i) {
    tasks.push_back({job + ":" + std::to_string(i), spec.task_address(job, i), i, job == "worker"});
  }
  return tasks;
}

rpc::Connection& ClusterConnection::connection_of(const Task& task) {
  return task.is_worker ? worker_links_[task.index].connection : ps_connections_[task.index];
}

std::uint64_t ClusterConnection::epoch_of(const Task& task) const {
  const Lock lock(mutex_);
  return task.is_worker ? worker_links_[task.index].epoch : 0;
}

rpc::ConnectionOptions ClusterConnection::options_for(const Task& task, std::uint64_t epoch,
                                                      Deadline deadline) const {
  rpc::ConnectionOptions options{.address = task.address,
                                 .task = task.name,
                                 .caller = self_,
                                 .coordinator_incarnation = self_.incarnation,
                                 .backend = options_.backend,
                                 .data_timeout = options_.data_timeout,
                                 .payload_checksums = options_.payload_checksums,
                                 .deadline = deadline};
  const Lock lock(mutex_);
  options.is_returning = met_.contains(task.name);
  options.start_order = start_order_;
  if (!task.is_worker) {
    options.on_closed = [watch = ps_watch_](const Error& reason) { watch->lost(reason); };
    return options;
  }
  options.on_one_way = [on_frame = handlers_.on_frame, index = task.index,
                        epoch](rpc::Frame frame) { on_frame(index, epoch, std::move(frame)); };
  options.on_closed = [on_lost = handlers_.on_lost, index = task.index,
                       epoch](const Error& reason) { on_lost(index, epoch, reason); };
  return options;
}

rpc::Connection ClusterConnection::connect_to(const Task& task,
                                              const rpc::ConnectionOptions& options) {
  rpc::Connection made = rpc::connect_task(options);
  const Lock lock(mutex_);
  met_.insert(task.name);
  start_order_ = std::max(start_order_, made.start_order);
  return made;
}

void ClusterConnection::add_missing_ps(TaskList& missing) const {
  for (const Task& task : ps_) {
    if (!ps_connections_[task.index].data) missing.push_back(&task);
  }
}

void ClusterConnection::connect_ps() {
  const Lock one(connecting_);
  TaskList missing;
  {
    const Lock lock(mutex_);
    add_missing_ps(missing);
  }
  connect(missing);
}

void ClusterConnection::connect_workers(const WorkerHandlers& handlers) {
  const Lock one(connecting_);
  TaskList missing;
  std::vector<rpc::Connection> old;
  {
    const Lock lock(mutex_);
    handlers_ = handlers;
    ps_watch_->set(handlers.on_ps_lost);
    add_missing_ps(missing);
    for (const Task& task : workers_) {
      WorkerLink& link = worker_links_[task.index];
      old.push_back(std::exchange(link.connection, {}));
      ++link.epoch;
      missing.push_back(&task);
    }
  }
  for (const rpc::Connection& connection : old) {
    if (connection.data) connection.data->leave();
  }
  old.clear();
  connect(missing);
}

// Connects to all tasks at once; the first permanent error ends the attempts of the other threads.
void ClusterConnection::connect(const TaskList& missing) {
  check_can_coordinate(self_.task);
  validate_addresses(spec_);
  if (missing.empty()) return;
  rpc::check_descriptor_room(rpc::kGrpcDescriptors + kOwnDescriptors +
                             rpc::kConnectionDescriptors * missing.size());
  std::vector<std::optional<Error>> errors(missing.size());
  std::vector<std::string> data_addresses(missing.size());  // those that did not answer
  std::vector<char> is_refused(missing.size());             // 1: the host refuses connections
  std::atomic<bool> is_hopeless{false};
  std::set<std::string> all;
  for (const Task* task : missing) all.insert(task->name);
  Awaited awaited(std::move(all));
  ConnectingThreads threads(is_hopeless);
  for (std::size_t i = 0; i < missing.size(); ++i) {
    threads.start([&, i] {
      rpc::ConnectionOptions options =
          options_for(*missing[i], epoch_of(*missing[i]), control_deadline());
      options.should_stop = [&] { return is_hopeless.load(); };
      options.on_data_unreachable = [&, i](const std::string& at) { data_addresses[i] = at; };
      try {
        rpc::Connection made = connect_to(*missing[i], options);
        const Lock lock(mutex_);
        connection_of(*missing[i]) = std::move(made);
      } catch (...) {
        errors[i] = current_error();
        const bool may_come = errors[i]->cause() == ErrorCause::peer_lost ||
                              errors[i]->code() == ErrorCode::deadline_exceeded;
        if (!may_come) is_hopeless = true;
        if (may_come && !is_hopeless)
          is_refused[i] = rpc::is_refusing(missing[i]->address, Deadline::after(kRefusal)) ? 1 : 0;
      }
      awaited.has_come(missing[i]->name);
    });
  }
  awaited.wait();
  threads.join();
  Unanswered unanswered;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    if (!errors[i]) continue;
    const bool may_come = errors[i]->cause() == ErrorCause::peer_lost ||
                          errors[i]->code() == ErrorCode::deadline_exceeded;
    if (!may_come) throw *errors[i];
    const std::string name = missing[i]->name + " (" + missing[i]->address;
    std::string& names = data_addresses[i].empty() ? unanswered.silent : unanswered.without_data;
    names += (names.empty() ? "" : ", ") + name;
    if (!data_addresses[i].empty()) names += ", for tensors " + data_addresses[i];
    names += ")";
    if (is_refused[i] != 0)
      unanswered.refused += (unanswered.refused.empty() ? "" : ", ") + missing[i]->name;
  }
  throw_if_unanswered(unanswered);
}

void ClusterConnection::throw_if_unanswered(const Unanswered& tasks) const {
  const auto& [silent, without_data, refused] = tasks;
  if (silent.empty() && without_data.empty()) return;
  std::string text = "[strategy.connect] no answer within " + seconds_of(options_.timeout) + " s";
  if (!silent.empty()) {
    text += " from " + silent +
            "; start these tasks, each with a \"task\" of its own in TF_CONFIG, or correct their "
            "addresses there";
    if (!refused.empty()) text += " (nobody listens at the address of " + refused + ")";
    text += "; if `cohort launch` started them, its log says why they ended";
  }
  if (!without_data.empty()) {
    text +=
        (silent.empty() ? "" : "; nor") + std::string(" at the address for tensors of ") +
        without_data +
        "; control is answered there: let tensors through to that address, and see in the log of "
        "these tasks whether they have too few open files (ulimit -n)";
  }
  throw Error(ErrorCode::unavailable, text, ErrorCause::peer_lost);
}

ClusterConnection::WorkerLink ClusterConnection::reconnect_worker(
    std::uint32_t worker, Deadline deadline, const std::function<bool()>& should_stop) {
  const Task& task = workers_.at(worker);
  std::uint64_t epoch = 0;
  {
    const Lock lock(mutex_);
    epoch = ++worker_links_[worker].epoch;
  }
  rpc::ConnectionOptions options = options_for(task, epoch, deadline);
  options.should_stop = should_stop;
  rpc::Connection made = connect_to(task, options);
  // Takes the old connection, so that it is destroyed outside the lock: that joins its thread.
  rpc::Connection old = made;
  {
    const Lock lock(mutex_);
    std::swap(worker_links_[worker].connection, old);
  }
  return {std::move(made), epoch};
}

ClusterConnection::WorkerLink ClusterConnection::worker(std::uint32_t worker) const {
  const Lock lock(mutex_);
  return worker_links_.at(worker);
}

rpc::Connection ClusterConnection::ps(std::uint32_t ps) {
  const Task& task = ps_.at(ps);
  {
    const Lock lock(mutex_);
    const rpc::Connection& now = ps_connections_[ps];
    if (now.data && now.data->is_open()) return now;
  }
  const Lock one(connecting_);
  rpc::Connection old;
  {
    const Lock lock(mutex_);
    const rpc::Connection& now = ps_connections_[ps];
    if (now.data && now.data->is_open()) return now;
    old = now;
  }
  rpc::Connection made = connect_to(task, options_for(task, 0, control_deadline()));
  if (old.data && made.incarnation != old.incarnation) {
    throw Error(ErrorCode::unavailable,
                "[strategy.connect] " + task.name +
                    " was restarted: its variables are lost; start the coordinator again",
                ErrorCause::handle_lost)
        .at(task.name, made.incarnation);
  }
  const Lock lock(mutex_);
  ps_connections_[ps] = made;
  return made;
}

}  // namespace cohort
