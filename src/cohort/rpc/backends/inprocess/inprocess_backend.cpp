// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/backends/inprocess/inprocess_backend.h"

#include <atomic>
#include <deque>
#include <map>
#include <utility>

#include "cohort/rpc/frames/channel_end.h"
#include "cohort/rpc/frames/connected_channel.h"
#include "cohort/rpc/frames/frame_codec.h"

namespace cohort::rpc::backends {
namespace {

using internal::PeerName;

// One end: an inbox and the body of the thread that empties it. Owned by the channel's handle and
// its thread; the other end refers to it weakly. Thread-safe, but for run().
class End {
 public:
  explicit End(PeerName peer) : end_(std::move(peer)) {}

  internal::ChannelEnd& end() { return end_; }
  // Call it before anything is sent.
  void join(const std::shared_ptr<End>& other) { other_ = other; }

  void send(Frame frame) {
    end_.check_open();
    internal::prepare_tensors(frame.tensors);
    // The peer gets copies, as over a wire, since the sender may change its tensors after this.
    frame.tensors = internal::copy_tensors(frame.tensors);
    const std::shared_ptr<End> other = other_.lock();
    if (other == nullptr || !other->put(std::move(frame))) {
      throw internal::lost_error(end_.name(), "it closed the connection");
    }
  }

  void close() noexcept {
    if (!end_.set_closed(end_.cancelled())) return;
    wake();
    if (const std::shared_ptr<End> other = other_.lock()) other->peer_closed();
  }

  // Zero after the close, since nothing more will be sent.
  std::size_t queued_bytes() const {
    if (end_.is_closed()) return 0;
    const std::shared_ptr<End> other = other_.lock();
    return other == nullptr ? 0 : other->inbox_bytes_.load(std::memory_order_relaxed);
  }

  Channel::Progress progress() const {
    const std::shared_ptr<End> other = other_.lock();
    return {.received = taken_bytes_.load(std::memory_order_relaxed),
            .delivered = other ? other->taken_bytes_.load(std::memory_order_relaxed) : 0,
            .underway = queued_bytes()};
  }

  net::HostProof host_proof() const { return {.host = 1}; }  // as the other end
  // There is no wire.
  void set_payload_checksums(bool) noexcept {}
  void set_frame_bytes_max(std::size_t) {}

  void run() noexcept {
    end_.enter_thread();
    while (std::optional<Frame> frame = next()) end_.deliver(std::move(*frame));
    end_.set_closed(internal::lost_error(end_.name(), "it closed the connection"));
    if (const std::shared_ptr<End> other = other_.lock()) other->peer_closed();
    {
      Lock lock(mutex_);
      inbox_.clear();
      inbox_bytes_.store(0, std::memory_order_relaxed);
    }
    end_.finish();
  }

 private:
  bool put(Frame frame) {
    Lock lock(mutex_);
    if (end_.is_closed() || is_peer_closed_) return false;
    inbox_bytes_.fetch_add(bytes_of(frame), std::memory_order_relaxed);
    inbox_.push_back(std::move(frame));
    changed_.notify_one();
    return true;
  }

  // Returns nullopt after a close here, or after the peer has closed and all its frames were taken.
  std::optional<Frame> next() {
    Lock lock(mutex_);
    changed_.wait(mutex_, Deadline(), [this]() COHORT_REQUIRES(mutex_) {
      return !inbox_.empty() || is_peer_closed_ || end_.is_closed();
    });
    if (end_.is_closed() || inbox_.empty()) return std::nullopt;
    Frame frame = std::move(inbox_.front());
    inbox_.pop_front();
    taken_bytes_.fetch_add(bytes_of(frame), std::memory_order_relaxed);
    inbox_bytes_.fetch_sub(bytes_of(frame), std::memory_order_relaxed);
    return frame;
  }

  void peer_closed() noexcept {
    Lock lock(mutex_);
    is_peer_closed_ = true;
    changed_.notify_one();
  }

  void wake() noexcept {
    Lock lock(mutex_);
    changed_.notify_one();
  }

  static std::size_t bytes_of(const Frame& frame) {
    std::size_t bytes = internal::kHeaderBytes + frame.metadata.size();
    for (const at::Tensor& tensor : frame.tensors) bytes += tensor.nbytes();
    return bytes;
  }

  internal::ChannelEnd end_;
  std::weak_ptr<End> other_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Frame> inbox_ COHORT_GUARDED_BY(mutex_);
  bool is_peer_closed_ COHORT_GUARDED_BY(mutex_) = false;
  std::atomic<std::size_t> inbox_bytes_{0};
  std::atomic<std::uint64_t> taken_bytes_{0};
};

using InprocessChannel = internal::ConnectedChannel<End>;

// A name with a listener. Thread-safe.
class Port {
 public:
  explicit Port(AcceptHandler accept) : accept_(std::move(accept)) {}

  // Runs on the caller's thread, one call at a time; false if the listener is destroyed or the
  // handler refuses.
  bool offer(const std::shared_ptr<InprocessChannel>& channel) {
    Lock lock(mutex_);
    if (!is_open_) return false;
    accepted_.add(channel);
    auto handlers = internal::ask_acceptor(accept_, channel);
    if (handlers) channel->start(std::move(*handlers));
    return handlers.has_value();
  }

  void close() {
    Lock lock(mutex_);
    is_open_ = false;
    accepted_.close_all();
  }

 private:
  const AcceptHandler accept_;
  Mutex mutex_;
  bool is_open_ COHORT_GUARDED_BY(mutex_) = true;
  internal::AcceptedChannels accepted_;
};

// The names of this process. Thread-safe.
class Ports {
 public:
  std::string open(std::string address, std::shared_ptr<Port> port) {
    Lock lock(mutex_);
    const bool is_any = address.empty() || address.ends_with(":0");
    if (is_any) {
      if (!address.empty()) address.resize(address.size() - 2);
      address = (address.empty() ? "inprocess" : address) + ":" + std::to_string(++last_);
    }
    const bool is_new = ports_.emplace(address, std::move(port)).second;
    COHORT_CHECK(is_new, ErrorCode::resource_exhausted,
                 "[rpc.listen] expected a free address, got ", address,
                 ", which is taken; choose another");
    return address;
  }

  void remove(const std::string& address) {
    Lock lock(mutex_);
    ports_.erase(address);
  }

  std::shared_ptr<Port> find(const std::string& address) {
    Lock lock(mutex_);
    const auto it = ports_.find(address);
    return it == ports_.end() ? nullptr : it->second;
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Port>> ports_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t last_ COHORT_GUARDED_BY(mutex_) = 0;
};

Ports& ports() {
  static Ports& ports = *new Ports;
  return ports;
}

// Thread-safe.
class InprocessListener final : public Listener {
 public:
  InprocessListener(std::string address, AcceptHandler accept)
      : port_(std::make_shared<Port>(std::move(accept))),
        address_(ports().open(std::move(address), port_)) {}

  ~InprocessListener() override {
    ports().remove(address_);
    port_->close();
  }

  const std::string& address() const override { return address_; }

 private:
  const std::shared_ptr<Port> port_;
  const std::string address_;
};

}  // namespace

std::shared_ptr<Channel> connect_inprocess(const ConnectOptions& options,
                                           Channel::Handlers handlers) {
  static std::atomic<std::uint64_t> last{0};
  const PeerName peer{options.peer, options.address, "inprocess"};
  const std::shared_ptr<Port> port = ports().find(options.address);
  if (port == nullptr) throw internal::refused_error(peer, "nobody listens there in this process");
  auto near = std::make_shared<End>(peer);
  auto far = std::make_shared<End>(
      PeerName{"", options.address + "#" + std::to_string(++last), "inprocess"});
  near->join(far);
  far->join(near);
  auto channel = std::make_shared<InprocessChannel>(near);
  if (!port->offer(std::make_shared<InprocessChannel>(far))) {
    throw internal::refused_error(peer, "it does not accept");
  }
  channel->start(std::move(handlers));
  return channel;
}

}  // namespace cohort::rpc::backends

namespace cohort::rpc {

std::unique_ptr<Listener> listen_inprocess(std::string address, AcceptHandler accept) {
  return std::make_unique<backends::InprocessListener>(std::move(address), std::move(accept));
}

}  // namespace cohort::rpc
