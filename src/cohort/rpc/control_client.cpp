// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/completion_queue.h>

#include <atomic>
#include <unordered_set>

#include "cohort/core/detail/mutex.h"
#include "cohort/core/error.h"
#include "cohort/rpc/detail/control.h"
#include "cohort/rpc/detail/refusal.h"
#include "cohort/rpc/internal/control_client.h"
#include "cohort/rpc/internal/control_codec.h"
#include "cohort/rpc/internal/grpc_setup.h"
#include "cohort/rpc/internal/grpc_status.h"
#include "cohort/rpc/internal/name_lookup.h"
#include "control.grpc.pb.h"

namespace cohort::rpc {
namespace {

using internal::from_proto;
using internal::to_proto;
using Stub = proto::Control::Stub;

constexpr const char* kAskingHealth = "asking the health of ";
constexpr std::size_t kUnannouncedBytesMax = 32 << 10;
// For the check whether anybody listens: a host that is up answers within a round trip.
constexpr auto kRefusalTimeout = std::chrono::milliseconds(500);
constexpr auto kNamePoll = std::chrono::milliseconds(5);

// Thread-safe.
class GrpcControlClient final : public ControlClient {
 public:
  GrpcControlClient(const std::string& address, const std::string& task,
                    std::uint64_t coordinator_incarnation, internal::GetAddresses get_addresses)
      : address_(address),
        where_(internal::parse_address(address)),
        task_(task),
        coordinator_(std::to_string(coordinator_incarnation)),
        get_addresses_(std::move(get_addresses)) {}

  HandshakeReply handshake(const HandshakeRequest& request, Deadline deadline) override {
    // connect_task() retries, and checks at the end whether anybody listens.
    return from_proto(call_once(&Stub::Handshake, to_proto(request), deadline, "handshake with "));
  }
  TaskHealth health(Deadline deadline) override {
    const std::shared_ptr<Connection> used = open_connection();
    const bool was_connected = used && used->channel->GetState(false) == GRPC_CHANNEL_READY;
    try {
      return ask_health(deadline);
    } catch (const Error& error) {
      // A task closes connections without a handshake, even during a call.
      if (!was_connected || error.cause() != ErrorCause::peer_lost) throw;
    }
    leave(used);
    return ask_health(deadline);
  }
  void register_function(const FunctionBody& body, Deadline deadline) override {
    call(&Stub::RegisterFunction, to_proto(body), deadline,
         "registering function '" + body.name + "' on ");
  }
  void create_variables(const std::vector<VariableSpec>& variables, Deadline deadline) override {
    call(&Stub::CreateVariables, to_proto(variables), deadline, "creating variables on ");
  }
  void create_iterator(const IteratorSpec& iterator, Deadline deadline) override {
    call(&Stub::CreateIterator, to_proto(iterator), deadline, "creating an iterator on ");
  }
  void release(const std::vector<std::uint64_t>& resources, Deadline deadline) override {
    call(&Stub::Release, to_proto(resources), deadline, "releasing resources of ");
  }
  void shutdown(std::chrono::milliseconds grace, Deadline deadline) override {
    call(&Stub::Shutdown, to_proto(grace), deadline, "shutting down ");
  }
  void cancel() noexcept override {
    std::shared_ptr<internal::Lookup> lookup;
    {
      const Lock lock(mutex_);
      is_cancelled_ = true;
      for (grpc::ClientContext* context : running_) context->TryCancel();
      lookup = lookup_;
    }
    if (lookup) lookup->wake();
  }

 private:
  struct Connection {
    Connection(const internal::HostPort& where, const addrinfo& addresses)
        : channel(internal::open_grpc_channel(where, addresses)), stub(channel) {}
    // gRPC would repeat a failure until its backoff is over, and connect to the same addresses
    // again, which a restarted task may not have any more.
    bool is_lost() const {
      const grpc_connectivity_state state = channel->GetState(false);
      return state == GRPC_CHANNEL_TRANSIENT_FAILURE || (state == GRPC_CHANNEL_IDLE && has_served);
    }
    std::shared_ptr<grpc::Channel> channel;
    Stub stub;
    std::atomic<bool> has_served{false};  // a call has ended well over it
  };

  // Also lets go of a connection that is lost.
  bool has_connection() COHORT_REQUIRES(mutex_) {
    if (connection_ && connection_->is_lost()) connection_.reset();
    return connection_ != nullptr;
  }

  // Null if there is none now.
  std::shared_ptr<Connection> open_connection() {
    const Lock lock(mutex_);
    return has_connection() ? connection_ : nullptr;
  }

  // A new one for each connection; but that of a call that did not get its answer goes on.
  std::shared_ptr<internal::Lookup> lookup() COHORT_REQUIRES(mutex_) {
    if (!lookup_) lookup_ = internal::start_look_up(where_, false, get_addresses_);
    return lookup_;
  }

  // Makes a new connection if there is none, to the addresses that the host has now.
  std::shared_ptr<Connection> connection(Deadline deadline, const std::string& operation) {
    std::shared_ptr<internal::Lookup> asked;
    {
      const Lock lock(mutex_);
      if (has_connection()) return connection_;
      asked = lookup();
    }
    const auto found = asked->wait(deadline, [this] { return is_cancelled_.load(); });
    const Lock lock(mutex_);
    if (found && lookup_ == asked) lookup_.reset();
    if (has_connection()) return connection_;  // another call's
    if (!found && is_cancelled_) throw cancelled_error(operation);
    if (!found || !found->list) {
      throw internal::unresolved_error({task_, address_, "grpc"}, found).during(operation + task_);
    }
    connection_ = std::make_shared<Connection>(where_, *found->list);
    return connection_;
  }

  // Forgets a connection that has ended, which gRPC may not have noticed yet.
  void leave(const std::shared_ptr<Connection>& ended) {
    const Lock lock(mutex_);
    if (connection_ == ended) connection_.reset();
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
  // Whether the next call waits for the lookup of the name, which this starts if needed.
  bool waits_for_name() {
    const Lock lock(mutex_);
    return !has_connection() && !lookup()->wait(Deadline::after(Duration::zero()));
  }

  // The constructor sends the call. Use error() only after the queue has returned this call.
  class HealthCall {
   public:
    HealthCall(GrpcControlClient& client, Deadline deadline, grpc::CompletionQueue& answers)
        : client_(client),
          used_(client.connection(deadline, kAskingHealth)),
          running_(client, context_) {
      client.prepare(context_, deadline);
      reader_ = used_->stub.AsyncGetHealth(&context_, proto::HealthRequest(), &answers);
      reader_->Finish(&reply_, &status_, this);
    }
    std::optional<Error> error() const {
      if (status_.ok()) return std::nullopt;
      return client_.error_of(status_, kAskingHealth);
    }

   private:
    GrpcControlClient& client_;
    const std::shared_ptr<Connection> used_;
    grpc::ClientContext context_;
    const Running running_;
    std::unique_ptr<grpc::ClientAsyncResponseReader<proto::Health>> reader_;
    proto::Health reply_;
    grpc::Status status_;
  };

 private:
  template <class Request, class Reply>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Reply*);

  TaskHealth ask_health(Deadline deadline) {
    return from_proto(call(&Stub::GetHealth, proto::HealthRequest(), deadline, kAskingHealth));
  }

  template <class Request, class Reply>
  Reply call(Method<Request, Reply> method, const Request& request, Deadline deadline,
             const std::string& operation) {
    try {
      return call_once(method, request, deadline, operation);
    } catch (const Error& error) {
      const bool may_be_away =
          error.cause() == ErrorCause::peer_lost || error.code() == ErrorCode::deadline_exceeded;
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

  template <class Request, class Reply>
  Reply call_once(Method<Request, Reply> method, const Request& request, Deadline deadline,
                  const std::string& operation) {
    const std::shared_ptr<Connection> used = connection(deadline, operation);
    if (request.ByteSizeLong() > kUnannouncedBytesMax) announce(*used, deadline, operation);
    grpc::ClientContext context;
    prepare(context, deadline);
    Reply reply;
    const Running running(*this, context);
    const grpc::Status status = (used->stub.*method)(&context, request, &reply);
    if (!status.ok()) throw error_of(status, operation);
    used->has_served = true;
    return reply;
  }

  // gRPC may have renewed the connection, which then has had no handshake, and strangers may send
  // only few bytes. So a small call first names the coordinator.
  void announce(Connection& used, Deadline deadline, const std::string& operation) {
    grpc::ClientContext context;
    prepare(context, deadline);
    proto::Done reply;
    const Running running(*this, context);
    const grpc::Status status = used.stub.Release(&context, proto::ReleaseRequest(), &reply);
    if (!status.ok()) throw error_of(status, operation);
  }

  void prepare(grpc::ClientContext& context, Deadline deadline) const {
    if (!deadline.is_infinite()) context.set_deadline(internal::grpc_time(deadline));
    context.AddMetadata(internal::kCoordinatorMetadata, coordinator_);
  }

  Error cancelled_error(const std::string& operation) const {
    return Error(ErrorCode::cancelled, "[rpc.control] expected an answer from " + task_ + " (" +
                                           address_ +
                                           "), got none: this process cancelled its calls")
        .during(operation + task_);
  }

  Error error_of(const grpc::Status& status, const std::string& operation) const {
    const bool is_own = status.error_details().empty() &&
                        status.error_code() == grpc::StatusCode::CANCELLED && is_cancelled_;
    if (is_own) return cancelled_error(operation);
    return internal::error_of(status, {task_, address_, operation + task_});
  }

  const std::string address_;
  const internal::HostPort where_;
  const std::string task_;
  const std::string coordinator_;  // its incarnation
  const internal::GetAddresses get_addresses_;
  Mutex mutex_;
  std::shared_ptr<Connection> connection_
      COHORT_GUARDED_BY(mutex_);  // shared with the calls that use it; null: none yet, or lost
  std::shared_ptr<internal::Lookup> lookup_ COHORT_GUARDED_BY(mutex_);  // null: none runs
  std::unordered_set<grpc::ClientContext*> running_ COHORT_GUARDED_BY(mutex_);
  std::atomic<bool> is_cancelled_{false};  // set under the lock
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
  // gRPC moves the calls only while somebody waits at the queue, so names are looked at in between.
  // Each call ends by the deadline.
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
                                              std::uint64_t coordinator_incarnation) {
  return internal::control_client(address, task, coordinator_incarnation, &::getaddrinfo);
}

std::unique_ptr<ControlClient> internal::control_client(const std::string& address,
                                                        const std::string& task,
                                                        std::uint64_t coordinator_incarnation,
                                                        const GetAddresses& get_addresses) {
  return std::make_unique<GrpcControlClient>(address, task, coordinator_incarnation, get_addresses);
}

}  // namespace cohort::rpc
