// SPDX-License-Identifier: Apache-2.0
// A TCP forwarder between two tasks that breaks what passes as a test says: frames of the data
// plane (docs/formats/frame.md), or whatever comes where the bytes are no frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/core/mutex.h"

namespace cohort::testing {

struct Fault {
  enum class Kind : std::uint8_t {
    flip,    // one bit changes
    repeat,  // the frame, or a piece of it, comes twice
    lose,    // a piece of the frame, or all of it, never comes, and the connection goes on
    cut,     // the connection ends inside the frame or after it
    delay,   // the frame comes later
  };
  // A frame without such a part passes, and the next one meets the fault.
  enum class Part : std::uint8_t { any, header, metadata, table, payload };
  enum class Direction : std::uint8_t { to_server, to_client };

  Kind kind = Kind::flip;
  Direction direction = Direction::to_server;
  Part part = Part::any;
  std::uint64_t random = 0;  // chooses the place, the bit and the length
};
// "flip a bit of the metadata on its way to the server (7)": for a test's messages.
std::string to_string(const Fault& fault);

// Two threads a connection. Thread-safe.
class FaultyProxy {
 public:
  FaultyProxy();
  ~FaultyProxy();
  FaultyProxy(const FaultyProxy&) = delete;
  FaultyProxy& operator=(const FaultyProxy&) = delete;

  // On loopback; connections are accepted once there is a target.
  const std::string& address() const { return address_; }
  // "127.0.0.1:4711"; for the connections to come.
  void set_target(const std::string& target);
  // Happens once, to the next frame that it fits; not on a connection where a bit of a frame was
  // flipped already: its receiver may have gone, and would not see the fault.
  void arm(const Fault& fault);
  // Whether the last one armed has happened.
  bool has_happened() const;
  // It shall not happen any more.
  void disarm();

 private:
  struct Connection;
  struct Frame;
  enum class Fate : std::uint8_t { passes, ends };

  void accept_all();
  void serve(int client);
  void forward(Connection& connection, int from, int to, Fault::Direction direction);
  std::optional<Fault> take_fault(Connection& connection, const Frame& frame,
                                  Fault::Direction direction);
  Fate pass_on(Frame& frame, const Fault& fault, int to);

  int listener_ = -1;
  std::string address_;
  mutable Mutex mutex_;
  Condition changed_;
  bool is_ending_ COHORT_GUARDED_BY(mutex_) = false;
  std::string target_ COHORT_GUARDED_BY(mutex_);
  std::optional<Fault> fault_ COHORT_GUARDED_BY(mutex_);
  bool has_happened_ COHORT_GUARDED_BY(mutex_) = false;
  std::list<std::unique_ptr<Connection>> connections_ COHORT_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace cohort::testing
