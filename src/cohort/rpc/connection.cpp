// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/connection.h"

#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include "cohort/cluster/address.h"
#include "cohort/cluster/chosen_resolver.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"
#include "cohort/core/random.h"
#include "cohort/rpc/messages.h"

namespace cohort::rpc {
namespace {

constexpr std::string_view kDefaultJob = "job-";  // a hash follows

bool is_default_job_id(const std::string& job_id) {
  return job_id.starts_with(kDefaultJob) && job_id.size() > kDefaultJob.size() &&
         job_id.find_first_not_of("0123456789", kDefaultJob.size()) == std::string::npos;
}

constexpr auto kAttempt = std::chrono::seconds(2);
constexpr auto kPause = std::chrono::milliseconds(50);

const Endpoint& choose_endpoint(const HandshakeReply& reply, const ConnectionOptions& options) {
  for (const Endpoint& endpoint : reply.endpoints) {
    if (options.backend.empty() || endpoint.backend == options.backend) return endpoint;
  }
  std::string offered;
  for (const Endpoint& endpoint : reply.endpoints) offered += " " + endpoint.backend;
  throw Error(ErrorCode::unimplemented, "[rpc.connect] expected data backend '" + options.backend +
                                            "' at " + options.task + ", which offers:" + offered +
                                            "; name one of these in ClusterOptions::backend, or "
                                            "offer it with `cohort server --backend` or "
                                            "ServerOptions::backends");
}

// Hides the failures of an attempt from the caller: on_closed is only for connections that were
// returned.
class ClosedGate {
 public:
  explicit ClosedGate(std::function<void(const Error&)> on_closed)
      : on_closed_(std::move(on_closed)) {}

  void closed(const Error& reason) {
    {
      const Lock lock(mutex_);
      is_closed_ = true;
      if (!is_open_) return;
    }
    if (on_closed_) on_closed_(reason);
  }
  // Returns false if the connection has already closed.
  bool open() {
    const Lock lock(mutex_);
    is_open_ = !is_closed_;
    return is_open_;
  }

 private:
  const std::function<void(const Error&)> on_closed_;
  Mutex mutex_;
  bool is_open_ COHORT_GUARDED_BY(mutex_) = false;
  bool is_closed_ COHORT_GUARDED_BY(mutex_) = false;
};

// The result of a handshake; the endpoint's address is the one to connect to.
struct HandshakeResult {
  Connection made;
  Endpoint endpoint;
};

HandshakeResult perform_handshake(const ConnectionOptions& options, Deadline deadline) {
  Connection made;
  made.control = control_client(options.address, options.task, options.coordinator_incarnation);
  const HandshakeReply reply = made.control->handshake(
      {options.caller, options.task, options.coordinator_incarnation, options.data_timeout,
       options.is_returning, options.start_order, options.payload_checksums, options.has_first_task,
       options.is_shared},
      deadline);
  const std::string problem = disagreement(options.caller, reply.server);
  COHORT_CHECK(problem.empty(), ErrorCode::failed_precondition, "[rpc.connect] ", options.task,
               " at ", options.address, " does not fit this job: ", problem);
  made.incarnation = reply.server.incarnation;
  made.start_order = reply.start_order;
  made.shared_job = reply.shared_job;
  const Endpoint& chosen = choose_endpoint(reply, options);
  return {std::move(made), {chosen.backend, address_of(chosen, options.address)}};
}

Connection open_data(HandshakeResult handshake, const ConnectionOptions& options,
                     Deadline deadline) {
  auto& [made, endpoint] = handshake;
  const auto gate = std::make_shared<ClosedGate>(options.on_closed);
  made.data =
      Requester::connect(backend_of(endpoint.backend),
                         {.address = endpoint.address, .peer = options.task, .deadline = deadline},
                         options.on_one_way, [gate](const Error& reason) { gate->closed(reason); });
  const Hello hello{options.caller.task, options.caller.job_id,     options.coordinator_incarnation,
                    made.incarnation,    options.payload_checksums, made.data->host_proof()};
  const HelloReply welcome = message_of<HelloReply>(
      made.data->call(to_frame(hello), deadline, "greeting " + options.task));
  made.data->set_payload_checksums(welcome.has_payload_sums);
  if (!gate->open()) {
    throw Error(ErrorCode::unavailable, "[rpc.connect] the connection closed at once",
                ErrorCause::peer_lost);
  }
  log_info("connected to ", options.task, " at ", options.address, " over ", endpoint.backend,
           welcome.has_payload_sums ? ", payloads with checksums" : "");
  return std::move(made);
}

Deadline silence_deadline(const ConnectionOptions& options) {
  const Deadline other = options.silence_deadline.value_or(options.deadline);
  return other.time() > options.deadline.time() ? other : options.deadline;
}

// `answered`: set to the address for frames if the control plane answers, cleared if it does not.
Connection attempt(const ConnectionOptions& options, std::string& answered) {
  const Deadline deadline(
      std::min(silence_deadline(options).time(), Deadline::after(kAttempt).time()));
  HandshakeResult handshake;
  try {
    handshake = perform_handshake(options, deadline);
  } catch (const Error& error) {
    // A timeout proves nothing: the last attempt may have had too little time.
    if (error.code() != ErrorCode::deadline_exceeded) answered.clear();
    throw;
  }
  answered = handshake.endpoint.address;
  return open_data(std::move(handshake), options, deadline);
}

// Checks the host once more, since the last attempt may have been too short to be refused, and gRPC
// does not report why an attempt failed.
bool has_nobody(const ConnectionOptions& options) {
  if (options.should_stop && options.should_stop()) return false;
  return is_refusing(options.address, Deadline::after(kRefusalTimeout));
}

Error final_error(const Error& error, const ConnectionOptions& options,
                  const std::string& answered) {
  std::string operation = "connecting to " + options.task + " at " + options.address;
  if (!answered.empty()) operation += ", which answered; its frames go to " + answered;
  // A lack of resources of this process is not the task's error.
  const bool is_own = error.code() == ErrorCode::resource_exhausted && error.origin().empty();
  if (is_own) return Error(error).during(operation);
  Error last = error;
  if (answered.empty() && may_come_up(error) && has_nobody(options)) {
    last = Error(ErrorCode::unavailable,
                 "[rpc.connect] expected " + options.task + " (" + options.address +
                     ") to answer, got: connection refused, nobody listens there; start the task, "
                     "or correct its address",
                 ErrorCause::peer_lost);
  } else if (error.code() == ErrorCode::deadline_exceeded) {
    last = Error(ErrorCode::unavailable, error.message(), ErrorCause::peer_lost);
  }
  return std::move(last).at(options.task).during(operation);
}

}  // namespace

Connection connect_task(const ConnectionOptions& options) {
  std::string answered;
  bool is_told = !options.on_retry;
  while (true) {
    try {
      return attempt(options, answered);
    } catch (const Error& error) {
      const bool is_stopped = options.should_stop && options.should_stop();
      const bool is_silent = error.code() == ErrorCode::deadline_exceeded;
      const Deadline until = is_silent ? silence_deadline(options) : options.deadline;
      if (!may_come_up(error) || until.has_expired() || is_stopped) {
        if (is_silent && options.silence_deadline) throw Error(error).at(options.task);
        if (!answered.empty() && options.on_data_unreachable) options.on_data_unreachable(answered);
        throw final_error(error, options, answered);
      }
      if (!std::exchange(is_told, true)) options.on_retry(error);
    }
    std::this_thread::sleep_for(std::min<Duration>(kPause, silence_deadline(options).remaining()));
  }
}

bool may_come_up(const Error& error) {
  return error.cause() == ErrorCause::peer_lost || error.code() == ErrorCode::deadline_exceeded;
}

std::string address_of(const Endpoint& endpoint, const std::string& dialled) {
  if (endpoint.address.empty()) return dialled;
  if (!endpoint.address.starts_with(":")) return endpoint.address;
  return dialled.substr(0, dialled.rfind(':')) + endpoint.address;
}

Identity identity_of_process(const std::string& task, const std::string& job_id,
                             std::uint64_t incarnation) {
  return {task, job_id, incarnation, kProtocolVersion, TORCH_VERSION};
}

std::string disagreement(const Identity& self, const Identity& other) {
  if (self.job_id != other.job_id) {
    const bool is_named = !is_default_job_id(self.job_id);
    return "it belongs to " + text_of_job(other.job_id) + ", not to " +
           (is_named ? text_of_job(self.job_id) : "one named after this process's cluster") +
           "; give every task the same cluster in TF_CONFIG, or the same job id";
  }
  if (self.protocol_version != other.protocol_version) {
    return "it speaks protocol version " + std::to_string(other.protocol_version) +
           ", this process " + std::to_string(self.protocol_version) +
           "; run the same Cohort on every task";
  }
  if (self.torch_version != other.torch_version) {
    return "it runs LibTorch " + other.torch_version + ", this process " + self.torch_version +
           "; run the same LibTorch on every task";
  }
  return "";
}

std::uint64_t start_order_now() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(since_1970).count());
}

std::string default_job_id(const std::string& cluster_text) {
  std::map<std::string, ClusterSpec::Tasks> jobs = ClusterSpec::from_json(cluster_text).tasks();
  for (auto& [job, tasks] : jobs) {
    for (auto& [index, address] : tasks) address = cluster::normalized_address(address);
  }
  const std::string text = ClusterSpec::from_tasks(std::move(jobs)).to_json();
  return std::string(kDefaultJob) + std::to_string(mix_seed(0, text));
}

JobId job_id_of(const ClusterSpec& spec, const std::string& given) {
  constexpr const char* kByUser = "COHORT_JOB_ID";
  constexpr const char* kBySlurm = "SLURM_JOB_ID";
  const auto text_of = [](const char* name) {
    const char* const text = std::getenv(name);
    return std::string(text == nullptr ? "" : text);
  };
  if (!given.empty()) return {given, "the program"};
  if (std::string text = text_of(kByUser); !text.empty()) return {std::move(text), kByUser};
  if (const std::string number = text_of(kBySlurm);
      !number.empty() && cluster::choose_resolver().name == "slurm")
    return {"slurm-" + number, kBySlurm};
  return {default_job_id(spec.to_json()), "a hash of the cluster"};
}

std::string text_of_job(const std::string& job_id) {
  return is_default_job_id(job_id) ? "a job named after its cluster" : "job '" + job_id + "'";
}

}  // namespace cohort::rpc
