// SPDX-License-Identifier: Apache-2.0
// Two-way connections that carry frames. A backend is one way to move them: inprocess, stream
// (TCP), grpc.
//
// The frames of a channel arrive complete and in the order in which they were sent. If one is lost,
// the channel closes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/net/host_proof.h"
#include "cohort/rpc/frames/frame.h"

namespace cohort::rpc {

// One end of a connection. Thread-safe.
class COHORT_API Channel {
 public:
  // Both run on the channel's own thread, never two at once; on_closed is the last call, and runs
  // exactly once (also after close()). They must not block for long, since they delay this channel
  // (no other).
  struct Handlers {
    std::function<void(Frame frame)> on_frame{};
    std::function<void(const Error& reason)>
        on_closed{};  // peer_lost, or cancelled after a close() here
  };
  // Closes, and waits until no handler runs (except when called from one).
  virtual ~Channel() = default;
  // Queues the frame and returns. Sends at once on the caller's thread if that does not block.
  // Throws unavailable if the channel is closed.
  virtual void send(Frame frame) = 0;
  // Drops what is still queued.
  virtual void close() noexcept = 0;
  // Bytes that are queued and not yet passed to the system; for back pressure.
  virtual std::size_t queued_bytes() const = 0;
  // A thread that waits for an answer may receive in place of the channel's thread, as a guest:
  // then only one thread is woken by the answer.
  struct Guest {
    // Takes a frame for which a thread waits. Other frames are left to the channel's thread, which
    // receives again then. Must not throw, or call the channel.
    std::function<bool(Frame& frame)> take{};
    std::function<bool()> is_done{};
  };
  // Receives until the guest is done, the deadline has passed, a frame is not taken (which leaves
  // the next ones, too), or the channel is closed. Returns false at once if there is another guest,
  // the channel's thread is just handling a frame, or the backend takes no guests. For milliseconds
  // after a guest the channel's thread waits for the next one: see resume().
  virtual bool receive_as_guest(const Guest&, Deadline) { return false; }
  // The channel's thread receives again at once, unless there is a guest. Call it when a frame is
  // expected for which no guest waits.
  virtual void resume() noexcept {}
  // How far the bytes of this end have come, to tell a slow connection from a dead one.
  struct Progress {
    std::uint64_t received = 0;   // grows whenever bytes arrive
    std::uint64_t delivered = 0;  // sent bytes that the peer's system has taken; of grpc, gRPC
    std::uint64_t underway = 0;   // sent bytes that it has not taken yet
  };
  virtual Progress progress() const = 0;
  // Lifts the limits for strangers, since the peer has completed its hello. Call it from a handler.
  virtual void admit() {}
  // "worker:1 (127.0.0.1:4711, stream)": for messages.
  virtual const std::string& peer() const = 0;
  // How this end sees both hosts. It proves nothing over gRPC, which does not tell the address of
  // this end.
  virtual net::HostProof host_proof() const = 0;
  // Whether the tensors sent from now on carry a checksum. Everything else of a frame always does,
  // and the receiver verifies every checksum that the sender included. Off at first; no effect on a
  // backend without a wire.
  virtual void set_payload_checksums(bool are_on) noexcept = 0;
};

// The number of broken frames received on all channels of this process. Each of them closed its
// channel.
COHORT_API std::uint64_t broken_frames() noexcept;

// Accepts connections until destroyed. The destructor also closes the accepted channels, and must
// not be called from a handler. Thread-safe.
class COHORT_API Listener {
 public:
  virtual ~Listener() = default;
  // The address for connect(): "127.0.0.1:4711" with the chosen port, or a name (inprocess).
  virtual const std::string& address() const = 0;
};

// Called on a listener thread for each new connection; returns the handlers of its channel. The
// channel closes when its last owner releases it, so keep it, for example in the handlers, which
// are released after on_closed.
using AcceptHandler = std::function<Channel::Handlers(std::shared_ptr<Channel> channel)>;

inline constexpr std::size_t kFrameBytesMax = std::size_t{1} << 40;

// Listens to this process alone. An empty address gets a new name, "name:0" a number. Throws
// resource_exhausted for a taken name. Other ways in are ControlServer's.
COHORT_API std::unique_ptr<Listener> listen_inprocess(std::string address, AcceptHandler accept);

struct ConnectOptions {
  std::string address{};
  std::string peer{};  // for messages: "ps:0"
  Deadline deadline{};
};

// One way to move frames.
struct Backend {
  std::string_view name;
  // Throws unavailable (peer_lost) if nobody listens, deadline_exceeded if nobody answers; both
  // errors name the peer and its address. Thread-safe.
  std::shared_ptr<Channel> (*connect)(const ConnectOptions& options, Channel::Handlers handlers);
};

// `name` is "inprocess", "stream" or "grpc"; throws unimplemented for another one, with the list of
// known names.
COHORT_API const Backend& backend_of(std::string_view name);
COHORT_API std::vector<std::string> backend_names();

}  // namespace cohort::rpc
