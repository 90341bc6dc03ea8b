// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server_strategy/cluster_connection.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <optional>
#include <sstream>
#include <utility>

#include "cohort/cluster/validation.h"
#include "cohort/core/address_room.h"
#include "cohort/core/blas.h"
#include "cohort/core/log.h"
#include "cohort/core/random.h"
#include "cohort/core/start_thread.h"
#include "cohort/parameter_server_strategy/awaited.h"
#include "cohort/rpc/process_room.h"

namespace cohort {
namespace {
// How often to ask whether a task is up while the first task of the cluster is not.
constexpr auto kProbePause = std::chrono::seconds(1);
// Reserved for descriptors that the program and LibTorch open meanwhile.
constexpr std::size_t kOwnDescriptors = 8;
// The stacks of gRPC's threads and of ours, and what the first calls need.
constexpr std::size_t kOwnAddressBytes = std::size_t{128} << 20;

ClusterOptions checked(ClusterOptions options) {
  COHORT_CHECK(options.timeout > Duration::zero(), ErrorCode::invalid_argument,
               "[strategy.construct] expected ClusterOptions::timeout > 0, got ",
               seconds_of(options.timeout), " s");
  COHORT_CHECK(options.data_timeout > Duration::zero(), ErrorCode::invalid_argument,
               "[strategy.construct] expected ClusterOptions::data_timeout > 0, got ",
               seconds_of(options.data_timeout), " s");
  return options;
}

bool is_up(const std::string& address, const std::string& task) {
  try {
    rpc::control_client(address, task)->health(Deadline::after(rpc::kRefusalTimeout));
    return true;
  } catch (const Error&) {
    return false;
  }
}

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
      self_(rpc::identity_of_process(self_task, rpc::job_id_of(spec_, options_.job_id).text,
                                     draw_number())),
      worker_links_(workers_.size()),
      start_order_(rpc::start_order_now()),
      servers_(
          std::make_shared<parameter_server::ServerLinks>(parameter_server::ServerLinks::Options{
              .self = self_.task,
              .connect = [this](const rpc::Member& server, Duration,
                                const auto&) { return connect_server(server); },
              .data_timeout = options_.data_timeout})) {
  rpc::Membership membership;
  for (const Task& task : ps_) membership.servers.push_back({task.index, task.name, task.address});
  servers_->set(membership);
}

ClusterConnection::~ClusterConnection() {
  std::vector<rpc::Connection> open;
  {
    const Lock lock(mutex_);
    for (const WorkerLink& link : worker_links_) open.push_back(link.connection);
  }
  servers_->close();
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

void ClusterConnection::keep(const Task& task, rpc::Connection connection) {
  if (!task.is_worker) return servers_->put(task.index, std::move(connection));
  const Lock lock(mutex_);
  worker_links_[task.index].connection = std::move(connection);
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
  options.has_first_task = met_.contains(first_task().name);
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
  if (task.is_worker) {
    rpc::Membership membership = servers_->membership();
    {
      const Lock lock(mutex_);
      membership.closures_at_once = handlers_.closures_at_once;
    }
    made.control->set_membership(membership, options.deadline);
  }
  const Lock lock(mutex_);
  met_.insert(task.name);
  start_order_ = std::max(start_order_, made.start_order);
  return made;
}

void ClusterConnection::add_missing_ps(TaskList& missing) const {
  for (const Task& task : ps_) {
    if (!servers_->last(task.index).data) missing.push_back(&task);
  }
}

void ClusterConnection::connect_ps() {
  const Lock one(connecting_);
  TaskList missing;
  add_missing_ps(missing);
  connect(missing);
}

void ClusterConnection::connect_workers(const WorkerHandlers& handlers) {
  const Lock one(connecting_);
  TaskList missing;
  add_missing_ps(missing);
  std::vector<rpc::Connection> old;
  {
    const Lock lock(mutex_);
    handlers_ = handlers;
    ps_watch_->set(handlers.on_ps_lost);
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

// The threads of one connect().
struct ClusterConnection::StartUp {
  std::atomic<bool> is_hopeless{false};  // one has met an error that does not pass
  internal::Awaited awaited;
  // Whether the first task of the cluster has accepted the coordinator; until then its other tasks
  // are not taken.
  std::promise<bool> first = {};
  const std::shared_future<bool> is_first_taken = first.get_future().share();
};

// The result of a thread's look at its task.
struct ClusterConnection::Outcome {
  std::optional<Error> error = {};
  std::string data_address = {};  // where it did not answer
  bool is_refused = false;        // its host refuses connections
};

// Connects to all tasks at once, except to the first one of the cluster: that comes before the
// others, and decides between this coordinator and one that starts at the same time. If each task
// decided for itself, each coordinator could lose another task, and both would end. The first
// permanent error ends the attempts of the other threads.
void ClusterConnection::connect(const TaskList& missing) {
  check_can_coordinate(self_.task);
  validate_addresses(spec_);
  if (missing.empty()) return;
  save_address_space();
  take_blas_memory();
  check_address_room(kOwnAddressBytes, "for gRPC and the connections to the tasks");
  rpc::check_descriptor_room(rpc::kGrpcDescriptors + kOwnDescriptors +
                             rpc::kConnectionDescriptors * missing.size());
  std::vector<Outcome> outcomes(missing.size());
  std::set<std::string> all;
  for (const Task* task : missing) all.insert(task->name);
  StartUp start{.awaited = internal::Awaited(std::move(all))};
  // If it is missing, it is the first of the list, so that its thread is there before others wait
  // for it.
  if (missing.front() != &first_task()) start.first.set_value(true);
  JoinedThreads threads;
  try {
    for (std::size_t i = 0; i < missing.size(); ++i) {
      threads.add(start_thread("for each task to connect to", [&, i] {
        start_with(*missing[i], start, outcomes[i]);
        start.awaited.has_come(missing[i]->name);
      }));
    }
  } catch (...) {  // the system has no more threads
    start.is_hopeless = true;
    throw;
  }
  start.awaited.wait();
  threads.join();
  throw_if_failed(missing, outcomes);
}

void ClusterConnection::start_with(const Task& task, StartUp& start, Outcome& outcome) {
  const bool is_first = &task == &first_task();
  const Deadline deadline = control_deadline();
  try {
    if (!is_first && !await_first_task(task, start)) return;
    rpc::ConnectionOptions options = options_for(task, epoch_of(task), deadline);
    options.should_stop = [&] { return start.is_hopeless.load(); };
    options.on_data_unreachable = [&](const std::string& at) { outcome.data_address = at; };
    keep(task, connect_to(task, options));
  } catch (...) {
    outcome.error = current_error();
    if (!rpc::may_come_up(*outcome.error)) start.is_hopeless = true;
  }
  if (is_first) start.first.set_value(!outcome.error);
  if (outcome.error && rpc::may_come_up(*outcome.error) && !start.is_hopeless)
    outcome.is_refused = rpc::is_refusing(task.address, Deadline::after(rpc::kRefusalTimeout));
}

// Returns whether the first task was taken, and so `task` may be. Until then the task is only asked
// whether it is up, because the log and the errors name those that are not; throws if it is not.
bool ClusterConnection::await_first_task(const Task& task, StartUp& start) {
  bool has_answered = false;
  bool has_ended = false;
  while (!has_ended) {
    has_ended = start.is_first_taken.wait_for(kProbePause) == std::future_status::ready;
    const bool is_taken = has_ended && start.is_first_taken.get();
    if (is_taken || start.is_hopeless) return is_taken;
    if (!has_answered) has_answered = is_up(task.address, task.name);
    if (has_answered) start.awaited.has_come(task.name);
  }
  if (has_answered) return false;
  throw Error(ErrorCode::unavailable, "[strategy.connect] " + task.name + " does not answer",
              ErrorCause::peer_lost);
}

void ClusterConnection::throw_if_failed(const TaskList& missing,
                                        const std::vector<Outcome>& outcomes) const {
  // Names of tasks, separated by commas.
  std::string silent;        // they do not answer at all
  std::string without_data;  // they answer control calls, but not at their data address
  std::string refused;       // those of `silent` whose host refuses the connection
  for (std::size_t i = 0; i < missing.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    if (!outcome.error) continue;
    if (!rpc::may_come_up(*outcome.error)) throw *outcome.error;
    const std::string name = missing[i]->name + " (" + missing[i]->address;
    std::string& names = outcome.data_address.empty() ? silent : without_data;
    names += (names.empty() ? "" : ", ") + name;
    if (!outcome.data_address.empty()) names += ", for tensors " + outcome.data_address;
    names += ")";
    if (outcome.is_refused) refused += (refused.empty() ? "" : ", ") + missing[i]->name;
  }
  if (silent.empty() && without_data.empty()) return;
  std::ostringstream text;
  text << "[strategy.connect] no answer within " << seconds_of(options_.timeout) << " s";
  if (!silent.empty()) {
    text << " from " << silent
         << "; start these tasks, each with a \"task\" of its own in TF_CONFIG, or correct their "
            "addresses there";
    if (!refused.empty()) text << " (nobody listens at the address of " << refused << ")";
    text << "; if `cohort launch` started them, its log says why they ended";
  }
  if (!without_data.empty()) {
    text << (silent.empty() ? "" : "; nor") << " at the address for tensors of " << without_data
         << "; control is answered there: let tensors through to that address, and see in the log "
            "of these tasks whether they have too few open files (ulimit -n)";
  }
  throw Error(ErrorCode::unavailable, text.str(), ErrorCause::peer_lost);
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

// The server may have lost only its connections, or may be starting again, so this waits for it.
rpc::Connection ClusterConnection::connect_server(const rpc::Member& server) {
  rpc::ConnectionOptions options = options_for(ps_.at(server.id), 0, control_deadline());
  options.on_retry = [&](const Error& error) {
    log_warn("no connection to ", server.task, ": a call that needs its variables waits for it, ",
             seconds_of(options_.timeout), " s at most (ClusterOptions::timeout); ",
             error.message());
  };
  return connect_to(ps_.at(server.id), options);
}

rpc::Connection ClusterConnection::ps(std::uint32_t ps) {
  try {
    return servers_->get(ps);
  } catch (const Error& error) {
    if (error.cause() != ErrorCause::peer_lost) throw;
    throw rpc::as_lost_server(error);
  }
}

ClusterConnection::WorkerLink ClusterConnection::worker(std::uint32_t worker) const {
  const Lock lock(mutex_);
  return worker_links_.at(worker);
}

}  // namespace cohort
