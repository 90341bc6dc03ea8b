// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/server.h"

#include <ATen/Parallel.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <thread>

#include "cohort/cluster/cluster_spec.h"
#include "cohort/cluster/detail/address.h"
#include "cohort/cluster/detail/validation.h"
#include "cohort/core/detail/blas.h"
#include "cohort/core/log.h"
#include "cohort/rpc/detail/connection.h"
#include "cohort/rpc/detail/descriptor_room.h"
#include "cohort/rpc/detail/thread_room.h"
#include "cohort/server/internal/channel_table.h"
#include "cohort/server/internal/malloc_tuning.h"

namespace cohort {
namespace {

std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

std::vector<std::string> data_dirs_of_environment() {
  std::vector<std::string> dirs;
  const char* text = std::getenv("COHORT_DATA_DIRS");
  std::istringstream parts(text == nullptr ? "" : text);
  for (std::string dir; std::getline(parts, dir, ':');) {
    if (!dir.empty()) dirs.push_back(dir);
  }
  return dirs;
}

// If the user has set OMP_NUM_THREADS, LibTorch has read it already. Otherwise the tasks of a host
// share its cores.
int default_intra_op_threads(const ClusterSpec& spec, const std::string& host) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return at::get_num_threads();
  int tasks = 0;
  for (const std::string& job : spec.jobs()) {
    for (const auto& address : spec.job_tasks(job))
      tasks += address && host_of(cluster::normalized_address(*address)) == host ? 1 : 0;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, tasks));
}

// Only warns, because a folder may be mounted later.
void warn_of_missing_folders(const std::vector<std::string>& data_dirs) {
  for (const std::string& folder : data_dirs) {
    std::error_code problem;
    if (std::filesystem::is_directory(folder, problem)) continue;
    log_warn(
        "[server.construct] expected directories in COHORT_DATA_DIRS (or --data, "
        "ServerOptions::data_dirs), got '",
        folder, "', ",
        problem ? "which cannot be read: " + problem.message() : std::string("which is none"),
        "; files of the coordinator's pipelines below it cannot be opened until it is there");
  }
}

// The address of the data port; empty if there is only the port of the task.
std::string data_address_of(const ServerOptions& options, const std::string& task,
                            const std::string& address) {
  COHORT_CHECK(options.data_port >= 0 && options.data_port <= 65535, ErrorCode::invalid_argument,
               "[server.construct] expected ServerOptions::data_port of 0 to 65535, got ",
               options.data_port);
  if (options.data_port == 0) return {};
  const auto& backends = options.backends;
  const bool has_stream = std::find(backends.begin(), backends.end(), "stream") != backends.end();
  COHORT_CHECK(has_stream, ErrorCode::invalid_argument,
               "[server.construct] expected the backend \"stream\" for data port ",
               options.data_port, ", got others only; add it, or leave the data port out");
  std::string data_address = host_of(address) + ":" + std::to_string(options.data_port);
  COHORT_CHECK(data_address != address, ErrorCode::invalid_argument,
               "[server.construct] expected a ServerOptions::data_port beside the port of ", task,
               ", got that port (", address,
               "); give another, or leave it out: one port serves both");
  return data_address;
}

std::atomic<int> signal_received{0};

extern "C" void note_signal(int number) { signal_received = number; }

// Handles SIGTERM and SIGINT while the object exists, except those that the program handles itself.
class SignalScope {
 public:
  SignalScope() {
    for (const int number : {SIGTERM, SIGINT}) {
      struct sigaction now {};
      sigaction(number, nullptr, &now);
      if (now.sa_handler != SIG_DFL) continue;
      struct sigaction ours {};
      ours.sa_handler = &note_signal;
      sigaction(number, &ours, nullptr);
      taken_.push_back(number);
    }
  }
  ~SignalScope() {
    for (const int number : taken_) signal(number, SIG_DFL);
  }
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

 private:
  std::vector<int> taken_;
};

}  // namespace

class Server::Task final : public rpc::ControlService {
 public:
  Task(const ClusterResolver& resolver, ServerOptions options);
  ~Task() override { stop(); }
  bool stop() noexcept;

  rpc::HandshakeReply handshake(const rpc::HandshakeRequest& request,
                                const rpc::Caller& caller) override;
  TaskHealth health() override;
  bool is_of_job(const std::string& job_id) const override {
    return !job_id.empty() && job_id == self_.job_id;
  }
  std::shared_ptr<rpc::CoordinatorSession> session_of(const rpc::Caller& caller) override;
  void shutdown(const rpc::Caller& caller, std::chrono::milliseconds grace) override;
  void shutdown(std::chrono::milliseconds grace);

  int join();
  const std::string& address() const { return address_; }

 private:
  static constexpr std::size_t kForeignNameMax = 64;  // characters to show of a stranger's name
  static constexpr std::size_t kOwnThreads = 3;  // the acceptor's, a closure runner's, a channel's
  // The acceptor's, those of a coordinator's connection with duplicates until its handshake, and
  // some files of a pipeline.
  static constexpr std::size_t kOwnDescriptors = 16;
  static constexpr auto kSignalPoll = std::chrono::milliseconds(100);
  // How long to look up the own host's name: longer than a restart of a name server takes. One
  // question a second is no load for it.
  static constexpr auto kOwnName = std::chrono::seconds(60);
  static constexpr auto kOwnNamePause = std::chrono::seconds(1);
  static constexpr auto kSignalGrace = std::chrono::seconds(5);
  static constexpr auto kEnd = std::chrono::seconds(3);
  // How long to wait for the end of the connections of a coordinator that has ended just before the
  // next one came.
  static constexpr auto kFarewell = std::chrono::seconds(1);
  // How long to wait for an answer of a coordinator that has not ended: longer than a busy host
  // takes.
  static constexpr auto kSignOfLife = std::chrono::seconds(10);

  std::shared_ptr<server::Session> session_of(std::uint64_t coordinator_incarnation) const;
  std::shared_ptr<server::Session> greet(const rpc::Hello& hello) const;
  void check_job(const std::string& job_id) const;
  void check_caller(const rpc::HandshakeRequest& request) const;
  std::shared_ptr<server::Session> check_only_coordinator(const rpc::HandshakeRequest& request);
  std::shared_ptr<server::Session> take_session(const rpc::HandshakeRequest& request,
                                                const std::shared_ptr<server::Session>& expected,
                                                const rpc::Caller& caller);
  void listen(const std::string& address, const std::string& data_address);
  std::size_t descriptors() const;
  std::unique_ptr<rpc::ControlServer> serve(const rpc::ServeOptions& options);
  bool must_end() const COHORT_REQUIRES(mutex_);
  bool await_end(Deadline until);
  Deadline grace_of_end() const;
  static Deadline end_after(Deadline grace);

  ServerOptions options_;
  // Made before the first answer is sent, because the receiver of an answer may send a signal.
  std::optional<SignalScope> signals_;
  ClusterSpec spec_;
  rpc::Identity self_;
  std::vector<std::string> ps_addresses_;
  mutable Mutex mutex_;
  Condition changed_;
  std::shared_ptr<server::Session> session_ COHORT_GUARDED_BY(mutex_);
  // The incarnations of the coordinators that were replaced by another one.
  std::set<std::uint64_t> replaced_ COHORT_GUARDED_BY(mutex_);
  bool is_ending_ COHORT_GUARDED_BY(mutex_) = false;
  bool is_refusing_ COHORT_GUARDED_BY(mutex_) = false;  // stop() has ended the last session
  Deadline end_by_ COHORT_GUARDED_BY(mutex_);
  const TimePoint started_ = Clock::system().now();
  const std::shared_ptr<rpc::RefusalLog> refusals_;
  const std::shared_ptr<rpc::ErrorRecord> errors_;
  server::ChannelTable channels_;
  bool is_stopped_ = false;
  bool is_all_ended_ = true;
  std::string address_;
  std::vector<rpc::Endpoint> endpoints_;
  std::vector<std::unique_ptr<rpc::Listener>> listeners_;  // for backends without a port
  std::unique_ptr<rpc::ControlServer> control_;  // last, because it answers as soon as it exists
};

Server::Task::Task(const ClusterResolver& resolver, ServerOptions options)
    : options_(std::move(options)),
      spec_(resolver.cluster_spec()),
      refusals_(std::make_shared<rpc::RefusalLog>()),
      errors_(std::make_shared<rpc::ErrorRecord>()),
      channels_([this](const rpc::Hello& hello) { return greet(hello); }, refusals_, errors_) {
  if (options_.handle_signals) {
    signal_received = 0;
    signals_.emplace();
  }
  COHORT_CHECK(options_.data_timeout > Duration::zero(), ErrorCode::invalid_argument,
               "[server.construct] expected ServerOptions::data_timeout > 0 s, got ",
               std::chrono::duration<double>(options_.data_timeout).count(), " s");
  COHORT_CHECK(!options_.backends.empty(), ErrorCode::invalid_argument,
               "[server.construct] expected ServerOptions::backends with a name, as \"stream\" or "
               "\"grpc\", got none");
  for (const std::string& backend : options_.backends) rpc::backend_of(backend);  // throws
  resolver.validate();
  const std::optional<std::string> type = resolver.task_type();
  const std::optional<std::int64_t> index = resolver.task_id();
  COHORT_CHECK(type && index, ErrorCode::invalid_argument,
               "[server.construct] expected a task type and index, got none; set \"task\": "
               "{\"type\": …, \"index\": …} in TF_CONFIG");
  validate_parameter_server_cluster(spec_, type, index);
  validate_addresses(spec_);
  const std::string task = *type + ":" + std::to_string(*index);
  const std::string address = spec_.task_address(*type, *index);
  const std::string data_address = data_address_of(options_, task, address);
  set_log_task(task);
  warn_of_slow_blas();
  if (options_.job_id.empty()) options_.job_id = rpc::default_job_id(spec_.to_json());
  if (options_.data_dirs.empty()) options_.data_dirs = data_dirs_of_environment();
  warn_of_missing_folders(options_.data_dirs);
  self_ = rpc::identity_of_process(task, options_.job_id, rpc::new_incarnation());
  for (const auto& ps : spec_.job_tasks("ps")) ps_addresses_.push_back(ps.value_or(""));
  const int threads =
      options_.intra_op_threads > 0
          ? options_.intra_op_threads
          : default_intra_op_threads(spec_, host_of(cluster::normalized_address(address)));
  // LibTorch's pool and gRPC would hang, or end the process, without one of their threads or
  // descriptors.
  rpc::check_descriptor_room(rpc::kGrpcDescriptors + descriptors());
  rpc::check_thread_room(static_cast<std::size_t>(threads) + rpc::kGrpcThreads + kOwnThreads);
  at::set_num_threads(threads);
  server::keep_freed_memory();
  listen(address, data_address);
  log_info("serving at ", address_, ", job ", options_.job_id, ", ", threads, " intra-op threads");
}

// Each worker connects to each parameter server.
std::size_t Server::Task::descriptors() const {
  const std::string peers = TaskId::parse(self_.task).job == "ps" ? "worker" : "ps";
  return kOwnDescriptors + rpc::kConnectionDescriptors * spec_.job_tasks(peers).size();
}

// The errors of the transport name addresses; the remedy is added here.
void Server::Task::listen(const std::string& address, const std::string& data_address) {
  const auto accept = [this](std::shared_ptr<rpc::Channel> channel) {
    return channels_.accept(std::move(channel));
  };
  const rpc::ServeOptions options{.address = address,
                                  .data_address = data_address,
                                  .backends = options_.backends,
                                  .accept = accept,
                                  .refusals = refusals_,
                                  .should_stop = [this] {
                                    const Lock lock(mutex_);
                                    return must_end();
                                  }};
  for (const std::string& backend : options_.backends) {
    const bool has_own_port = backend == "stream" && !data_address.empty();
    endpoints_.push_back(
        {backend, has_own_port ? ":" + std::to_string(options_.data_port) : std::string()});
    if (backend == "stream" || backend == "grpc") continue;
    listeners_.push_back(rpc::backend_of(backend).listen({.address = address}, accept));
    endpoints_.back().address = listeners_.back()->address();
  }
  try {
    control_ = serve(options);
  } catch (const Error& error) {
    const std::string reason = " (" + error.message() + ")";
    const std::string places = address + (data_address.empty() ? "" : " and " + data_address);
    COHORT_CHECK(
        error.code() != ErrorCode::invalid_argument, error.code(),
        "[server.listen] expected an address of this machine for ", self_.task, ", got ", places,
        "; start the task on that host, or correct its address in the cluster of TF_CONFIG",
        reason);
    COHORT_CHECK(
        error.code() != ErrorCode::already_exists, error.code(),
        "[server.listen] expected a free port for ", self_.task, ", got ", places,
        ", which is taken; perhaps the task runs already: end what holds the port, or give "
        "the task another address in the cluster of TF_CONFIG",
        data_address.empty() ? "" : reason);  // says which of the two ports is taken
    throw;
  }
  address_ = control_->address();
}

// Name servers may learn the name of a host that has just started later than the task starts.
std::unique_ptr<rpc::ControlServer> Server::Task::serve(const rpc::ServeOptions& options) {
  const Deadline deadline = Deadline::after(kOwnName);
  for (bool is_said = false;; is_said = true) {
    try {
      return rpc::serve_task(options, *this);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable || deadline.has_expired()) throw;
      if (!is_said) {
        log_warn(error.message(), "; ", self_.task, " asks again, for ",
                 kOwnName / std::chrono::seconds(1), " s");
      }
    }
    COHORT_CHECK(!await_end(Deadline::after(kOwnNamePause)), ErrorCode::cancelled,
                 "[server.listen] ", self_.task,
                 " was ended before it knew its own host's address");
  }
}

rpc::HandshakeReply Server::Task::handshake(const rpc::HandshakeRequest& request,
                                            const rpc::Caller& caller) {
  check_caller(request);
  const bool is_coordinator = request.caller.incarnation == request.coordinator_incarnation;
  if (!is_coordinator) {
    session_of(request.coordinator_incarnation);
    return {self_, endpoints_};
  }
  std::shared_ptr<server::Session> session;
  while (!session) session = take_session(request, check_only_coordinator(request), caller);
  return {self_, endpoints_, session->start_order()};
}

// The session of the caller; null if another start has replaced the expected one meanwhile.
std::shared_ptr<server::Session> Server::Task::take_session(
    const rpc::HandshakeRequest& request, const std::shared_ptr<server::Session>& expected,
    const rpc::Caller& caller) {
  std::shared_ptr<server::Session> old;
  std::shared_ptr<server::Session> made;
  {
    const Lock lock(mutex_);
    COHORT_CHECK(!is_refusing_, ErrorCode::unavailable, "[server.handshake] ", self_.task, " ends");
    if (session_ != expected) return nullptr;
    if (session_ && session_->coordinator_incarnation() == request.coordinator_incarnation)
      return session_;
    const std::uint64_t above_old = session_ ? session_->start_order() + 1 : 0;
    made = std::make_shared<server::Session>(server::SessionOptions{
        .self = self_,
        .coordinator = request.caller.task,
        .coordinator_incarnation = request.coordinator_incarnation,
        .start_order = std::max(request.start_order, above_old),
        .ps_addresses = ps_addresses_,
        .data_dirs = options_.data_dirs,
        .data_timeout =
            request.data_timeout > Duration::zero() ? request.data_timeout : options_.data_timeout,
        .payload_checksums = rpc::agreed(request.payload_checksums, options_.payload_checksums),
        .errors = errors_});
    if (session_) replaced_.insert(session_->coordinator_incarnation());
    replaced_.erase(request.coordinator_incarnation);
    old = std::exchange(session_, made);
  }
  log_info("coordinator ", request.caller.task, " at ", caller.address, " took over (job ",
           self_.job_id, ")");
  if (!old) return made;
  old->replace();
  // The error is sent over the old coordinator's channels, and those of its workers. Otherwise a
  // coordinator that was stopped would only see that a task is lost.
  channels_.close_of(old->coordinator_incarnation(), rpc::replaced_error(self_.task));
  return made;
}

// A caller of another job gets no information about this one.
void Server::Task::check_job(const std::string& job_id) const {
  COHORT_CHECK(job_id == self_.job_id, ErrorCode::failed_precondition,
               "[server.handshake] expected a caller of the job of this task, got one of job '",
               job_id.substr(0, kForeignNameMax),
               "'; give every task the same cluster in TF_CONFIG, or the same job id");
}

void Server::Task::check_caller(const rpc::HandshakeRequest& request) const {
  check_job(request.caller.job_id);
  COHORT_CHECK(request.expected_task == self_.task, ErrorCode::failed_precondition,
               "[server.handshake] this is ", self_.task, ", but ", request.caller.task,
               " expected ", request.expected_task,
               " at this address; give every task the same cluster in TF_CONFIG");
  const std::string problem = rpc::disagreement(self_, request.caller);
  COHORT_CHECK(problem.empty(), ErrorCode::failed_precondition, "[server.handshake] ", self_.task,
               " refuses ", request.caller.task, ": ", problem);
}

// Refuses a second coordinator while the first one lives, because each would train without the
// variables of the other. Returns the session that may be replaced.
std::shared_ptr<server::Session> Server::Task::check_only_coordinator(
    const rpc::HandshakeRequest& request) {
  std::shared_ptr<server::Session> current;
  {
    const Lock lock(mutex_);
    current = session_;
  }
  if (!current || current->coordinator_incarnation() == request.coordinator_incarnation)
    return current;
  if (request.is_returning) {
    // After a restart of this task, an earlier start may have reconnected before a later one.
    if (request.start_order > current->start_order()) return current;
    throw rpc::replaced_error(self_.task);
  }
  using Presence = server::ChannelTable::Presence;
  const Presence presence =
      channels_.presence(current->coordinator(), current->coordinator_incarnation(),
                         Deadline::after(kFarewell), Deadline::after(kSignOfLife));
  // `aborted`, because nothing is wrong with the second one, and it may try again.
  COHORT_CHECK(presence != Presence::alive, ErrorCode::aborted, "[server.handshake] ", self_.task,
               " expected one coordinator, got a second start of ", request.caller.task, " while ",
               current->coordinator(),
               " is connected and answers; end the first and start this one again, which then has "
               "the place at once (a first one that does not answer loses it after ",
               kSignOfLife / std::chrono::seconds(1), " s), or give this one a cluster of its own");
  if (presence == Presence::gone) return current;
  log_warn(current->coordinator(), " does not answer any more: its next start takes its place");
  return current;
}

std::shared_ptr<rpc::CoordinatorSession> Server::Task::session_of(const rpc::Caller& caller) {
  COHORT_CHECK(caller.coordinator_incarnation != 0, ErrorCode::failed_precondition,
               "[server.job] expected a caller that has shaken hands with ", self_.task,
               ", got one that has not; the handshake comes first");
  return session_of(caller.coordinator_incarnation);
}

// The caller then acts only on this session, even if another one replaces it meanwhile. A start
// that is not known here may be the latest one, if this task was restarted after their handshake;
// so the error asks for a handshake, which compares the starts.
std::shared_ptr<server::Session> Server::Task::session_of(
    std::uint64_t coordinator_incarnation) const {
  const Lock lock(mutex_);
  if (session_ && session_->coordinator_incarnation() == coordinator_incarnation) return session_;
  if (replaced_.contains(coordinator_incarnation)) throw rpc::replaced_error(self_.task);
  throw Error(ErrorCode::failed_precondition,
              "[server.job] " + self_.task +
                  " has not met this start of the coordinator, or was restarted since; the "
                  "handshake comes first",
              ErrorCause::handle_lost);
}

std::shared_ptr<server::Session> Server::Task::greet(const rpc::Hello& hello) const {
  check_job(hello.job_id);
  // This task was restarted between the handshake and this greeting, so the caller must do the
  // handshake again.
  if (hello.server_incarnation != 0 && hello.server_incarnation != self_.incarnation) {
    throw Error(ErrorCode::failed_precondition,
                "[server.greet] " + self_.task + " is start " + std::to_string(self_.incarnation) +
                    ", but " + hello.task + " expected start " +
                    std::to_string(hello.server_incarnation) + "; shake hands again",
                ErrorCause::peer_lost);
  }
  return session_of(hello.coordinator_incarnation);
}

TaskHealth Server::Task::health() {
  TaskHealth health;
  {
    const Lock lock(mutex_);
    if (session_) health = session_->health();
  }
  health.incarnation = self_.incarnation;
  health.broken_frames = rpc::broken_frames();
  health.protocol_errors = channels_.protocol_errors();
  health.task = self_.task;
  health.uptime = Clock::system().now() - started_;
  health.connections_lost += channels_.losses();
  health.last_error = errors_->get();
  return health;
}

void Server::Task::shutdown(const rpc::Caller& caller, std::chrono::milliseconds grace) {
  session_of(caller);
  shutdown(grace);
}

void Server::Task::shutdown(std::chrono::milliseconds grace) {
  {
    const Lock lock(mutex_);
    is_ending_ = true;
    constexpr auto kMax = std::chrono::duration_cast<std::chrono::milliseconds>(Duration::max());
    end_by_ = Deadline::after(std::clamp(grace, std::chrono::milliseconds::zero(), kMax));
  }
  changed_.notify_all();
}

int Server::Task::join() {
  await_end(Deadline());
  return 0;
}

// After a signal or shutdown().
bool Server::Task::must_end() const {
  return is_ending_ || (options_.handle_signals && signal_received != 0);
}

// Returns false at the deadline.
bool Server::Task::await_end(Deadline until) {
  const Lock lock(mutex_);
  const auto is_over = [this]() COHORT_REQUIRES(mutex_) { return must_end(); };
  while (!changed_.wait(mutex_, Deadline::after(kSignalPoll), is_over)) {
    if (until.has_expired()) return false;
  }
  return true;
}

bool Server::Task::stop() noexcept {
  if (std::exchange(is_stopped_, true)) return is_all_ended_;
  const Deadline grace = grace_of_end();
  const Deadline end = end_after(grace);
  std::shared_ptr<server::Session> last;
  {
    const Lock lock(mutex_);
    last = std::move(session_);
    is_refusing_ = true;
  }
  if (last) last->drain(Deadline::after(Duration::zero()));  // from here on no closure starts
  channels_.end_waits();
  if (control_) control_->stop(grace);
  if (last && !last->drain(grace)) log_warn("closures were still running when the grace was over");
  is_all_ended_ = channels_.close_all(grace, end);
  if (last) last->end();  // after the channels, so that errors of this end are not sent
  is_all_ended_ = is_all_ended_ && server::ClosureRunner::left_behind() == 0 &&
                  server::IteratorTable::left_behind() == 0;
  listeners_.clear();
  control_.reset();
  return is_all_ended_;
}

// The deadline for the end of messages and handlers: kEnd after the grace, or after kSignalGrace if
// that is later.
Deadline Server::Task::end_after(Deadline grace) {
  if (grace.is_infinite()) return grace;
  return Deadline(std::max(Deadline::after(kSignalGrace).time(), grace.time()) + kEnd);
}

Deadline Server::Task::grace_of_end() const {
  const Lock lock(mutex_);
  if (is_ending_) return end_by_;
  const bool is_signalled = options_.handle_signals && signal_received != 0;
  return Deadline::after(is_signalled ? kSignalGrace : std::chrono::seconds(0));
}

Server::Server(const ClusterResolver& resolver, ServerOptions options)
    : task_(std::make_unique<Task>(resolver, std::move(options))) {}
Server::~Server() = default;
bool Server::stop() noexcept { return task_->stop(); }
int Server::join() { return task_->join(); }
void Server::shutdown(std::chrono::milliseconds grace) { task_->shutdown(grace); }
const std::string& Server::address() const { return task_->address(); }
TaskHealth Server::health() const { return task_->health(); }

}  // namespace cohort
