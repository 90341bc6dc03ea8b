// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/shared_memory/memory.h"
#include "cohort/core/random.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <utility>

namespace cohort::collective::shared_memory {
namespace {

constexpr const char* kOtherwise = "choose GroupBackend::tcp";
constexpr std::uint64_t kMagic = 0x316d68732d686f63;  // another version has another one

// How to find the file, from rank 0 to all others; processes of one host have one byte order.
struct Invitation {
  std::uint64_t magic = 0;
  std::uint64_t token = 0;
  std::uint64_t bytes = 0;
  std::int64_t descriptor = 0;
};

// The key of a split; not 0.
std::uint64_t key_of(const SplitPath& path) {
  std::uint64_t hash = 0;
  for (const std::uint64_t number : path) hash = mix_seed(hash, number);
  return hash | 1U;
}

}  // namespace

struct Memory::Head {
  struct Entry {
    std::uint64_t key;  // of the group whose room it is; 0: free
    std::int64_t num_left;
  };
  std::atomic<std::uint64_t> token;
  // The rank that reads or changes the entries, + 1. A process that is killed in between keeps it;
  // the others find out as for any wait, and no group of these members can go on anyway.
  alignas(64) std::atomic<std::uint32_t> user;
  Entry entries[kNumRooms];
  std::atomic<std::uint8_t> has_left[];
};

class Memory::Guard {
 public:
  Guard(const Memory& memory, Deadline deadline) : memory_(memory) {
    const auto mine = static_cast<std::uint32_t>(memory.links().rank()) + 1;
    for (int tries = 1;; ++tries) {
      std::uint32_t user = 0;
      if (memory.head().user.compare_exchange_strong(user, mine, std::memory_order_acquire)) return;
      std::this_thread::yield();
      if (tries % 100 != 0 || user == mine) continue;
      const int other = std::min(static_cast<int>(user), memory.links().size()) - 1;
      const std::string& name = memory.links().member_name(other);
      if (memory.is_cut(other))
        throw Error(ErrorCode::unavailable,
                    "[collective.split] expected " + name +
                        " to make room for a group, got the end of its process; begin a new "
                        "group on all workers",
                    ErrorCause::peer_lost)
            .at(name);
      if (deadline.has_expired())
        throw Error(ErrorCode::deadline_exceeded, "[collective.split] expected " + name +
                                                      " to make room for a group in time, got "
                                                      "nothing; look what stops its process")
            .at(name);
    }
  }
  ~Guard() { memory_.head().user.store(0, std::memory_order_release); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  const Memory& memory_;
};

void Memory::open(Deadline deadline) {
  if (is_open()) return;
  {
    const Lock lock(mutex_);
    const bool is_free =
        changed_.wait(mutex_, deadline, [&]() COHORT_REQUIRES(mutex_) { return !is_opening_; });
    COHORT_CHECK(
        is_free, ErrorCode::deadline_exceeded,
        "[collective.open] expected all workers to connect in time, got nothing from some; "
        "another call of this worker waits for them");
    if (is_open()) return;
    if (failure_)
      throw Error(ErrorCode::aborted,
                  "[collective.open] expected to connect all workers, got the failure of an "
                  "earlier try: " +
                      failure_->message() + "; begin a new group on all")
          .at(failure_->origin());
    is_opening_ = true;
  }
  std::optional<Error> failure;
  try {
    connect(deadline);
    is_open_.store(true, std::memory_order_release);
  } catch (...) {
    failure = current_error();
    sockets_.clear();  // tells the others
  }
  {
    const Lock lock(mutex_);
    is_opening_ = false;
    failure_ = failure;
  }
  changed_.notify_all();
  if (failure) throw std::move(*failure);
}

void Memory::connect(Deadline deadline) {
  const int size = links_->size();
  for (int rank = 0; rank < size; ++rank)
    COHORT_CHECK(links_->host(rank) == links_->host(0), ErrorCode::invalid_argument,
                 "[collective.shared_memory] expected all workers on one host, got ",
                 links_->member_name(0), " on ", links_->host(0), " and ",
                 links_->member_name(rank), " on ", links_->host(rank), "; ", kOtherwise);
  COHORT_CHECK(size < (1 << 16), ErrorCode::invalid_argument,
               "[collective.shared_memory] expected less than 65536 workers, got ", size, "; ",
               kOtherwise);
  sockets_ = links_->open({}, 1, deadline);
  links_->rank() == 0 ? create() : attach(deadline);
}

std::uint64_t Memory::room_offset(int index) const {
  const std::uint64_t head = sizeof(Head) + static_cast<std::uint64_t>(links_->size());
  const std::uint64_t page = net::page_bytes();
  const std::uint64_t rounded = (head + page - 1) / page * page;
  return rounded + static_cast<std::uint64_t>(index) * Room::bytes(links_->size());
}

void Memory::create() {
  const Invitation invitation{
      .magic = kMagic, .token = draw_number(), .bytes = room_offset(kNumRooms)};
  file_ = net::SharedFile::create(invitation.bytes, kOtherwise);
  file_.reserve(0, room_offset(0));
  head_ = file_.map(0, room_offset(0));
  head().token.store(invitation.token, std::memory_order_seq_cst);
  Invitation sent = invitation;
  sent.descriptor = file_.descriptor();
  for (int rank = 1; rank < links_->size(); ++rank) {
    // It fits into the buffer of a new connection. Who does not get it has gone, as waits find out.
    (void)::send(sockets_[static_cast<std::size_t>(rank)].get(), &sent, sizeof(sent),
                 MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

// Throws, naming the first member, whose connection has ended.
void Memory::lose_first() const {
  const std::string& name = links_->member_name(0);
  links_->missed(0, "its connection broke");
  throw Error(ErrorCode::unavailable,
              "[collective.open] expected " + name +
                  " to share memory, got the end of its connection; begin a new group on all "
                  "workers",
              ErrorCause::peer_lost)
      .at(name);
}

// The file of the first member. It may have ended after its invitation: then its connection ends
// too, a moment later at most.
net::SharedFile Memory::file_of_first(int descriptor, std::uint64_t bytes) const {
  constexpr int kMoment = 1000;  // milliseconds
  try {
    return net::SharedFile::open(links_->process(0), descriptor, bytes, kOtherwise);
  } catch (const Error&) {
    pollfd ended{.fd = sockets_[0].get(), .events = POLLRDHUP, .revents = 0};
    if (::poll(&ended, 1, kMoment) > 0) lose_first();
    throw;
  }
}

void Memory::attach(Deadline deadline) {
  Invitation invitation;
  const std::span bytes = std::as_writable_bytes(std::span(&invitation, 1));
  const std::string& name = links_->member_name(0);
  std::size_t received = 0;
  while (received < bytes.size()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::min<Duration>(deadline.remaining(), std::chrono::seconds(1)));
    pollfd waited{.fd = sockets_[0].get(), .events = POLLIN, .revents = 0};
    (void)::poll(&waited, 1, static_cast<int>(left.count()));
    const ssize_t got =
        ::recv(sockets_[0].get(), bytes.data() + received, bytes.size() - received, MSG_DONTWAIT);
    if (got > 0) {
      received += static_cast<std::size_t>(got);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      lose_first();
    } else if (deadline.has_expired()) {
      links_->missed(0, "it did not share memory in time");
      throw Error(ErrorCode::deadline_exceeded, "[collective.open] expected " + name +
                                                    " to share memory in time, got nothing; look "
                                                    "what stops its process")
          .at(name);
    }
  }
  COHORT_CHECK(invitation.magic == kMagic && invitation.bytes == room_offset(kNumRooms),
               ErrorCode::failed_precondition, "[collective.open] expected ", name,
               " to share memory as this process does, got another version's; run one version "
               "on all workers");
  file_ = file_of_first(static_cast<int>(invitation.descriptor), invitation.bytes);
  head_ = file_.map(0, room_offset(0));
  COHORT_CHECK(head().token.load(std::memory_order_seq_cst) == invitation.token,
               ErrorCode::failed_precondition, "[collective.shared_memory] expected the memory of ",
               name,
               ", got that of another group; run all workers of a host where they see each "
               "other's processes, or ",
               kOtherwise);
}

JoinedRoom Memory::join(const SplitPath& path, Deadline deadline) {
  const std::uint64_t key = key_of(path);
  int found = -1;
  {
    const Guard guard(*this, deadline);
    for (int i = 0; i < kNumRooms; ++i) {
      const std::uint64_t other = head().entries[i].key;
      if (other == key || (other == 0 && found < 0)) found = i;
      if (other == key) break;
    }
    COHORT_CHECK(found >= 0, ErrorCode::resource_exhausted, "[collective.split] expected at most ",
                 kNumRooms, " groups of these workers at a time, got one more; destroy some");
    head().entries[found].key = key;
  }
  const int size = links_->size();
  const std::uint64_t offset = room_offset(found);
  file_.reserve(offset, Room::data_offset(size, 0));
  file_.reserve(offset + Room::data_offset(size, links_->rank()), Room::kDataBytes);
  return {.room = Room(file_.map(offset, Room::bytes(size)), size), .index = found};
}

void Memory::leave(JoinedRoom joined) noexcept {
  joined.room = Room();  // nobody may access it when it is free
  try {
    const Guard guard(*this, Deadline::after(std::chrono::seconds(1)));
    Head::Entry& entry = head().entries[joined.index];
    entry.num_left += 1;
    if (entry.num_left < links_->size()) return;
    file_.clear(room_offset(joined.index), Room::bytes(links_->size()));
    entry = {};
  } catch (...) {
    // The others have ended, and the file ends with the last member.
  }
}

void Memory::leave_all() noexcept {
  head().has_left[links_->rank()].store(1, std::memory_order_seq_cst);
}

bool Memory::has_left(int rank) const {
  return head().has_left[rank].load(std::memory_order_seq_cst) != 0;
}

bool Memory::is_cut(int rank) const {
  if (rank == links_->rank()) return false;
  std::byte byte{};
  const ssize_t got =
      ::recv(sockets_[static_cast<std::size_t>(rank)].get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace cohort::collective::shared_memory
