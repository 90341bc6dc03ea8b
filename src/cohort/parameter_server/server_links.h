// SPDX-License-Identifier: Apache-2.0
// The connections of a task to the parameter servers. Each is made at its first use, and again
// after a loss.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/membership.h"

namespace cohort::parameter_server {

// Thread-safe.
class COHORT_API ServerLinks {
 public:
  struct Options {
    std::string self;  // "worker:0"
    // Connects to the server. `patience`: how long to wait for one that neither answers nor
    // refuses; throws deadline_exceeded afterwards. Asks should_stop() between its attempts.
    std::function<rpc::Connection(const rpc::Member& server, Duration patience,
                                  const std::function<bool()>& should_stop)>
        connect;
    // How long each call may take. The first attempt to connect to a server may take as long.
    Duration data_timeout = std::chrono::minutes(5);
    // The patience with a server that was silent the last time, since calls would wait for it one
    // after the other.
    Duration patience_after_silence = std::chrono::seconds(1);
  };
  explicit ServerLinks(Options options);

  // Adds servers, and changes the addresses of others. Ignores an earlier epoch.
  void set(const rpc::Membership& membership);
  // The servers as they are known here, with the incarnations of those that were connected.
  rpc::Membership membership() const;
  // Connects if necessary. If it cannot, it throws with the origin "ps:i": unavailable if nobody
  // listens; deadline_exceeded if there is no answer; unavailable with handle_lost if the server
  // was started again, since it has lost its variables. Throws cancelled after close().
  rpc::Connection get(rpc::MemberId server);
  // Keeps a connection that was made elsewhere.
  void put(rpc::MemberId server, rpc::Connection connection);
  // The connection that was used last, which may be closed; its parts are null before the first.
  rpc::Connection last(rpc::MemberId server) const;
  // Their channels, in the order of the ids.
  std::vector<std::shared_ptr<rpc::Requester>> last_channels() const;
  // "ps:0"; for an id that is unknown here "server 7".
  std::string name_of(rpc::MemberId server) const;
  // To be called after a server gave no answer within data_timeout.
  void note_silence(rpc::MemberId server);
  void close() noexcept;
  Duration data_timeout() const { return options_.data_timeout; }
  // The number of connections that were found broken.
  std::uint64_t losses() const { return losses_; }

 private:
  struct Link {
    mutable Mutex connecting;  // held while a thread connects
    mutable Mutex mutex;
    rpc::Member server COHORT_GUARDED_BY(mutex);
    rpc::Connection connection COHORT_GUARDED_BY(mutex);
    bool is_lost COHORT_GUARDED_BY(mutex) = false;     // the loss of `connection` was counted
    bool was_silent COHORT_GUARDED_BY(mutex) = false;  // for the whole data_timeout
  };
  std::shared_ptr<Link> find(rpc::MemberId server) const;
  void expect_open(const std::string& server) const;
  rpc::Connection connect(Link& link, const rpc::Member& server) COHORT_REQUIRES(link.connecting);

  const Options options_;
  std::atomic<bool> is_closed_{false};
  std::atomic<std::uint64_t> losses_{0};
  mutable Mutex mutex_;
  std::uint64_t epoch_ COHORT_GUARDED_BY(mutex_) = 0;
  std::map<rpc::MemberId, std::shared_ptr<Link>> links_ COHORT_GUARDED_BY(mutex_);
};

// The error about a server that was started again, and so has lost its variables.
COHORT_API Error restarted_error(const std::string& server, std::uint64_t incarnation = 0);
// The error about a server that has not answered a call or an attempt to connect.
// `operation`: "push"; `expected`: "an acknowledgement".
COHORT_API Error late_error(const std::string& operation, const std::string& expected,
                            const std::string& server, Duration waited);

}  // namespace cohort::parameter_server
