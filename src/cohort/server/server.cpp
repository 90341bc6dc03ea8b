// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/server.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <thread>

#include "cohort/cluster/address.h"
#include "cohort/cluster/validation.h"
#include "cohort/cluster/worker_roles.h"
#include "cohort/core/address_room.h"
#include "cohort/core/blas.h"
#include "cohort/core/kept_memory.h"
#include "cohort/core/log.h"
#include "cohort/core/random.h"
#include "cohort/data/allowed_path.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/metrics_option.h"
#include "cohort/rpc/process_room.h"
#include "cohort/server/links/channel_table.h"
#include "cohort/server/session/current_session.h"
#include "cohort/server/session/end_request.h"

namespace cohort {
namespace {

std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

// If the user has set OMP_NUM_THREADS, LibTorch has read it already. Otherwise the tasks of a host
// share its cores.
int default_intra_op_threads(const ClusterSpec& spec, const std::string& host) {
  const char* given = std::getenv("OMP_NUM_THREADS");
  if (given != nullptr && *given != '\0') return at::get_num_threads();
  int tasks = 0;
  for (const std::string& job : spec.jobs()) {
    for (const auto& address : spec.job_tasks(job))
      tasks += address && host_of(cluster::normalized_address(*address)) == host ? 1 : 0;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, tasks));
}

Duration end_when_unused_of(const ServerOptions& options) {
  COHORT_CHECK(options.end_when_unused >= Duration::zero(), ErrorCode::invalid_argument,
               "[server.construct] expected ServerOptions::end_when_unused >= 0 s, got ",
               std::chrono::duration<double>(options.end_when_unused).count(), " s");
  const char* const given = std::getenv("COHORT_END_WHEN_UNUSED");
  if (options.end_when_unused > Duration::zero() || given == nullptr || *given == '\0')
    return options.end_when_unused;
  std::uint32_t seconds = 0;
  const std::string_view text(given);
  const auto parsed = std::from_chars(text.begin(), text.end(), seconds);
  COHORT_CHECK(parsed.ec == std::errc() && parsed.ptr == text.end(), ErrorCode::invalid_argument,
               "[server.construct] expected a whole number of seconds in COHORT_END_WHEN_UNUSED, "
               "got '",
               text, "'");
  return std::chrono::seconds(seconds);
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
  std::shared_ptr<rpc::CoordinatorSession> session_of(const rpc::Caller& caller) override {
    return session_->of(caller);
  }
  void shutdown(const rpc::Caller& caller, std::chrono::milliseconds grace) override;
  void shutdown(std::chrono::milliseconds grace) { end_request_.make(grace); }

  int join();
  const std::string& address() const { return address_; }

 private:
  static constexpr int kHotRowsMax = 1000;
  static constexpr std::size_t kOwnThreads = 3;  // the acceptor's, a closure runner's, a channel's
  // This many are enough for the acceptor, for a coordinator's connection with its duplicates until
  // the handshake, and for some files of a pipeline.
  static constexpr std::size_t kOwnDescriptors = 16;
  // The stacks of its threads and of gRPC's, and what they need to talk with a coordinator.
  static constexpr std::size_t kOwnAddressBytes = std::size_t{192} << 20;
  // The task looks up the name of its own host for this long, because a name server may just be
  // restarting. One query per second is no load for it.
  static constexpr auto kOwnName = std::chrono::seconds(60);
  static constexpr auto kOwnNamePause = std::chrono::seconds(1);
  static constexpr auto kUsePoll = std::chrono::milliseconds(500);

  void listen(const std::string& address, const std::string& data_address);
  std::size_t descriptors() const;
  std::unique_ptr<rpc::ControlServer> serve(const rpc::ServeOptions& options);
  void end_if_unused(const Error& error);

  ServerOptions options_;
  // Made before the first answer is sent, because the receiver of an answer may send a signal.
  server::EndRequest end_request_;
  ClusterSpec spec_;
  rpc::Identity self_;
  const TimePoint started_ = Clock::system().now();
  const std::shared_ptr<rpc::RefusalLog> refusals_;
  const std::shared_ptr<rpc::ErrorRecord> errors_;
  std::unique_ptr<server::CurrentSession> session_;
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
      end_request_(options_.handle_signals),
      spec_(resolver.cluster_spec()),
      refusals_(std::make_shared<rpc::RefusalLog>()),
      errors_(std::make_shared<rpc::ErrorRecord>()),
      channels_([this](const rpc::Hello& hello) { return session_->greet(hello); }, refusals_,
                errors_) {
  COHORT_CHECK(options_.data_timeout > Duration::zero(), ErrorCode::invalid_argument,
               "[server.construct] expected ServerOptions::data_timeout > 0 s, got ",
               std::chrono::duration<double>(options_.data_timeout).count(), " s");
  COHORT_CHECK(!options_.backends.empty(), ErrorCode::invalid_argument,
               "[server.construct] expected ServerOptions::backends with a name, as \"stream\" or "
               "\"grpc\", got none");
  for (const std::string& backend : options_.backends) rpc::backend_of(backend);  // throws
  COHORT_CHECK(options_.hot_rows >= 0 && options_.hot_rows <= kHotRowsMax,
               ErrorCode::invalid_argument,
               "[server.construct] expected ServerOptions::hot_rows of 0 to ", kHotRowsMax,
               ", got ", options_.hot_rows);
  options_.end_when_unused = end_when_unused_of(options_);
  options_.serves_metrics = options_.serves_metrics || rpc::serves_metrics_by_environment();
  resolver.validate();
  const std::optional<std::string> type = resolver.task_type();
  const std::optional<std::int64_t> index = resolver.task_id();
  COHORT_CHECK(type && index, ErrorCode::invalid_argument,
               "[server.construct] expected a task type and index, got none; set \"task\": "
               "{\"type\": …, \"index\": …} in TF_CONFIG");
  validate_server_cluster(spec_, type, index);
  validate_addresses(spec_);
  const std::string task = *type + ":" + std::to_string(*index);
  const std::string address = spec_.task_address(*type, *index);
  const std::string data_address = data_address_of(options_, task, address);
  set_log_task(task);
  warn_of_slow_blas();
  options_.job_id = rpc::job_id_of(spec_, options_.job_id).text;
  if (options_.data_dirs.empty()) options_.data_dirs = data::data_dirs_of_environment();
  warn_of_missing_folders(options_.data_dirs);
  self_ = rpc::identity_of_process(task, options_.job_id, draw_number());
  session_ = std::make_unique<server::CurrentSession>(
      server::SessionOptions{.self = self_,
                             .data_dirs = options_.data_dirs,
                             .data_timeout = options_.data_timeout,
                             .payload_checksums = options_.payload_checksums,
                             .hot_rows = static_cast<std::size_t>(options_.hot_rows),
                             .errors = errors_});
  const int threads =
      options_.intra_op_threads > 0
          ? options_.intra_op_threads
          : default_intra_op_threads(spec_, host_of(cluster::normalized_address(address)));
  // If LibTorch's pool or gRPC cannot get one of their threads or descriptors, or memory, they hang
  // or end the process. So check for enough of them first.
  keep_freed_memory();
  save_address_space();
  if (*type == "worker") take_blas_memory();
  check_address_room(kOwnAddressBytes, "for gRPC and the connections of this task");
  rpc::check_descriptor_room(rpc::kGrpcDescriptors + descriptors());
  rpc::check_thread_room(static_cast<std::size_t>(threads) + rpc::kGrpcThreads + kOwnThreads);
  at::set_num_threads(threads);
  listen(address, data_address);
  log_info("serving at ", address_, ", job ", options_.job_id, ", ", threads, " intra-op threads");
}

// Each worker connects to each parameter server.
std::size_t Server::Task::descriptors() const {
  const std::string peers = TaskId::parse(self_.task).job == "ps" ? "worker" : "ps";
  return kOwnDescriptors + rpc::kConnectionDescriptors *
                               static_cast<std::size_t>(cluster::num_tasks_of(spec_, peers));
}

// The errors of the transport only name addresses, so the task is added here.
void Server::Task::listen(const std::string& address, const std::string& data_address) {
  const auto accept = [this](std::shared_ptr<rpc::Channel> channel) {
    return channels_.accept(std::move(channel));
  };
  const rpc::ServeOptions options{
      .address = address,
      .data_address = data_address,
      .backends = options_.backends,
      .accept = accept,
      .refusals = refusals_,
      .serves_metrics = options_.serves_metrics,
      .should_stop = [this] { return end_request_.is_made(); },
      .on_too_few_threads = [this](const Error& error) { end_if_unused(error); }};
  for (const std::string& backend : options_.backends) {
    const bool has_own_port = backend == "stream" && !data_address.empty();
    endpoints_.push_back(
        {backend, has_own_port ? ":" + std::to_string(options_.data_port) : std::string()});
    if (backend == "stream" || backend == "grpc") continue;
    listeners_.push_back(rpc::listen_inprocess(address, accept));
    endpoints_.back().address = listeners_.back()->address();
  }
  try {
    control_ = serve(options);
  } catch (const Error& error) {
    throw Error(error).during("listening for " + self_.task);
  }
  address_ = control_->address();
}

// Retries, because name servers may not know a host yet that has just started.
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
    COHORT_CHECK(!end_request_.wait(Deadline::after(kOwnNamePause)), ErrorCode::cancelled,
                 "[server.listen] ", self_.task,
                 " was ended before it knew its own host's address");
  }
}

rpc::HandshakeReply Server::Task::handshake(const rpc::HandshakeRequest& request,
                                            const rpc::Caller& caller) {
  session_->check_caller(request);
  // A task that will join a shared job asks which one there is.
  if (request.coordinator_incarnation == 0) return {self_, endpoints_, 0, session_->shared_job()};
  const bool is_coordinator = request.caller.incarnation == request.coordinator_incarnation;
  if (!is_coordinator) {
    session_->of(request.coordinator_incarnation);
    return {self_, endpoints_, 0, session_->shared_job()};
  }
  const std::uint64_t order = session_->take(request, caller, channels_)->start_order();
  return {self_, endpoints_, order, session_->shared_job()};
}

TaskHealth Server::Task::health() {
  TaskHealth health;
  if (const std::shared_ptr<server::Session> session = session_->get()) health = session->health();
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
  session_->of(caller);
  shutdown(grace);
}

// If no threads can be started for new connections, every new coordinator would wait for this task
// in vain, so the task ends. A coordinator that is connected already keeps its connections, so then
// the task goes on.
void Server::Task::end_if_unused(const Error& error) {
  if (session_->get()) return;
  end_request_.make(Error(ErrorCode::resource_exhausted,
                          "[server.serve] expected " + self_.task +
                              " to have threads for its connections, got: " + error.message()));
}

int Server::Task::join() {
  const Duration limit = options_.end_when_unused;
  const bool has_limit = limit > Duration::zero();
  while (!end_request_.wait(has_limit ? Deadline::after(kUsePoll) : Deadline())) {
    if (channels_.unused_for().value_or(Duration::zero()) < limit) continue;
    log_info("no task of the job is connected any more: ", self_.task, " ends");
    shutdown(std::chrono::milliseconds::zero());
  }
  if (const std::optional<Error> lack = end_request_.lack()) throw Error(*lack);
  return 0;
}

bool Server::Task::stop() noexcept {
  if (std::exchange(is_stopped_, true)) return is_all_ended_;
  const Deadline grace = end_request_.grace();
  const Deadline end = server::EndRequest::end_after(grace);
  const std::shared_ptr<server::Session> last = session_->leave();
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

Server::Server(const ClusterResolver& resolver, ServerOptions options)
    : task_(std::make_unique<Task>(resolver, std::move(options))) {}
Server::~Server() = default;
bool Server::stop() noexcept { return task_->stop(); }
int Server::join() { return task_->join(); }
void Server::shutdown(std::chrono::milliseconds grace) { task_->shutdown(grace); }
const std::string& Server::address() const { return task_->address(); }
TaskHealth Server::health() const { return task_->health(); }

}  // namespace cohort
