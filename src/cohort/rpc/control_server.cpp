// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/error.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/internal/control_codec.h"
#include "cohort/rpc/internal/grpc_setup.h"
#include "cohort/rpc/internal/grpc_status.h"
#include "control.grpc.pb.h"

namespace cohort::rpc {
namespace {

using internal::from_proto;
using internal::to_proto;

// What leaves here is a status, never an exception. Thread-safe as the service is.
class Adapter final : public proto::Control::Service {
 public:
  explicit Adapter(ControlService& service) : service_(service) {}

 private:
  template <class Body>
  static grpc::Status guarded(const Body& body) {
    try {
      body();
      return grpc::Status::OK;
    } catch (...) {
      return internal::status_of(current_error());
    }
  }

  grpc::Status Handshake(grpc::ServerContext*, const proto::HandshakeRequest* in,
                         proto::HandshakeReply* out) override {
    return guarded([&] { *out = to_proto(service_.handshake(from_proto(*in))); });
  }
  grpc::Status GetHealth(grpc::ServerContext*, const proto::HealthRequest*,
                         proto::Health* out) override {
    return guarded([&] { *out = to_proto(service_.health()); });
  }
  grpc::Status RegisterFunction(grpc::ServerContext*, const proto::FunctionBody* in,
                                proto::Done*) override {
    return guarded([&] { service_.register_function(from_proto(*in)); });
  }
  grpc::Status CreateVariables(grpc::ServerContext*, const proto::Variables* in,
                               proto::Done*) override {
    return guarded([&] { service_.create_variables(from_proto(*in)); });
  }
  grpc::Status CreateIterator(grpc::ServerContext*, const proto::IteratorSpec* in,
                              proto::Done*) override {
    return guarded([&] { service_.create_iterator(from_proto(*in)); });
  }
  grpc::Status Release(grpc::ServerContext*, const proto::ReleaseRequest* in,
                       proto::Done*) override {
    return guarded([&] { service_.release(from_proto(*in)); });
  }
  grpc::Status Shutdown(grpc::ServerContext*, const proto::ShutdownRequest* in,
                        proto::Done*) override {
    return guarded([&] { service_.shutdown(from_proto(*in)); });
  }

  ControlService& service_;
};

// Thread-safe.
class GrpcControlServer final : public ControlServer {
 public:
  GrpcControlServer(std::string address, ControlService& service)
      : adapter_(service),
        address_(std::move(address)),
        server_(internal::start_grpc_server(address_, adapter_)) {}

  ~GrpcControlServer() override {
    server_->Shutdown(internal::grpc_time(Deadline::after(Duration::zero())));
  }

  const std::string& address() const override { return address_; }
  void stop(Deadline deadline) override { server_->Shutdown(internal::grpc_time(deadline)); }

 private:
  Adapter adapter_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<ControlServer> serve_control(const std::string& address, ControlService& service) {
  return std::make_unique<GrpcControlServer>(address, service);
}

}  // namespace cohort::rpc
