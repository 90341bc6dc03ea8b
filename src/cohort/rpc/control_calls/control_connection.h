// SPDX-License-Identifier: Apache-2.0
// The gRPC connection of a control client to its task, which is made again after it was lost.
#pragma once

#include <grpcpp/channel.h>

#include <atomic>
#include <memory>
#include <string>

#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"
#include "cohort/net/host_port.h"
#include "cohort/net/name_lookup.h"
#include "control.grpc.pb.h"

namespace cohort::rpc::internal {

// Thread-safe.
class ControlConnection {
 public:
  struct Connection {
    Connection(const net::HostPort& where, const addrinfo& addresses);
    // gRPC would repeat a failure until its backoff is over, and connect to the same addresses
    // again, which a restarted task may no longer have.
    bool is_lost() const;

    std::shared_ptr<grpc::Channel> channel;
    proto::CheckedControl::Stub stub;
    std::atomic<bool> has_served{false};  // a call over it has succeeded
  };

  ControlConnection(const std::string& address, const std::string& task,
                    net::GetAddresses get_addresses);

  // Returns null if there is no connection now.
  std::shared_ptr<Connection> open();
  // Makes a new connection if there is none, to the addresses that the host has now. Returns null
  // after cancel(). Throws unresolved_error().
  std::shared_ptr<Connection> get(Deadline deadline);
  // Returns whether get() would wait for the lookup of the name, which this starts if needed.
  bool waits_for_name();
  // Forgets a connection that has ended, which gRPC may not have noticed yet.
  void leave(const std::shared_ptr<Connection>& ended);
  // Ends get() on all threads.
  void cancel() noexcept;

 private:
  // Forgets the connection if it is lost.
  bool has_connection() COHORT_REQUIRES(mutex_);
  // Returns the lookup that is under way, or starts one.
  std::shared_ptr<net::Lookup> lookup() COHORT_REQUIRES(mutex_);

  const std::string address_;
  const std::string task_;
  const net::HostPort where_;
  const net::GetAddresses get_addresses_;
  std::atomic<bool> is_cancelled_{false};
  Mutex mutex_;
  std::shared_ptr<Connection> connection_
      COHORT_GUARDED_BY(mutex_);  // shared with the calls that use it; null: none yet, or lost
  std::shared_ptr<net::Lookup> lookup_ COHORT_GUARDED_BY(mutex_);  // null: none runs
};

}  // namespace cohort::rpc::internal
