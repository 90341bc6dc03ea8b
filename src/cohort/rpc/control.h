// SPDX-License-Identifier: Apache-2.0
// The control plane: who is there, what exists on it, and the end. Slow path; gRPC behind it, none
// of it here.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/clock.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::rpc {

inline constexpr std::uint32_t kProtocolVersion = 1;

// Who a process is. "Build" is the protocol version and LibTorch's, never the executable.
struct Identity {
  std::string task;  // "worker:1"
  std::string job_id;
  std::uint64_t incarnation = 0;
  std::uint32_t protocol_version = kProtocolVersion;
  std::string torch_version;
};

struct HandshakeRequest {
  Identity caller;
  std::string expected_task;  // refused with failed_precondition when the server is another
  std::uint64_t coordinator_incarnation =
      0;  // from a coordinator: a new one drops what the old one made
  // From a coordinator: how long a closure waits for a parameter server. Zero: the server's own.
  Duration data_timeout = Duration::zero();
};
struct Endpoint {
  std::string backend;  // "stream"
  std::string address;  // "127.0.0.1:4711"
};
struct HandshakeReply {
  Identity server;
  std::vector<Endpoint> endpoints;  // in order of preference
};

// A function, and its programs for different elements; sent again with more programs as they come.
struct FunctionBody {
  std::uint32_t id = 0;
  std::string name;
  std::string registered_name;  // not empty: run the function registered under it, no programs
  std::vector<Bytes> programs;
  // For each variable of the programs, by name: where it lives.
  struct Placement {
    std::string variable;
    std::uint64_t id = 0;
    std::uint32_t ps = 0;
  };
  std::vector<Placement> placements;
};

struct VariableSpec {
  std::uint64_t id = 0;
  std::string name;
  TensorSpec spec;
  bool is_trainable = true;
};  // zeros until the first assign

// An iterator over a dataset graph.
struct IteratorSpec {
  std::uint64_t id = 0;
  Bytes dataset;
  std::uint64_t seed = 0;
};

struct Health {
  std::uint64_t incarnation = 0;
  std::uint64_t closures_run = 0;
  std::uint64_t pushes_applied = 0;
  std::uint64_t pushes_dropped = 0;  // came a second time, or after their closure was retired
  std::uint64_t pulled_bytes = 0;
  std::uint64_t pushed_bytes = 0;
};

// What a server answers; implemented by the server, free of gRPC. Called from several threads at
// once.
class COHORT_API ControlService {
 public:
  virtual ~ControlService() = default;
  virtual HandshakeReply handshake(const HandshakeRequest& request) = 0;
  virtual Health health() = 0;
  virtual void register_function(const FunctionBody& body) = 0;
  virtual void create_variables(const std::vector<VariableSpec>& variables) = 0;
  virtual void create_iterator(const IteratorSpec& iterator) = 0;
  virtual void release(const std::vector<std::uint64_t>& resources) = 0;
  virtual void shutdown(std::chrono::milliseconds grace) = 0;
};

// Serves a ControlService on an address. Thread-safe.
class COHORT_API ControlServer {
 public:
  virtual ~ControlServer() = default;
  // With the port that was chosen, when 0 was asked for.
  virtual const std::string& address() const = 0;
  // Waits for running calls until the deadline, then cancels them.
  virtual void stop(Deadline deadline) = 0;
};
// A taken port is already_exists, an address that is not this machine's invalid_argument. `service`
// must outlive it.
COHORT_API std::unique_ptr<ControlServer> serve_control(const std::string& address,
                                                        ControlService& service);

// Calls a remote ControlService. Errors carry the task as origin; peer_lost when it cannot be
// reached. Thread-safe.
class COHORT_API ControlClient {
 public:
  virtual ~ControlClient() = default;
  virtual HandshakeReply handshake(const HandshakeRequest& request, Deadline deadline) = 0;
  virtual Health health(Deadline deadline) = 0;
  virtual void register_function(const FunctionBody& body, Deadline deadline) = 0;
  virtual void create_variables(const std::vector<VariableSpec>& variables, Deadline deadline) = 0;
  virtual void create_iterator(const IteratorSpec& iterator, Deadline deadline) = 0;
  virtual void release(const std::vector<std::uint64_t>& resources, Deadline deadline) = 0;
  virtual void shutdown(std::chrono::milliseconds grace, Deadline deadline) = 0;
  // Ends the calls that run and all that follow, as cancelled.
  virtual void cancel() noexcept = 0;
};
// Does not connect yet. `task` names the peer in errors.
COHORT_API std::unique_ptr<ControlClient> control_client(const std::string& address,
                                                         const std::string& task);

}  // namespace cohort::rpc
