// SPDX-License-Identifier: Apache-2.0
#include "bench/grpc_peer.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <vector>

#include "bench/report.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace cohort::bench {
namespace {

constexpr char kMethod[] = "/bench.Peer/Call";
constexpr char kServerFlag[] = "--grpc-peer";
// The number of calls that the server can accept at once.
constexpr int kTakenAtOnce = 64;

// One unary method over raw bytes, as generated code declares it.
class PeerService final : public grpc::Service {
 public:
  PeerService() {
    AddMethod(new grpc::internal::RpcServiceMethod(kMethod, grpc::internal::RpcMethod::NORMAL_RPC,
                                                   nullptr));
    MarkMethodRaw(0);
  }
  using Writer = grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>;
  void request(grpc::ServerContext* context, grpc::ByteBuffer* request, Writer* writer,
               grpc::ServerCompletionQueue* queue, void* tag) {
    RequestAsyncUnary(0, context, request, writer, queue, queue, tag);
  }
};

// One call at the server, from its acceptance to its end.
struct ServedCall {
  std::optional<grpc::ServerContext> context;
  std::optional<PeerService::Writer> writer;
  grpc::ByteBuffer request;
  bool is_answered = false;

  void accept(PeerService& service, grpc::ServerCompletionQueue* queue) {
    writer.reset();
    context.emplace();
    writer.emplace(&*context);
    is_answered = false;
    service.request(&*context, &request, &*writer, queue, this);
  }
};

void serve(const std::string& address, const PeerHandler& handler) {
  PeerService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  std::vector<ServedCall> calls(kTakenAtOnce);
  for (ServedCall& call : calls) call.accept(service, queue.get());
  void* tag = nullptr;
  bool is_ok = false;
  while (queue->Next(&tag, &is_ok)) {
    ServedCall& call = *static_cast<ServedCall*>(tag);
    if (call.is_answered || !is_ok) {
      call.accept(service, queue.get());
      continue;
    }
    call.is_answered = true;
    call.writer->Finish(handler(call.request), grpc::Status::OK, &call);
  }
}

int start_server(const std::string& address) {
  const int parent = ::getpid();
  const int pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  const char* const arguments[] = {"grpc_peer", kServerFlag, address.c_str(), nullptr};
  ::execv("/proc/self/exe", const_cast<char* const*>(arguments));
  ::_exit(127);
}

struct Call {
  std::size_t number = 0;
  std::optional<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
  grpc::ByteBuffer reply;
  grpc::Status status;
};

}  // namespace

bool served_as_peer(int argc, char** argv, const PeerHandler& handler) {
  if (argc != 3 || std::string(argv[1]) != kServerFlag) return false;
  serve(argv[2], handler);
  return true;
}

GrpcPeer::GrpcPeer() {
  const std::string address = "127.0.0.1:" + std::to_string(testing::free_port());
  pid_ = start_server(address);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  require(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30)),
          "the gRPC server did not start");
  stub_ = std::make_unique<grpc::GenericStub>(channel);
}

GrpcPeer::~GrpcPeer() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

grpc::ByteBuffer GrpcPeer::call(const grpc::ByteBuffer& request) {
  grpc::ByteBuffer answer;
  call_many(
      1, 1, [&](std::size_t) { return request; },
      [&](std::size_t, grpc::ByteBuffer reply) { answer = std::move(reply); });
  return answer;
}

void GrpcPeer::call_many(std::size_t count, std::size_t depth,
                         const std::function<grpc::ByteBuffer(std::size_t)>& request,
                         const std::function<void(std::size_t, grpc::ByteBuffer)>& on_reply) {
  std::vector<Call> calls(std::min(depth, count));
  std::size_t started = 0;
  const auto start = [&](Call& call) {
    call.number = started++;
    call.reader.reset();
    call.context.emplace();
    call.reader = stub_->PrepareUnaryCall(&*call.context, kMethod, request(call.number), &queue_);
    call.reader->StartCall();
    call.reader->Finish(&call.reply, &call.status, &call);
  };
  for (Call& call : calls) start(call);
  for (std::size_t done = 0; done < count; ++done) {
    void* tag = nullptr;
    bool is_ok = false;
    queue_.Next(&tag, &is_ok);
    Call& call = *static_cast<Call*>(tag);
    require(call.status.ok(), "a gRPC call failed: " + call.status.error_message());
    on_reply(call.number, std::move(call.reply));
    call.reply = grpc::ByteBuffer();
    if (started < count) start(call);
  }
}

grpc::ByteBuffer buffer_of(const void* data, std::size_t size) {
  const grpc::Slice slice(data, size);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::Slice slice_of(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (buffer.TrySingleSlice(&slice).ok()) return slice;
  require(buffer.DumpToSingleSlice(&slice).ok(), "a gRPC buffer cannot be read");
  return slice;
}

}  // namespace cohort::bench
