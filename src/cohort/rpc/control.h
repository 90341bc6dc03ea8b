// SPDX-License-Identifier: Apache-2.0
// The control plane: handshake, health, creating and releasing what exists on a task, and shutdown.
// Not a fast path. Implemented with gRPC, but this header includes nothing of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/cluster/cluster_options.h"
#include "cohort/cluster/task_health.h"
#include "cohort/core/bytes.h"
#include "cohort/core/clock.h"
#include "cohort/core/file_fingerprint.h"
#include "cohort/core/random.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/net/name_lookup.h"
#include "cohort/rpc/channel.h"
#include "cohort/rpc/membership.h"
#include "cohort/rpc/refusal_log.h"
#include "cohort/rpc/task_errors.h"

namespace cohort::rpc {

inline constexpr std::uint32_t kProtocolVersion = 14;

// Returns the setting that applies between two tasks that may have chosen differently.
constexpr PayloadChecksums agreed(PayloadChecksums one, PayloadChecksums other) {
  return one > other ? one : other;
}

// Identifies a process. Its build is the versions of the protocol and of LibTorch, never the
// executable.
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
  // From a coordinator: how long a closure waits for a parameter server. Zero: the server's
  // default.
  Duration data_timeout = Duration::zero();
  // From a coordinator that has connected to this task before: it may replace only an earlier
  // start.
  bool is_returning = false;
  // From a coordinator: a later start has a higher number. At first the time of its start in
  // nanoseconds, then the highest number that a task has returned.
  std::uint64_t start_order = 0;
  // From a coordinator: its choice, which also applies to the links among its tasks.
  PayloadChecksums payload_checksums = PayloadChecksums::between_hosts;
  // From a coordinator that the first task of the cluster has accepted. If two starts reach the
  // cluster at once, that task chooses one, and this is how the others hear of its choice.
  bool has_first_task = false;
  // From the chief of a job without a coordinator, which its workers join: what it makes stays when
  // its connections end, and its next start may join, too.
  bool is_shared = false;
};
// Where a task accepts frames. A task does not know the addresses by which others reach it.
struct Endpoint {
  std::string backend;  // "stream"
  // Empty: the address at which the caller reached the control plane. ":4711": this port of that
  // host. Otherwise used as it is, by a backend without ports.
  std::string address;
};
struct HandshakeReply {
  Identity server;
  std::vector<Endpoint> endpoints;  // in order of preference
  // To a coordinator: the start_order of its request. If that is not above the start that the
  // caller replaces, because the clocks of their hosts differ, a number above it.
  std::uint64_t start_order = 0;
  // The coordinator_incarnation of the shared job that the task serves; 0: it serves none. A caller
  // that gives none itself learns it from this.
  std::uint64_t shared_job = 0;
};

// A function and its programs for different element specs. When programs are added, only those are
// sent to a worker that has the others.
struct FunctionBody {
  std::uint32_t id = 0;
  std::string name;
  std::string registered_name;  // not empty: run the function registered under it, no programs
  // How many programs of the function come before these, and stay as the worker has them.
  std::uint32_t programs_before = 0;
  std::vector<Bytes> programs;
  // The variables of the programs, which have them by name. A Placement says where they are.
  struct Variable {
    std::string name;
    std::uint64_t id = 0;
  };
  std::vector<Variable> variables;
};

// A server makes the initial value of a variable from this: an initializer
// (variable/initializer_recipe.h) and everything on which its values depend.
struct InitialValue {
  // The rows are the indices of the first dimension from `begin` up to, but not including, `end`.
  struct Rows {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::uint8_t kind = 0;
  double first = 0;
  double second = 0;
  std::uint64_t seed = 0;
  std::string name;  // of the whole variable, like the spec
  TensorSpec whole;
  std::optional<Rows> rows = {};  // those that this server has; unset: the whole
};

// A table of rows by key, which appear with the first update of their key.
struct TableSpec {
  enum class Eviction : std::uint8_t { none, least_recently_used, least_frequently_used };
  std::uint64_t capacity = 0;   // rows on this server; 0: any number
  std::uint32_t min_count = 1;  // with so many updates a key gets a row
  Eviction eviction = Eviction::none;
};

struct VariableSpec {
  std::uint64_t id = 0;
  std::string name;
  TensorSpec spec;
  bool is_trainable = true;
  std::optional<InitialValue> initial = {};  // unset: zeros until the first assign
  std::optional<TableSpec> table = {};       // of a table, whose spec has an unknown number of rows
};

// An iterator over a dataset graph.
struct IteratorSpec {
  std::uint64_t id = 0;
  Bytes dataset;
  std::uint64_t seed = 0;
  // For an epoch: the number of the pass over the dataset, which its shuffles use. The seed is then
  // the same on every worker, so that all shuffle alike. Unset: an iterator for schedule().
  std::optional<std::uint64_t> epoch = {};
  // For an epoch that this worker continues: the files that it has read before (ClosureEnd::files).
  std::vector<FileFingerprint> files = {};
  // A per-worker value: the first element, which every draw returns.
  bool is_value = false;

  // The seed of the iterator on `task` ("worker:1"). It differs between workers, except for an
  // epoch's iterator, which must shuffle alike on all.
  std::uint64_t seed_on(std::string_view task) const { return epoch ? seed : mix_seed(seed, task); }
};

// The caller of a control method.
struct Caller {
  std::uint64_t coordinator_incarnation = 0;  // of the caller's coordinator; 0: not given
  std::string address{};                      // "127.0.0.1:51344"
};

// The resources that one start of a coordinator creates on a task. Calls act only on these, never
// on the resources of a later start. Thread-safe.
class COHORT_API CoordinatorSession {
 public:
  virtual ~CoordinatorSession() = default;
  // Tells a worker the parameter servers.
  virtual void set_membership(const Membership& membership) = 0;
  // Tells a worker where variables are. A server then refuses requests of an earlier version.
  virtual void place_variables(const Placement& placement) = 0;
  virtual void register_function(const FunctionBody& body) = 0;
  virtual void create_variables(const std::vector<VariableSpec>& variables) = 0;
  virtual void create_iterator(const IteratorSpec& iterator) = 0;
  virtual void release(const std::vector<std::uint64_t>& resources) = 0;
};

// Handles the control calls; implemented by the server without gRPC. Called from several threads at
// once.
class COHORT_API ControlService {
 public:
  virtual ~ControlService() = default;
  virtual HandshakeReply handshake(const HandshakeRequest& request, const Caller& caller) = 0;
  // Returns all fields. Any client may ask: for one that does not name the job, the fields that are
  // only for such clients are cleared afterwards (TaskHealth::task, TaskError::origin and text). No
  // field holds the job or versions.
  virtual TaskHealth health() = 0;
  // Whether this is the job of this task; false for an empty one.
  virtual bool is_of_job(const std::string& /*job_id*/) const { return false; }
  // The resources of the caller's coordinator. Throws failed_precondition if the caller has not
  // completed a handshake, and replaced_error() if another coordinator has replaced its
  // coordinator.
  virtual std::shared_ptr<CoordinatorSession> session_of(const Caller& caller) = 0;
  // Throws like session_of().
  virtual void shutdown(const Caller& caller, std::chrono::milliseconds grace) = 0;
};

// Limits for connections without a handshake, for which a health call does not count. bytes_max and
// patience are per connection.
struct StrangerLimits {
  std::size_t bytes_max = 64 << 10;
  Duration patience = std::chrono::seconds(10);
  // A new connection above this limit closes the oldest one.
  std::size_t connections_max = 256;
};

struct ServeOptions {
  std::string address = {};    // of the control plane, and of the data plane without its own;
                               // port 0: the system chooses
  std::string data_address{};  // only of the backend "stream"
  std::vector<std::string> backends{};  // of the data plane: "stream", "grpc"
  AcceptHandler accept{};               // of their channels; must call Channel::admit()
  StrangerLimits limits{};
  std::shared_ptr<RefusalLog> refusals{};  // empty: its own
  // Whether it answers a request of HTTP/1.1 for /metrics, without a handshake, to everybody who
  // can reach the port: with all fields of ControlService::health().
  bool serves_metrics = false;
  // Asked now and then while serve_task() waits for the address of the own host's name; true ends
  // serve_task() with `cancelled`.
  std::function<bool()> should_stop{};
  // Called if a connection could not be served because threads could not be started.
  std::function<void(const Error&)> on_too_few_threads{};
};

// Serves a task. Thread-safe.
class COHORT_API ControlServer {
 public:
  // Also closes the channels of the data plane.
  virtual ~ControlServer() = default;
  // Contains the port that the system chose, if port 0 was requested.
  virtual const std::string& address() const = 0;
  // Refuses further control calls and waits for running ones until the deadline, then cancels them.
  // Channels stay open.
  virtual void stop(Deadline deadline) = 0;
  // The number of connections without a handshake.
  virtual std::size_t strangers() const = 0;
};
// Throws resource_exhausted if the port is in use, invalid_argument if the address is one of
// another machine. `service` must outlive the server.
COHORT_API std::unique_ptr<ControlServer> serve_task(ServeOptions options, ControlService& service);
// Serves the control plane only, and metrics if that is wanted (ServeOptions::serves_metrics).
COHORT_API std::unique_ptr<ControlServer> serve_control(const std::string& address,
                                                        ControlService& service,
                                                        bool serves_metrics = false);

// Calls a remote ControlService. Errors have the task as origin: peer_lost if it cannot be reached,
// data_loss with peer_lost if the connection breaks bytes. A request that arrives broken does not
// run and is sent again. A call whose answer arrives broken is sent again if it may run twice.
// Thread-safe.
class COHORT_API ControlClient {
 public:
  virtual ~ControlClient() = default;
  virtual HandshakeReply handshake(const HandshakeRequest& request, Deadline deadline) = 0;
  virtual TaskHealth health(Deadline deadline) = 0;
  virtual void set_membership(const Membership& membership, Deadline deadline) = 0;
  virtual void place_variables(const Placement& placement, Deadline deadline) = 0;
  virtual void register_function(const FunctionBody& body, Deadline deadline) = 0;
  virtual void create_variables(const std::vector<VariableSpec>& variables, Deadline deadline) = 0;
  virtual void create_iterator(const IteratorSpec& iterator, Deadline deadline) = 0;
  virtual void release(const std::vector<std::uint64_t>& resources, Deadline deadline) = 0;
  virtual void shutdown(std::chrono::milliseconds grace, Deadline deadline) = 0;
  // Cancels the calls that run and all later ones, also while they look up the address; they throw
  // `cancelled`, without an origin.
  virtual void cancel() noexcept = 0;
};
// Asks all at once. Returns when each has answered or the deadline has passed. Each result is the
// error; nullopt if the task answered or the client is null.
COHORT_API std::vector<std::optional<Error>> health_of_all(
    const std::vector<std::shared_ptr<ControlClient>>& clients, Deadline deadline);
// Does not connect yet. Throws invalid_argument if the address is not "host:port". Each connection
// looks up the host's addresses again, so it also finds a task that has returned with another one.
// The lookup ends by the deadline of the call. `task` names the peer in errors. Every call carries
// the coordinator's incarnation; without one the server answers only handshake() and health().
COHORT_API std::unique_ptr<ControlClient> control_client(
    const std::string& address, const std::string& task, std::uint64_t coordinator_incarnation = 0,
    const net::GetAddresses& get_addresses = &::getaddrinfo);

}  // namespace cohort::rpc
