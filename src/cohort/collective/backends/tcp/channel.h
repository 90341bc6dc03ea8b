// SPDX-License-Identifier: Apache-2.0
// The frames of a call go through these channels: one to each other member, of sockets or of
// another carrier (backends/mpi).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/collective/backends/tcp/frame.h"
#include "cohort/collective/links.h"
#include "cohort/core/clock.h"
#include "cohort/core/spin.h"

namespace cohort::collective::tcp {

// Values up to this size can travel with the offer of a call.
inline constexpr std::int64_t kInlineBytesMax = 64 << 10;
// A segment stays in the second-level cache between its checksum and its copy.
inline constexpr std::int64_t kSegmentBytesMax = 256 << 10;

struct Frame {
  FrameHeader header = {};
  Pieces payload = {};
};

enum class Acceptance : std::uint8_t { take, hold, refuse };

class Transfer;  // the frames that one call sends and receives

// Between this member and another one. Nothing blocks. Thread-compatible.
class Channel {
 public:
  virtual ~Channel() = default;
  // Both return whether bytes moved. send() returns after a frame at the latest, receive() after
  // one system call.
  virtual bool send(Transfer& transfer) = 0;
  virtual bool receive(Transfer& transfer) = 0;
  // Reads the farewell of the other member, if it is there.
  virtual void look_for_farewell(int size) = 0;
  // Sends this member's farewell and closes the channel.
  virtual void close_with(const Farewell& farewell) noexcept = 0;

  // Whether a frame is on its way, and its memory must not change.
  virtual bool is_sending() const = 0;
  // The other member sends no more frames.
  virtual bool has_ended() const = 0;
  virtual bool has_farewell_ended() const = 0;
  // The fault in the bytes of the other member; empty if nothing.
  const std::string& fault() const { return fault_; }
  const std::optional<Farewell>& farewell() const { return farewell_; }

 protected:
  std::string fault_ = {};
  std::optional<Farewell> farewell_ = {};
};

// In the order of ranks; nullptr for this member itself.
using Channels = std::vector<std::unique_ptr<Channel>>;

// Makes the channels of a group and of its splits. Thread-safe.
class Carrier {
 public:
  // `num_here`: the members on this host, with this one.
  explicit Carrier(int num_here) : spin_(has_core_each(num_here) ? kSpin : Duration(0)) {}
  virtual ~Carrier() = default;
  // The channels of the group of this path. Throws the errors of Links::open().
  virtual Channels connect(const SplitPath& path, Deadline deadline) = 0;
  // How long a member that waits looks again and again before it sleeps.
  Duration time_to_spin() const { return spin_; }
  // Sleeps until something may have come, at most until `until`. Nothing has moved since
  // `idle_since`.
  virtual void sleep(const Channels& channels, TimePoint idle_since, TimePoint until) = 0;
  // Sleeps until a member may have said farewell, at most until `until`.
  virtual void sleep_for_farewell(const Channels& channels, TimePoint until) {
    sleep(channels, Clock::system().now(), until);
  }
  // Tells the others that this member leaves the group of this path, which it has not connected;
  // unless they notice it anyway, as by sockets.
  virtual void leave(const SplitPath& /*path*/) noexcept {}

 private:
  // If the member for which this one waits has to run on the same core, each spin is lost: on a
  // busy machine spins of 100 us made small calls five times slower than these.
  static constexpr Duration kSpin = std::chrono::microseconds(20);

  const Duration spin_;
};

}  // namespace cohort::collective::tcp
