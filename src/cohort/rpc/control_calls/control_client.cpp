// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/completion_queue.h>

#include <atomic>
#include <unordered_set>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/control_calls/checked_call.h"
#include "cohort/rpc/control_calls/control_codec.h"
#include "cohort/rpc/control_calls/control_connection.h"
#include "cohort/rpc/control_calls/grpc_setup.h"
#include "cohort/rpc/control_calls/grpc_status.h"
#include "control.grpc.pb.h"

namespace cohort::rpc {
namespace {

using internal::decoded;
using internal::encoded;
using Stub = proto::CheckedControl::Stub;

constexpr const char* kAskingHealth = "asking the health of ";
const std::string kNoJob;  // in place of the job of a caller that does not name it
constexpr std::size_t kUnannouncedBytesMax = 32 << 10;
constexpr auto kNamePoll = std::chrono::milliseconds(5);
// A call whose bytes arrive broken is sent at most this many times.
constexpr int kAttemptsMax = 3;

struct Method {
  const char* name;
  grpc::Status (Stub::*call)(grpc::ClientContext*, const proto::Call&, proto::Answer*);
  // Is false if a first run that comes late could undo what happened after the second run: a
  // function would lose a program, or an iterator would begin again.
  bool may_run_twice;
};
constexpr Method kHandshake{"Handshake", &Stub::Handshake, true};
constexpr Method kGetHealth{"GetHealth", &Stub::GetHealth, true};
constexpr Method kSetMembership{"SetMembership", &Stub::SetMembership, true};
constexpr Method kPlaceVariables{"PlaceVariables", &Stub::PlaceVariables, true};
constexpr Method kRegisterFunction{"RegisterFunction", &Stub::RegisterFunction, false};
constexpr Method kCreateVariables{"CreateVariables", &Stub::CreateVariables, true};
constexpr Method kCreateIterator{"CreateIterator", &Stub::CreateIterator, false};
constexpr Method kRelease{"Release", &Stub::Release, true};
constexpr Method kShutdown{"Shutdown", &Stub::Shutdown, true};

// Thread-safe.
class GrpcControlClient final : public ControlClient {
 public:
  GrpcControlClient(const std::string& address, const std::string& task,
                    std::uint64_t coordinator_incarnation, net::GetAddresses get_addresses)
      : address_(address),
        task_(task),
        coordinator_(coordinator_incarnation),
        connection_(address, task, std::move(get_addresses)) {}

  HandshakeReply handshake(const HandshakeRequest& request, Deadline deadline) override {
    // connect_task() retries, and checks at the end whether a process listens.
    return decoded<HandshakeReply>(
        call_until_intact(kHandshake, sealed(kHandshake, encoded(request)), deadline,
                          "handshake with "),
        "the answer to Handshake");
  }
  TaskHealth health(Deadline deadline) override {
    const std::shared_ptr<Connection> used = connection_.open();
    const bool was_connected = used && used->channel->GetState(false) == GRPC_CHANNEL_READY;
    try {
      return ask_health(deadline);
    } catch (const Error& error) {
      // A task closes connections without a handshake, even during a call.
      if (!was_connected || error.cause() != ErrorCause::peer_lost) throw;
    }
    connection_.leave(used);
    return ask_health(deadline);
  }
  void set_membership(const Membership& membership, Deadline deadline) override {
    call(kSetMembership, encoded(membership), deadline, "naming the parameter servers to ");
  }
  void place_variables(const Placement& placement, Deadline deadline) override {
    call(kPlaceVariables, encoded(placement), deadline, "placing variables on ");
  }
  void register_function(const FunctionBody& body, Deadline deadline) override {
    call(kRegisterFunction, encoded(body), deadline,
         "registering function '" + body.name + "' on ");
  }
  void create_variables(const std::vector<VariableSpec>& variables, Deadline deadline) override {
    call(kCreateVariables, encoded(variables), deadline, "creating variables on ");
  }
  void create_iterator(const IteratorSpec& iterator, Deadline deadline) override {
    call(kCreateIterator, encoded(iterator), deadline, "creating an iterator on ");
  }
  void release(const std::vector<std::uint64_t>& resources, Deadline deadline) override {
    call(kRelease, encoded(internal::ReleaseRequest{resources}), deadline,
         "releasing resources of ");
  }
  void shutdown(std::chrono::milliseconds grace, Deadline deadline) override {
    call(kShutdown, encoded(grace), deadline, "shutting down ");
  }
  void cancel() noexcept override {
    {
      const Lock lock(mutex_);
      is_cancelled_ = true;
      for (grpc::ClientContext* context : running_) context->TryCancel();
    }
    connection_.cancel();
  }

 private:
  using Connection = internal::ControlConnection::Connection;

  std::shared_ptr<Connection> connection(Deadline deadline, const std::string& operation) {
    std::shared_ptr<Connection> found;
    try {
      found = connection_.get(deadline);
    } catch (const Error& error) {
      throw Error(error).during(operation + task_);
    }
    if (!found) throw cancelled_error(operation);
    return found;
  }

  // Lets cancel() reach a call while it runs.
  class Running {
   public:
    Running(GrpcControlClient& client, grpc::ClientContext& context)
        : client_(client), context_(context) {
      Lock lock(client_.mutex_);
      if (client_.is_cancelled_) context_.TryCancel();
      client_.running_.insert(&context_);
    }
    ~Running() {
      Lock lock(client_.mutex_);
      client_.running_.erase(&context_);
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    GrpcControlClient& client_;
    grpc::ClientContext& context_;
  };

 public:
  // Returns whether the next call would wait for the lookup of the name; starts it if needed.
  bool waits_for_name() { return connection_.waits_for_name(); }

  // The constructor sends the call, once. Use error() only after the queue has returned this call.
  class HealthCall {
   public:
    HealthCall(GrpcControlClient& client, Deadline deadline, grpc::CompletionQueue& answers)
        : client_(client),
          used_(client.connection(deadline, kAskingHealth)),
          running_(client, context_) {
      context_.set_deadline(internal::grpc_time(deadline));
      reader_ = used_->stub.AsyncGetHealth(&context_, sent_, &answers);
      reader_->Finish(&answer_, &status_, this);
    }
    std::optional<Error> error() const {
      const auto failure = client_.failure_of(*used_, status_, answer_, sent_, kAskingHealth);
      if (!failure) return std::nullopt;
      if (failure->is_broken) client_.connection_.leave(used_);
      return failure->error;
    }

   private:
    GrpcControlClient& client_;
    const std::shared_ptr<Connection> used_;
    grpc::ClientContext context_;
    const Running running_;
    const proto::Call sent_ = client_.sealed(kGetHealth, encoded(kNoJob));
    std::unique_ptr<grpc::ClientAsyncResponseReader<proto::Answer>> reader_;
    proto::Answer answer_;
    grpc::Status status_;
  };

 private:
  // Describes why a call failed.
  struct Failure {
    Error error;
    bool is_broken = false;    // bytes of the call or of its answer were changed on the way
    bool has_not_run = false;  // the task refused the call as broken
  };

  proto::Call sealed(const Method& method, std::string body) const {
    return internal::checked_call(method.name, coordinator_, std::move(body));
  }

  TaskHealth ask_health(Deadline deadline) {
    return decoded<TaskHealth>(call(kGetHealth, encoded(kNoJob), deadline, kAskingHealth),
                               "the answer to GetHealth");
  }

  // Returns the body of the answer.
  std::string call(const Method& method, std::string body, Deadline deadline,
                   const std::string& operation) {
    const proto::Call sent = sealed(method, std::move(body));
    try {
      return call_until_intact(method, sent, deadline, operation);
    } catch (const Error& error) {
      const bool may_be_away = error.code() == ErrorCode::deadline_exceeded ||
                               (error.cause() == ErrorCause::peer_lost && !is_violation(error));
      if (!may_be_away || is_cancelled_ ||
          !is_refusing(address_, Deadline::after(kRefusalTimeout))) {
        throw;
      }
    }
    throw Error(ErrorCode::unavailable,
                "[rpc.control] expected " + task_ + " (" + address_ +
                    ") to answer, got: connection refused, nobody listens there; is the task "
                    "running, and is "
                    "this its address?",
                ErrorCause::peer_lost)
        .at(task_)
        .during(operation + task_);
  }

  // Each attempt uses another connection, since a flipped bit may have damaged the state that both
  // ends of an HTTP/2 connection keep.
  std::string call_until_intact(const Method& method, const proto::Call& sent, Deadline deadline,
                                const std::string& operation) {
    for (int attempts = 1;; ++attempts) {
      const std::shared_ptr<Connection> used = connection(deadline, operation);
      proto::Answer answer;
      const std::optional<Failure> failure = run(*used, method, sent, answer, deadline, operation);
      if (!failure) return std::move(*answer.mutable_body());
      // If a length was broken, the connection may wait forever for bytes that do not come.
      const bool is_silent = failure->error.code() == ErrorCode::deadline_exceeded;
      if (failure->is_broken || is_silent) connection_.leave(used);
      const bool may_repeat = failure->has_not_run || (failure->is_broken && method.may_run_twice);
      if (!may_repeat || attempts == kAttemptsMax || is_cancelled_) throw Error(failure->error);
      log_warn("calling ", task_, " again: ", failure->error.message());
    }
  }

  // gRPC may have made a new connection, which has had no handshake, and the task accepts only few
  // bytes from such a connection. So before a large call, a small one names the coordinator, and
  // the size, for which the task may have too little memory.
  std::optional<Failure> run(Connection& used, const Method& method, const proto::Call& sent,
                             proto::Answer& answer, Deadline deadline,
                             const std::string& operation) {
    if (sent.body().size() > kUnannouncedBytesMax) {
      const internal::ReleaseRequest ahead{.resources = {}, .next_call_bytes = sent.body().size()};
      proto::Answer admitted;
      auto failure =
          run_one(used, kRelease, sealed(kRelease, encoded(ahead)), admitted, deadline, operation);
      if (failure) {
        failure->has_not_run = failure->is_broken;
        return failure;
      }
    }
    return run_one(used, method, sent, answer, deadline, operation);
  }
  std::optional<Failure> run_one(Connection& used, const Method& method, const proto::Call& sent,
                                 proto::Answer& answer, Deadline deadline,
                                 const std::string& operation) {
    grpc::ClientContext context;
    context.set_deadline(internal::grpc_time(deadline));
    const Running running(*this, context);
    const grpc::Status status = (used.stub.*method.call)(&context, sent, &answer);
    return failure_of(used, status, answer, sent, operation);
  }

  // Returns nullopt if the answer is intact and has a body.
  std::optional<Failure> failure_of(Connection& used, const grpc::Status& status,
                                    const proto::Answer& answer, const proto::Call& sent,
                                    const std::string& operation) {
    if (!status.ok())
      return Failure{status_error(status, operation), internal::may_be_broken(status)};
    if (!internal::is_intact(answer, sent)) {
      return Failure{named(Error(ErrorCode::data_loss,
                                 "[rpc.control] expected the answer of " + task_ + " (" + address_ +
                                     ") as it was sent, got other bytes (wrong checksum); the "
                                     "connection to it corrupts data: see what is between the two "
                                     "hosts",
                                 ErrorCause::peer_lost),
                           operation),
                     true};
    }
    has_met_ = true;
    if (answer.has_error()) {
      const Error error = internal::error_of(answer);
      // A violation with an origin happened on another connection, so this call was not refused.
      const bool is_refused = is_violation(error) && error.origin().empty();
      return Failure{named(error, operation), is_refused, is_refused};
    }
    used.has_served = true;
    return std::nullopt;
  }

  Error named(Error error, const std::string& operation) const {
    if (error.origin().empty()) std::move(error).at(task_);
    // NOLINTNEXTLINE(bugprone-use-after-move): the builders change it in place
    std::move(error).during(operation + task_);
    return error;  // NOLINT(bugprone-use-after-move)
  }

  Error cancelled_error(const std::string& operation) const {
    return Error(ErrorCode::cancelled, "[rpc.control] expected an answer from " + task_ + " (" +
                                           address_ +
                                           "), got none: this process cancelled its calls")
        .during(operation + task_);
  }

  Error status_error(const grpc::Status& status, const std::string& operation) const {
    if (status.error_code() == grpc::StatusCode::CANCELLED && is_cancelled_)
      return cancelled_error(operation);
    return internal::error_of(status, {task_, address_, operation + task_, has_met_});
  }

  const std::string address_;
  const std::string task_;
  const std::uint64_t coordinator_;  // its incarnation
  internal::ControlConnection connection_;
  Mutex mutex_;
  std::unordered_set<grpc::ClientContext*> running_ COHORT_GUARDED_BY(mutex_);
  std::atomic<bool> is_cancelled_{false};  // set under the lock
  std::atomic<bool> has_met_{false};       // the task has given an intact answer
};

}  // namespace

std::vector<std::optional<Error>> health_of_all(
    const std::vector<std::shared_ptr<ControlClient>>& clients, Deadline deadline) {
  grpc::CompletionQueue answers;
  std::vector<std::unique_ptr<GrpcControlClient::HealthCall>> calls(clients.size());
  std::vector<std::optional<Error>> errors(clients.size());
  std::size_t missing = 0;
  const auto is_asked = [&](std::size_t i) {
    try {
      auto& client = dynamic_cast<GrpcControlClient&>(*clients[i]);
      if (client.waits_for_name() && !deadline.has_expired()) return false;
      calls[i] = std::make_unique<GrpcControlClient::HealthCall>(client, deadline, answers);
      ++missing;
    } catch (...) {
      errors[i] = current_error();
    }
    return true;
  };
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    if (clients[i]) left.push_back(i);
  }
  void* tag = nullptr;
  bool is_ok = false;
  // gRPC advances the calls only while a thread waits at the queue, so the loop waits there between
  // two checks of the names that are being looked up. Each call ends by the deadline.
  for (std::erase_if(left, is_asked); !left.empty() || missing > 0; std::erase_if(left, is_asked)) {
    const Deadline until = left.empty() ? Deadline() : Deadline::after(kNamePoll);
    const auto next = answers.AsyncNext(&tag, &is_ok, internal::grpc_time(until));
    if (next == grpc::CompletionQueue::GOT_EVENT) --missing;
  }
  answers.Shutdown();
  while (answers.Next(&tag, &is_ok)) {
  }
  for (std::size_t i = 0; i < clients.size(); ++i) {
    if (calls[i]) errors[i] = calls[i]->error();
  }
  return errors;
}

std::unique_ptr<ControlClient> control_client(const std::string& address, const std::string& task,
                                              std::uint64_t coordinator_incarnation,
                                              const net::GetAddresses& get_addresses) {
  return std::make_unique<GrpcControlClient>(address, task, coordinator_incarnation, get_addresses);
}

}  // namespace cohort::rpc
