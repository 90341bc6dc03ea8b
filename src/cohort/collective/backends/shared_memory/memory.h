// SPDX-License-Identifier: Apache-2.0
// The memory that the members of a group and of all its splits share: one file, in which each of
// these groups has a room, and a socket to each other member, which tells when its process has
// ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/collective/backends/shared_memory/room.h"
#include "cohort/collective/links.h"
#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/mutex.h"
#include "cohort/net/shared_file.h"

namespace cohort::collective::shared_memory {

// At most so many groups at a time. Only their room in the file is fixed, not their memory.
inline constexpr int kNumRooms = 256;

// A room that this member has joined.
struct JoinedRoom {
  Room room = {};
  int index = 0;
};

// One member's view. Thread-safe.
class Memory {
 public:
  explicit Memory(std::shared_ptr<Links> links) : links_(std::move(links)) {}
  Links& links() const { return *links_; }

  // Connects the members, once; the splits of a member may call it at the same time. After a
  // failure each call throws aborted.
  void open(Deadline deadline);
  bool is_open() const { return is_open_.load(std::memory_order_acquire); }

  // All of the rest only if it is open.

  // Finds or begins the room of a group.
  JoinedRoom join(const SplitPath& path, Deadline deadline);
  // The member uses the room no more. It is free when all have left.
  void leave(JoinedRoom joined) noexcept;
  // Says that this member will not join any room any more.
  void leave_all() noexcept;
  bool has_left(int rank) const;
  // Whether the connection to a member is broken, as it is when its process has ended.
  bool is_cut(int rank) const;

 private:
  struct Head;
  class Guard;  // of the list of rooms

  void connect(Deadline deadline);
  void create();
  void attach(Deadline deadline);
  [[noreturn]] void lose_first() const;
  net::SharedFile file_of_first(int descriptor, std::uint64_t bytes) const;
  std::uint64_t room_offset(int index) const;
  Head& head() const { return *reinterpret_cast<Head*>(head_.data()); }

  const std::shared_ptr<Links> links_;  // shared with the owner of the process's groups
  std::atomic<bool> is_open_ = false;
  Mutex mutex_;
  Condition changed_;
  bool is_opening_ COHORT_GUARDED_BY(mutex_) = false;
  std::optional<Error> failure_ COHORT_GUARDED_BY(mutex_);
  // Written while it opens.
  std::vector<FileDescriptor> sockets_ = {};
  net::SharedFile file_ = {};
  net::Mapping head_ = {};
};

}  // namespace cohort::collective::shared_memory
