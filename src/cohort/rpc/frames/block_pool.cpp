// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/frames/block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "cohort/core/address_room.h"
#include "cohort/core/error.h"
#include "cohort/core/kept_memory.h"
#include "cohort/core/mutex.h"

namespace cohort::rpc::internal {
namespace {

constexpr std::size_t kIdleBlocksMax = 256;

std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

// Eight sizes between two powers of two, so that frames of nearly the same size share blocks.
std::size_t capacity_for(std::size_t bytes) {
  if (bytes < kPooledBytesMin) return bytes;
  return round_up(bytes, std::bit_floor(bytes) / 8);
}

// Large blocks come from the system and not from malloc, which would keep them (kept_memory.h).
void* map_huge(std::size_t size) {
  void* const mapped = mmap(nullptr, size + kHugePageBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::size_t address = reinterpret_cast<std::uintptr_t>(begin);
  const std::size_t before = round_up(address, kHugePageBytes) - address;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + size, kHugePageBytes - before);
  use_huge_pages(begin + before, size);
  return begin + before;
}

bool is_huge(std::size_t bytes) { return bytes >= kHugeBytesMin; }

void* allocate(std::size_t bytes) {
  if (is_huge(bytes)) return map_huge(round_up(bytes, kHugePageBytes));
  return std::aligned_alloc(Block::kAlignment, round_up(bytes, Block::kAlignment));
}

void deallocate(void* memory, std::size_t bytes) noexcept {
  if (is_huge(bytes)) {
    munmap(memory, round_up(bytes, kHugePageBytes));
  } else {
    std::free(memory);
  }
}

constexpr TimePoint kNever = TimePoint::max();

}  // namespace

// The blocks of this process. Never destroyed, since tensors may outlive everything else.
// Thread-safe.
class BlockPool {
 public:
  static BlockPool& instance() {
    static BlockPool& pool = *new BlockPool;
    return pool;
  }

  Block* acquire(std::size_t bytes) {
    if (bytes >= kPooledBytesMin) {
      if (Block* block = take_idle(bytes)) return block;
    }
    constexpr std::size_t kBytesMax = std::numeric_limits<std::size_t>::max() / 4;
    void* memory = nullptr;
    if (bytes < kBytesMax) memory = allocate(Block::kAlignment + capacity_for(bytes));
    COHORT_CHECK(memory != nullptr, ErrorCode::resource_exhausted,
                 "[rpc.receive] expected memory for a frame of ", bytes,
                 " bytes, got none; give this task more memory, or use more parameter servers, so "
                 "that each has fewer variables");
    if (bytes >= kPooledBytesMin) large_blocks_.fetch_add(1, std::memory_order_relaxed);
    return new (memory) Block(capacity_for(bytes));
  }

  void give_back(Block* block) noexcept {
    if (block->capacity() < kPooledBytesMin || block->capacity() > idle_bytes_max_) {
      return destroy(block);
    }
    block->owners_.store(1, std::memory_order_relaxed);
    const TimePoint now = Clock::system().now();
    Lock lock(mutex_);
    if (users_ == 0) return destroy(block);
    while (idle_bytes_ + block->capacity() > idle_bytes_max_ || idle_.size() >= kIdleBlocksMax) {
      destroy(remove(idle_.begin()));  // the one that has been idle longest
    }
    idle_.push_back({block, now});
    idle_bytes_ += block->capacity();
    if (next_check_.load(std::memory_order_relaxed) == kNever)
      next_check_.store(now + kUnusedBlockTime, std::memory_order_relaxed);
  }

  void add_user() {
    Lock lock(mutex_);
    ++users_;
  }
  void remove_user() {
    Lock lock(mutex_);
    if (--users_ == 0) free_older_than(kNever);
  }

  // A block that is used now may become idle while all connections sleep.
  Deadline free_unused(TimePoint now) {
    if (large_blocks_.load(std::memory_order_relaxed) == 0) return {};
    const TimePoint next = next_check_.load(std::memory_order_relaxed);
    if (next == kNever) return Deadline(now + kUnusedBlockTime);
    if (now < next) return Deadline(next);
    Lock lock(mutex_);
    free_older_than(now - kUnusedBlockTime);
    return Deadline(std::min(next_check_.load(std::memory_order_relaxed), now + kUnusedBlockTime));
  }

  std::size_t idle_bytes() {
    Lock lock(mutex_);
    return idle_bytes_;
  }
  std::size_t idle_bytes_max() const { return idle_bytes_max_; }

 private:
  BlockPool() {
    idle_.reserve(kIdleBlocksMax);  // so that give_back() cannot throw
    idle_bytes_max_ = std::min(std::size_t{1} << 30, host_memory_bytes() / 16);
  }

  // The smallest that fits and of which at least half is used.
  Block* take_idle(std::size_t bytes) {
    Lock lock(mutex_);
    auto best = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      const std::size_t capacity = it->block->capacity();
      if (capacity < bytes || capacity / 2 > bytes) continue;
      if (best == idle_.end() || capacity <= best->block->capacity()) best = it;
    }
    return best == idle_.end() ? nullptr : remove(best);
  }

  struct Idle {
    Block* block;
    TimePoint since;
  };

  // They are in the order of their return.
  void free_older_than(TimePoint time) COHORT_REQUIRES(mutex_) {
    while (!idle_.empty() && idle_.front().since <= time) destroy(remove(idle_.begin()));
    next_check_.store(idle_.empty() ? kNever : idle_.front().since + kUnusedBlockTime,
                      std::memory_order_relaxed);
  }

  Block* remove(std::vector<Idle>::iterator position) COHORT_REQUIRES(mutex_) {
    Block* block = position->block;
    idle_.erase(position);
    idle_bytes_ -= block->capacity();
    return block;
  }

  void destroy(Block* block) noexcept {
    const std::size_t bytes = Block::kAlignment + block->capacity();
    if (block->capacity() >= kPooledBytesMin) large_blocks_.fetch_sub(1, std::memory_order_relaxed);
    block->~Block();
    deallocate(block, bytes);
  }

  Mutex mutex_;
  std::vector<Idle> idle_ COHORT_GUARDED_BY(mutex_);  // in the order of their return
  std::size_t users_ COHORT_GUARDED_BY(mutex_) = 0;
  // Not later than when the block that has been idle longest must be freed; kNever: none is idle.
  std::atomic<TimePoint> next_check_{kNever};
  std::atomic<std::size_t> large_blocks_{0};  // that exist, idle or not
  std::size_t idle_bytes_ COHORT_GUARDED_BY(mutex_) = 0;
  std::size_t idle_bytes_max_ = 0;
};

void Block::release() noexcept {
  if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) BlockPool::instance().give_back(this);
}

BlockRef acquire_block(std::size_t bytes) { return BlockRef(BlockPool::instance().acquire(bytes)); }
std::size_t idle_block_bytes() { return BlockPool::instance().idle_bytes(); }
std::size_t idle_block_bytes_max() { return BlockPool::instance().idle_bytes_max(); }

BlockUser::BlockUser() noexcept { BlockPool::instance().add_user(); }
BlockUser::~BlockUser() { BlockPool::instance().remove_user(); }
Deadline free_unused_blocks(TimePoint now) { return BlockPool::instance().free_unused(now); }

}  // namespace cohort::rpc::internal
