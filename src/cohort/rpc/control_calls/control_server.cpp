// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/server_posix.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/rpc/backends/grpc/grpc_backend.h"
#include "cohort/rpc/backends/stream/stream_backend.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/control_calls/checked_call.h"
#include "cohort/rpc/control_calls/control_codec.h"
#include "cohort/rpc/control_calls/grpc_setup.h"
#include "cohort/rpc/metrics/http_answer.h"
#include "cohort/rpc/metrics/metrics_text.h"
#include "cohort/rpc/process_room.h"
#include "cohort/rpc/sockets/acceptor.h"
#include "cohort/rpc/sockets/hand_over.h"
#include "cohort/rpc/sockets/http2_visitors.h"
#include "control.grpc.pb.h"

namespace cohort::rpc {
namespace {

using internal::decoded;
using internal::encoded;
using internal::Visitor;

// How long a request for /metrics may take, also at the end of the task.
constexpr auto kMetricsTime = std::chrono::seconds(2);

// The text of an error may contain parts of the user's program or data, and task names reveal the
// structure of the cluster.
void hide_from_strangers(TaskHealth& health) {
  health.task.clear();
  health.by_variable.clear();
  if (!health.last_error) return;
  health.last_error->origin.clear();
  health.last_error->text.clear();
}

// Turns exceptions into answers. Thread-safe if the service is.
class Adapter final : public proto::CheckedControl::Service {
 public:
  Adapter(ControlService& service, const internal::Http2Visitors& visitors, RefusalLog& refusals,
          std::size_t stranger_bytes_max)
      : service_(service),
        visitors_(visitors),
        refusals_(refusals),
        stranger_bytes_max_(stranger_bytes_max) {}

  // Refuses further calls. Returns false if some still run at the deadline.
  bool stop(Deadline deadline) {
    const Lock lock(mutex_);
    is_stopping_ = true;
    return changed_.wait(mutex_, deadline,
                         [this]() COHORT_REQUIRES(mutex_) { return running_ == 0; });
  }

 private:
  // Where a call comes from.
  struct Origin {
    std::shared_ptr<Visitor> visitor;  // null: the connection was not accepted here
    Caller caller;
  };

  // Refuses a call that did not arrive as it was sent.
  Origin origin_of(const grpc::ServerContext& context, const proto::Call& call,
                   const char* method) const {
    std::shared_ptr<Visitor> visitor = visitors_.find(context.peer());
    if (visitor) visitor->note_call();
    std::string address = visitor ? visitor->address() : context.peer();
    if (!internal::is_intact(call, method)) {
      const Error error(ErrorCode::data_loss,
                        std::string("[rpc.control] expected ") + method + " from " + address +
                            " as it was sent, got other bytes (wrong checksum); the connection "
                            "corrupts data: see what is between the two hosts",
                        ErrorCause::peer_lost);
      refusals_.note(address, error.message());
      throw error;
    }
    return {std::move(visitor), {call.coordinator(), std::move(address)}};
  }

  // Counts a call while it runs.
  class Running {
   public:
    explicit Running(Adapter& adapter) : adapter_(adapter) {
      const Lock lock(adapter_.mutex_);
      if (adapter_.is_stopping_)
        throw Error(ErrorCode::unavailable, "[rpc.control] the task ends", ErrorCause::peer_lost);
      ++adapter_.running_;
    }
    ~Running() {
      const Lock lock(adapter_.mutex_);
      --adapter_.running_;
      adapter_.changed_.notify_all();
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    Adapter& adapter_;
  };

  // `body` gets the origin of the call and returns the reply.
  template <class Body>
  grpc::Status guarded(const grpc::ServerContext* context, const proto::Call* in,
                       proto::Answer* out, const char* method, const Body& body) {
    try {
      const Running running(*this);
      *out = internal::checked_answer(*in, encoded(body(origin_of(*context, *in, method))));
    } catch (...) {
      *out = internal::checked_answer(*in, current_error());
    }
    return grpc::Status::OK;
  }

  // Admits the connection and returns the result of `ask`. If `ask` throws, logs the refusal
  // instead.
  template <class Ask>
  auto admitting(const Origin& from, const std::string& call, const Ask& ask) {
    try {
      auto answer = ask();
      if (from.visitor) from.visitor->admit();
      return answer;
    } catch (const Error& error) {
      refusals_.note(from.caller.address, call + ": " + error.message());
      throw;
    }
  }

  template <class Argument>
  grpc::Status on_session(const grpc::ServerContext* context, const proto::Call* in,
                          proto::Answer* out, const char* method, const char* call,
                          void (CoordinatorSession::*act)(const Argument&)) {
    return guarded(context, in, out, method, [&](const Origin& from) {
      const auto session = admitting(from, call, [&] { return service_.session_of(from.caller); });
      (session.get()->*act)(decoded<Argument>(in->body(), method));
      return internal::Done();
    });
  }

  grpc::Status Handshake(grpc::ServerContext* context, const proto::Call* in,
                         proto::Answer* out) override {
    return guarded(context, in, out, "Handshake", [&](const Origin& from) {
      const auto asked = decoded<HandshakeRequest>(in->body(), "Handshake");
      const std::string call = "handshake of '" + asked.caller.task.substr(0, kNameBytesMax) +
                               "' of " + text_of_job(asked.caller.job_id.substr(0, kNameBytesMax));
      return admitting(from, call, [&] {
        COHORT_CHECK(in->body().size() <= stranger_bytes_max_, ErrorCode::resource_exhausted,
                     "[rpc.control] expected a handshake of at most ", stranger_bytes_max_,
                     " bytes, got ", in->body().size());
        return service_.handshake(asked, from.caller);
      });
    });
  }
  // Any client may ask. Admits a known coordinator whose connection gRPC has renewed, since a
  // renewed connection has had no handshake.
  grpc::Status GetHealth(grpc::ServerContext* context, const proto::Call* in,
                         proto::Answer* out) override {
    return guarded(context, in, out, "GetHealth", [&](const Origin& from) {
      // Empty if the caller does not know the job.
      const auto job_id = decoded<std::string>(in->body(), "GetHealth");
      if (from.visitor && !from.visitor->is_admitted() && from.caller.coordinator_incarnation != 0)
        admit_if_known(from);
      TaskHealth health = service_.health();
      if (!service_.is_of_job(job_id)) hide_from_strangers(health);
      return health;
    });
  }
  void admit_if_known(const Origin& from) {
    try {
      service_.session_of(from.caller);
      from.visitor->admit();
    } catch (const Error&) {  // it stays a stranger
    }
  }
  grpc::Status SetMembership(grpc::ServerContext* context, const proto::Call* in,
                             proto::Answer* out) override {
    return on_session(context, in, out, "SetMembership", "parameter servers",
                      &CoordinatorSession::set_membership);
  }
  grpc::Status PlaceVariables(grpc::ServerContext* context, const proto::Call* in,
                              proto::Answer* out) override {
    return on_session(context, in, out, "PlaceVariables", "a placement",
                      &CoordinatorSession::place_variables);
  }
  grpc::Status RegisterFunction(grpc::ServerContext* context, const proto::Call* in,
                                proto::Answer* out) override {
    return on_session(context, in, out, "RegisterFunction", "a function",
                      &CoordinatorSession::register_function);
  }
  grpc::Status CreateVariables(grpc::ServerContext* context, const proto::Call* in,
                               proto::Answer* out) override {
    return on_session(context, in, out, "CreateVariables", "variables",
                      &CoordinatorSession::create_variables);
  }
  grpc::Status CreateIterator(grpc::ServerContext* context, const proto::Call* in,
                              proto::Answer* out) override {
    return on_session(context, in, out, "CreateIterator", "an iterator",
                      &CoordinatorSession::create_iterator);
  }
  grpc::Status Release(grpc::ServerContext* context, const proto::Call* in,
                       proto::Answer* out) override {
    return guarded(context, in, out, "Release", [&](const Origin& from) {
      const auto session =
          admitting(from, "a release", [&] { return service_.session_of(from.caller); });
      const auto asked = decoded<internal::ReleaseRequest>(in->body(), "Release");
      internal::check_call_room(asked.next_call_bytes);
      session->release(asked.resources);
      return internal::Done();
    });
  }
  grpc::Status Shutdown(grpc::ServerContext* context, const proto::Call* in,
                        proto::Answer* out) override {
    return guarded(context, in, out, "Shutdown", [&](const Origin& from) {
      const auto grace = decoded<std::chrono::milliseconds>(in->body(), "Shutdown");
      return admitting(from, "a shutdown", [&] {
        service_.shutdown(from.caller, grace);
        return internal::Done();
      });
    });
  }

  static constexpr std::size_t kNameBytesMax = 64;  // of a stranger's names, in the log

  ControlService& service_;
  const internal::Http2Visitors& visitors_;
  RefusalLog& refusals_;
  const std::size_t stranger_bytes_max_;
  Mutex mutex_;
  Condition changed_;
  bool is_stopping_ COHORT_GUARDED_BY(mutex_) = false;
  int running_ COHORT_GUARDED_BY(mutex_) = 0;
};

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Thread-safe.
class TaskServer final : public ControlServer {
 public:
  TaskServer(ServeOptions options, ControlService& service)
      : service_(service),
        refusals_(options.refusals ? options.refusals : std::make_shared<RefusalLog>()),
        adapter_(service, visitors_, *refusals_, options.limits.bytes_max),
        on_too_few_threads_(options.on_too_few_threads) {
    const std::size_t bytes_max = options.limits.bytes_max;
    if (has(options.backends, "stream")) stream_.emplace(options.accept, bytes_max);
    if (has(options.backends, "grpc")) {
      frames_.emplace(options.accept, bytes_max, [this](const std::string& peer) {
        auto visitor = visitors_.find(peer);
        if (visitor) visitor->note_call();
        return visitor;
      });
    }
    acceptor_.emplace(internal::Acceptor::Options{.ports = ports(options),
                                                  .limits = options.limits,
                                                  .refusals = refusals_,
                                                  .should_stop = options.should_stop});
  }

  ~TaskServer() override {
    close_http2();
    acceptor_.reset();
    if (frames_) frames_->close_all();
    shut_down_grpc(Deadline::after(kAnswerTime));
    hand_over_.wait();
    metrics_.close();
    metrics_.wait();
    refusals_->finish();
  }

  const std::string& address() const override { return acceptor_->address(0); }
  std::size_t strangers() const override { return acceptor_->strangers(); }

  void stop(Deadline deadline) override {
    close_http2();
    acceptor_->close_ports();
    const bool have_ended = adapter_.stop(deadline);
    // Channels over gRPC stay open, so the server must stay too.
    if (!frames_) shut_down_grpc(Deadline::after(have_ended ? kAnswerTime : Duration::zero()));
  }

 private:
  std::vector<internal::Acceptor::Port> ports(const ServeOptions& options) {
    const internal::Acceptor::Take take_http2 = [this](FileDescriptor socket, auto visitor) {
      visitors_.add(socket.get(), std::move(visitor));
      noting_lack([&] { hand_over_.add(std::move(socket)); });
    };
    internal::Acceptor::Take take_frames;
    if (stream_) {
      take_frames = [this](FileDescriptor socket, auto visitor) {
        visitor->note_call();  // the stream backend reports what is wrong with frames
        stream_->take(std::move(socket), std::move(visitor));
      };
    }
    internal::Acceptor::Take take_http1;
    if (options.serves_metrics) {
      take_http1 = [this](FileDescriptor socket, auto visitor) {
        visitor->note_call();  // so that its end is no refusal
        metrics_.add(std::move(socket));
      };
    }
    if (options.data_address.empty())
      return {{options.address, take_http2, take_frames, take_http1}};
    return {{options.address, take_http2, nullptr, take_http1},
            {options.data_address, nullptr, take_frames, nullptr}};
  }

  // `act` throws if threads could not be started.
  template <class Act>
  void noting_lack(const Act& act) const {
    try {
      act();
    } catch (...) {
      if (on_too_few_threads_) on_too_few_threads_(current_error());
      throw;
    }
  }
  // Started for the first connection, since it is not free while it waits: its threads take the
  // events of all that this process does over gRPC and hand them on. A coordinator is seldom asked
  // for its health. Null where the end came before a connection.
  grpc::Server* grpc_server() {
    const Lock lock(mutex_);
    if (!server_ && !is_closed_) {
      noting_lack([] { check_thread_room(kGrpcThreads); });
      std::vector<grpc::Service*> services = {&adapter_};
      if (frames_) services.push_back(&frames_->service());
      server_ = internal::start_grpc_server(services);
    }
    return server_.get();
  }
  // After close_http2(). Cancels the calls that have not ended at the deadline.
  void shut_down_grpc(Deadline deadline) {
    grpc::Server* server = nullptr;
    {
      const Lock lock(mutex_);
      server = server_.get();
    }
    if (server) server->Shutdown(internal::grpc_time(deadline));
  }
  // Stops passing connections to gRPC.
  void close_http2() {
    hand_over_.close();
    const Lock lock(mutex_);
    is_closed_ = true;
  }

  // gRPC sends an answer after the call has returned, and a peer that is gone never takes it.
  static constexpr Duration kAnswerTime = std::chrono::seconds(1);

  ControlService& service_;
  const std::shared_ptr<RefusalLog> refusals_;
  internal::Http2Visitors visitors_;
  Adapter adapter_;
  const std::function<void(const Error&)> on_too_few_threads_;
  std::optional<backends::StreamHost> stream_;
  std::optional<backends::GrpcHost> frames_;
  Mutex mutex_;
  std::unique_ptr<grpc::Server> server_ COHORT_GUARDED_BY(mutex_);  // null until it is needed
  bool is_closed_ COHORT_GUARDED_BY(mutex_) = false;
  // gRPC reads the pending bytes on the thread that adds the connection, for as long as more come.
  internal::HandOver hand_over_{[this](FileDescriptor socket) {
    grpc::Server* const server = grpc_server();
    if (server) grpc::AddInsecureChannelFromFd(server, socket.release());
  }};
  internal::HandOver metrics_{[this](FileDescriptor socket) {
    const auto metrics = [this] {
      const TaskHealth health = service_.health();
      return internal::metrics_text(health, health.task);
    };
    internal::answer_http(socket, metrics, Deadline::after(kMetricsTime));
  }};
  std::optional<internal::Acceptor> acceptor_;  // last: it accepts as soon as it exists
};

}  // namespace

std::unique_ptr<ControlServer> serve_task(ServeOptions options, ControlService& service) {
  return std::make_unique<TaskServer>(std::move(options), service);
}

std::unique_ptr<ControlServer> serve_control(const std::string& address, ControlService& service,
                                             bool serves_metrics) {
  return serve_task({.address = address, .serves_metrics = serves_metrics}, service);
}

}  // namespace cohort::rpc
