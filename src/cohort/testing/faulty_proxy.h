// SPDX-License-Identifier: Apache-2.0
// A TCP proxy between two tasks that injects faults into frames of the data plane
// (docs/formats/frame.md), or into pieces of the stream if the bytes are no frames.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"

namespace cohort::testing {

struct Fault {
  enum class Kind : std::uint8_t {
    flip,     // changes one bit
    repeat,   // sends the frame, or a piece of it, twice
    lose,     // drops the frame, or a piece of it; the connection stays open
    cut,      // closes the connection inside the frame or after it
    delay,    // sends the frame after `late`
    swallow,  // drops the frame and all later bytes of this direction; the connection stays open
  };
  // The fault applies to the next frame that has this part; `piece`: to the next piece of a stream
  // that has no frames, such as control calls.
  enum class Part : std::uint8_t { any, header, metadata, table, payload, piece };
  enum class Direction : std::uint8_t { to_server, to_client };

  Kind kind = Kind::flip;
  Direction direction = Direction::to_server;
  Part part = Part::any;
  std::uint64_t random = 0;  // determines the position, the bit and the length
  Duration late = std::chrono::milliseconds(50);
};
// "flip a bit of the metadata on its way to the server (7)"; for messages of tests.
std::string to_string(const Fault& fault);

// Runs two threads per connection. Thread-safe.
class FaultyProxy {
 public:
  FaultyProxy();
  ~FaultyProxy();
  FaultyProxy(const FaultyProxy&) = delete;
  FaultyProxy& operator=(const FaultyProxy&) = delete;

  // The proxy's address on loopback; it serves connections once there is a target.
  const std::string& address() const { return address_; }
  // Sets the target of future connections, such as "127.0.0.1:4711".
  void set_target(const std::string& target);
  // Injects the fault once, into the next frame that has the part. Skips connections on which a bit
  // of a frame was already flipped: their receiver may have closed them and would not see the
  // fault.
  void arm(const Fault& fault);
  // Whether the last armed fault was injected.
  bool has_happened() const;
  // Removes the armed fault.
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
