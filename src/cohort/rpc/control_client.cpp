// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/completion_queue.h>

#include <unordered_set>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/internal/control_codec.h"
#include "cohort/rpc/internal/grpc_setup.h"
#include "cohort/rpc/internal/grpc_status.h"
#include "cohort/rpc/refusal.h"
#include "control.grpc.pb.h"

namespace cohort::rpc {
namespace {

using internal::from_proto;
using internal::to_proto;
using Stub = proto::Control::Stub;

constexpr std::size_t kUnannouncedBytesMax = 32 << 10;
// For the check whether anybody listens: a host that is up answers within a round trip.
constexpr auto kRefusalTimeout = std::chrono::milliseconds(500);

// Thread-safe.
class GrpcControlClient final : public ControlClient {
 public:
  GrpcControlClient(const std::string& address, const std::string& task,
                    std::uint64_t coordinator_incarnation)
      : address_(address),
        task_(task),
        coordinator_(std::to_string(coordinator_incarnation)),
        connection_(std::make_shared<Connection>(address)) {}

  HandshakeReply handshake(const HandshakeRequest& request, Deadline deadline) override {
    // connect_task() retries, and checks at the end whether anybody listens.
    return from_proto(call_once(&Stub::Handshake, to_proto(request), deadline, "handshake with "));
  }
  Health health(Deadline deadline) override {
    const std::shared_ptr<Connection> used = connection();
    const bool was_connected = used->channel->GetState(false) == GRPC_CHANNEL_READY;
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
    Lock lock(mutex_);
    is_cancelled_ = true;
    for (grpc::ClientContext* context : running_) context->TryCancel();
  }

 private:
  struct Connection {
    explicit Connection(const std::string& address)
        : channel(internal::open_grpc_channel(address)), stub(channel) {}
    std::shared_ptr<grpc::Channel> channel;
    Stub stub;
  };

  // Opens a new connection after a failure, since gRPC would repeat that failure until its backoff
  // is over.
  std::shared_ptr<Connection> connection() {
    Lock lock(mutex_);
    if (connection_->channel->GetState(false) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      connection_ = std::make_shared<Connection>(address_);
    }
    return connection_;
  }

  // Replaces a connection that has ended, which gRPC may not have noticed yet.
  void leave(const std::shared_ptr<Connection>& ended) {
    Lock lock(mutex_);
    if (connection_ == ended) connection_ = std::make_shared<Connection>(address_);
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
  // The constructor sends the call. Use error() only after the queue has returned this call.
  class HealthCall {
   public:
    HealthCall(GrpcControlClient& client, Deadline deadline, grpc::CompletionQueue& answers)
        : client_(client), used_(client.connection()), running_(client, context_) {
      client.prepare(context_, deadline);
      reader_ = used_->stub.AsyncGetHealth(&context_, proto::HealthRequest(), &answers);
      reader_->Finish(&reply_, &status_, this);
    }
    std::optional<Error> error() const {
      if (status_.ok()) return std::nullopt;
      return client_.error_of(status_, "asking the health of ");
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

  Health ask_health(Deadline deadline) {
    return from_proto(
        call(&Stub::GetHealth, proto::HealthRequest(), deadline, "asking the health of "));
  }

  template <class Request, class Reply>
  Reply call(Method<Request, Reply> method, const Request& request, Deadline deadline,
             const std::string& operation) {
    try {
      return call_once(method, request, deadline, operation);
    } catch (const Error& error) {
      const bool may_be_away =
          error.cause() == ErrorCause::peer_lost || error.code() == ErrorCode::deadline_exceeded;
      if (!may_be_away || is_cancelled() ||
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

  bool is_cancelled() {
    const Lock lock(mutex_);
    return is_cancelled_;
  }

  template <class Request, class Reply>
  Reply call_once(Method<Request, Reply> method, const Request& request, Deadline deadline,
                  const std::string& operation) {
    const std::shared_ptr<Connection> used = connection();
    if (request.ByteSizeLong() > kUnannouncedBytesMax) announce(*used, deadline, operation);
    grpc::ClientContext context;
    prepare(context, deadline);
    Reply reply;
    const Running running(*this, context);
    const grpc::Status status = (used->stub.*method)(&context, request, &reply);
    if (!status.ok()) throw error_of(status, operation);
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

  Error error_of(const grpc::Status& status, const std::string& operation) const {
    return internal::error_of(status, {task_, address_, operation + task_});
  }

  const std::string address_;
  const std::string task_;
  const std::string coordinator_;  // its incarnation
  Mutex mutex_;
  std::shared_ptr<Connection> connection_
      COHORT_GUARDED_BY(mutex_);  // shared with the calls that use it
  std::unordered_set<grpc::ClientContext*> running_ COHORT_GUARDED_BY(mutex_);
  bool is_cancelled_ COHORT_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::vector<std::optional<Error>> health_of_all(
    const std::vector<std::shared_ptr<ControlClient>>& clients, Deadline deadline) {
  grpc::CompletionQueue answers;
  std::vector<std::unique_ptr<GrpcControlClient::HealthCall>> calls(clients.size());
  std::size_t missing = 0;
  for (std::size_t i = 0; i < clients.size(); ++i) {
    if (!clients[i]) continue;
    calls[i] = std::make_unique<GrpcControlClient::HealthCall>(
        dynamic_cast<GrpcControlClient&>(*clients[i]), deadline, answers);
    ++missing;
  }
  void* tag = nullptr;
  bool is_ok = false;
  while (missing > 0 && answers.Next(&tag, &is_ok)) --missing;  // each ends by its deadline
  answers.Shutdown();
  while (answers.Next(&tag, &is_ok)) {
  }
  std::vector<std::optional<Error>> errors(clients.size());
  for (std::size_t i = 0; i < clients.size(); ++i) {
    if (calls[i]) errors[i] = calls[i]->error();
  }
  return errors;
}

std::unique_ptr<ControlClient> control_client(const std::string& address, const std::string& task,
                                              std::uint64_t coordinator_incarnation) {
  return std::make_unique<GrpcControlClient>(address, task, coordinator_incarnation);
}

}  // namespace cohort::rpc
