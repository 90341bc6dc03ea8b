// SPDX-License-Identifier: Apache-2.0
// The control plane: who is there, what exists on it, and the end. Slow path; gRPC behind it, none
// of it here.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/rpc/channel.h"
#include "cohort/rpc/health.h"
#include "cohort/rpc/refusal_log.h"

namespace cohort::rpc {

inline constexpr std::uint32_t kProtocolVersion = 4;

// Between which tasks tensors travel with a checksum; all else of a frame always does
// (docs/formats/frame.md). Of two tasks' wishes the later one of this list counts.
enum class PayloadChecksums : std::uint8_t {
  between_hosts,  // not between tasks of one host, as far as their addresses say
  never,
  always,
};
constexpr PayloadChecksums agreed(PayloadChecksums one, PayloadChecksums other) {
  return one > other ? one : other;
}

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
  // From a coordinator that has met this task before: it takes the place of an earlier start only.
  bool is_returning = false;
  // From a coordinator: a later start has a higher number. First the time of its start, in
  // nanoseconds; then the highest that a task has answered.
  std::uint64_t start_order = 0;
  // From a coordinator: its wish, also for the links among its tasks.
  PayloadChecksums payload_checksums = PayloadChecksums::between_hosts;
};
// Where a task takes frames. It does not know by which addresses others reach it.
struct Endpoint {
  std::string backend;  // "stream"
  // Empty: where the caller has reached the control plane. ":4711": at that host, on this port.
  // Else as it is: of a backend without ports.
  std::string address;
};
struct HandshakeReply {
  Identity server;
  std::vector<Endpoint> endpoints;  // in order of preference
  // To a coordinator: its request's, or above that of the start whose place it has taken, where the
  // clocks of their hosts say otherwise.
  std::uint64_t start_order = 0;
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
  // Of one epoch: which pass over the dataset it is, for its shuffles. The seed is then the same on
  // every worker, so that all shuffle alike. Unset: an iterator for schedule().
  std::optional<std::uint64_t> epoch = {};
};

// Who calls.
struct Caller {
  std::uint64_t coordinator_incarnation = 0;  // the coordinator's that it speaks for; 0: none given
  std::string address{};                      // "127.0.0.1:51344"
};

// What one start of a coordinator makes on a task. A call acts on that, and never on what its
// successor has made there. Thread-safe.
class COHORT_API ControlledJob {
 public:
  virtual ~ControlledJob() = default;
  virtual void register_function(const FunctionBody& body) = 0;
  virtual void create_variables(const std::vector<VariableSpec>& variables) = 0;
  virtual void create_iterator(const IteratorSpec& iterator) = 0;
  virtual void release(const std::vector<std::uint64_t>& resources) = 0;
};

// What a server answers; implemented by the server, free of gRPC. Called from several threads at
// once.
class COHORT_API ControlService {
 public:
  virtual ~ControlService() = default;
  virtual HandshakeReply handshake(const HandshakeRequest& request, const Caller& caller) = 0;
  // All there is. Anybody may ask: who has not named the job does not get what is only for those
  // (Health::task, LastError::origin and text), and nobody hears of the job or of versions.
  virtual Health health() = 0;
  // Whether that is the job of this task. Never for an empty one.
  virtual bool is_of_job(const std::string& /*job_id*/) const { return false; }
  // The job of the caller's coordinator. Throws failed_precondition for a caller that has not
  // shaken hands, and replaced_error() when another coordinator has taken the place of its own.
  virtual std::shared_ptr<ControlledJob> job_of(const Caller& caller) = 0;
  // Throws as job_of().
  virtual void shutdown(const Caller& caller, std::chrono::milliseconds grace) = 0;
};

// What a coordinator hears from `task` after another has taken its place. Its own work is over: no
// call of it is accepted any more.
COHORT_API Error replaced_error(const std::string& task);
COHORT_API bool is_replaced(const Error& error);

// What those get together and each who have not shaken hands; health alone is no handshake.
struct StrangerLimits {
  std::size_t bytes_max = 64 << 10;
  Duration patience = std::chrono::seconds(10);
  // The oldest goes when there is another.
  std::size_t connections_max = 256;
};

struct ServeOptions {
  std::string address = {};    // of the control plane, and of the data plane where that has none;
                               // port 0: the system chooses
  std::string data_address{};  // of the backend "stream" alone
  std::vector<std::string> backends{};  // of the data plane: "stream", "grpc"
  AcceptHandler accept{};               // of their channels; it calls Channel::admit()
  StrangerLimits limits{};
  std::shared_ptr<RefusalLog> refusals{};  // empty: its own
};

// Serves a task. Thread-safe.
class COHORT_API ControlServer {
 public:
  // Closes the channels of the data plane, too.
  virtual ~ControlServer() = default;
  // With the port that was chosen, when 0 was asked for.
  virtual const std::string& address() const = 0;
  // Refuses further control calls and waits for running ones until the deadline, then cancels them.
  // Channels live on.
  virtual void stop(Deadline deadline) = 0;
  // How many connections there are without a handshake.
  virtual std::size_t strangers() const = 0;
};
// A taken port is already_exists, an address that is not this machine's invalid_argument. `service`
// must outlive it.
COHORT_API std::unique_ptr<ControlServer> serve_task(ServeOptions options, ControlService& service);
// The control plane alone.
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
// Asks all at once. Returns when each has answered or the deadline has come: for each its error,
// nothing where it answered or is null.
COHORT_API std::vector<std::optional<Error>> health_of_all(
    const std::vector<std::shared_ptr<ControlClient>>& clients, Deadline deadline);
// Does not connect yet. `task` names the peer in errors. Every call names the start of the
// coordinator that it comes from; without one only handshake() and health() are answered.
COHORT_API std::unique_ptr<ControlClient> control_client(const std::string& address,
                                                         const std::string& task,
                                                         std::uint64_t coordinator_incarnation = 0);

}  // namespace cohort::rpc
