// SPDX-License-Identifier: Apache-2.0
// The memory of one group that its members share: a group of processes, or one of its splits.
//
// All variables that several processes change are atomic and free of locks, so a process that is
// killed or stopped anywhere leaves nothing locked. Sizes that another process wrote are used for
// access only after a check.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "cohort/net/shared_file.h"

namespace cohort::collective::shared_memory {

// Up to this size a member's values lie in its turn: two cache lines are all that others read of
// a call of a few values.
inline constexpr std::int64_t kTurnBytesMax = 480;
// Up to this size they lie in a buffer that is filled before the call begins, so members wait for
// each other only once.
inline constexpr std::int64_t kBufferBytes = 8 << 10;
// Larger values go through a ring of slices, while others already use the slices before. Inputs and
// results of some slices fit in a second-level cache.
inline constexpr std::int64_t kSliceBytes = 64 << 10;
inline constexpr int kNumSlices = 4;

// One call of a member.
struct alignas(64) Turn {
  // The number of the call + 1 since the member has begun it; the other members read the rest only
  // then. kWithdrawn is added while it gives up.
  std::atomic<std::uint64_t> begun;
  std::uint64_t fingerprint;
  std::int64_t length;  // of exchange: bytes; of all_gather: the size along the axis
  std::uint64_t is_refused;
  std::byte payload[kTurnBytesMax];
};
inline constexpr std::uint64_t kWithdrawn = std::uint64_t{1} << 63U;

// Why no member makes further calls.
enum class Ending : std::uint32_t {
  none = 0,
  left = 1,    // a member was destroyed
  missed = 2,  // members did not begin or continue a call by its deadline
  died = 3,    // processes have ended
  failed = 4,  // a member could not continue a call, for lack of memory
};

struct MemberState {
  Turn turns[2];
  // How many slices of all calls until now the member has filled; of how many it has reduced its
  // share; and how many of the other members it needs no more.
  alignas(64) std::atomic<std::uint64_t> filled;
  alignas(64) std::atomic<std::uint64_t> reduced;
  alignas(64) std::atomic<std::uint64_t> consumed;
  // Why this member has ended the group; written once, before RoomState::ended names it.
  alignas(64) std::atomic<Ending> ending;
};

struct RoomState {
  // 0, or (the number of the first call that fails + 1) << 16 | the rank that wrote it.
  alignas(64) std::atomic<std::uint64_t> ended;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint8_t>::is_always_lock_free);

// A view of the memory, which it owns. Thread-safe, as far as the protocol in meeting.h goes.
class Room {
 public:
  Room() = default;
  Room(net::Mapping mapping, int size) : mapping_(std::move(mapping)), size_(size) {}

  static std::uint64_t bytes(int size) { return data_offset(size, size); }
  // The range that belongs to one member's values.
  static std::uint64_t data_offset(int size, int rank) {
    const std::uint64_t page = net::page_bytes();
    const std::uint64_t state = (state_bytes(size) + page - 1) / page * page;
    return state + static_cast<std::uint64_t>(rank) * kDataBytes;
  }
  static constexpr std::uint64_t kDataBytes = 2 * kBufferBytes + kNumSlices * kSliceBytes;

  int size() const { return size_; }
  std::atomic<std::uint64_t>& ended() const { return at<RoomState>(0)->ended; }
  MemberState& member(int rank) const { return at<MemberState>(sizeof(RoomState))[rank]; }
  Turn& turn(int rank, std::uint64_t call) const { return member(rank).turns[call % 2]; }
  // The rank for whose progress a member sleeps, + 1; 0 if it is awake.
  std::atomic<std::uint32_t>& sleeps_for(int rank) const {
    return at<std::atomic<std::uint32_t>>(sleepers_offset(size_))[rank];
  }
  // Whether `by` has ended the group because of `rank`.
  std::atomic<std::uint8_t>& blames(int by, int rank) const {
    return at<std::atomic<std::uint8_t>>(blames_offset(size_))[by * size_ + rank];
  }
  std::byte* buffer(int rank, std::uint64_t call) const {
    return data(rank) + static_cast<std::int64_t>(call % 2) * kBufferBytes;
  }
  std::byte* slice(int rank, std::uint64_t number) const {
    return data(rank) + 2 * kBufferBytes +
           static_cast<std::int64_t>(number % kNumSlices) * kSliceBytes;
  }

 private:
  static std::uint64_t sleepers_offset(int size) {
    return sizeof(RoomState) + static_cast<std::uint64_t>(size) * sizeof(MemberState);
  }
  static std::uint64_t blames_offset(int size) {
    return sleepers_offset(size) + static_cast<std::uint64_t>(size) * sizeof(std::uint32_t);
  }
  static std::uint64_t state_bytes(int size) {
    return blames_offset(size) +
           static_cast<std::uint64_t>(size) * static_cast<std::uint64_t>(size);
  }
  template <class T>
  T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(mapping_.data() + offset);
  }
  std::byte* data(int rank) const { return mapping_.data() + data_offset(size_, rank); }

  net::Mapping mapping_;
  int size_ = 0;
};

}  // namespace cohort::collective::shared_memory
