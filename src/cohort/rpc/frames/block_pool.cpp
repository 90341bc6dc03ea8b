// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/frames/block_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <new>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"

namespace cohort::rpc::internal {
namespace {

// Smaller blocks are left to malloc, which caches them well.
constexpr std::size_t kPooledBytesMin = std::size_t{64} << 10;
// From this size on, huge pages avoid most page faults.
constexpr std::size_t kHugeBytesMin = std::size_t{4} << 20;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kIdleBlocksMax = 256;

std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

// Eight sizes between two powers of two, so that frames of nearly the same size share blocks.
std::size_t capacity_for(std::size_t bytes) {
  if (bytes < kPooledBytesMin) return bytes;
  return round_up(bytes, std::bit_floor(bytes) / 8);
}

void* allocate(std::size_t bytes) {
  const bool is_huge = bytes >= kHugeBytesMin;
  const std::size_t alignment = is_huge ? kHugePageBytes : Block::kAlignment;
  const std::size_t size = round_up(bytes, alignment);
  void* memory = std::aligned_alloc(alignment, size);
  if (memory != nullptr && is_huge) madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

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
    return new (memory) Block(capacity_for(bytes));
  }

  void give_back(Block* block) noexcept {
    if (block->capacity() < kPooledBytesMin || block->capacity() > idle_bytes_max_) {
      return destroy(block);
    }
    block->owners_.store(1, std::memory_order_relaxed);
    Lock lock(mutex_);
    while (idle_bytes_ + block->capacity() > idle_bytes_max_ || idle_.size() >= kIdleBlocksMax) {
      destroy(remove(idle_.begin()));  // the one that has been idle longest
    }
    idle_.push_back(block);
    idle_bytes_ += block->capacity();
  }

  std::size_t idle_bytes() {
    Lock lock(mutex_);
    return idle_bytes_;
  }
  std::size_t idle_bytes_max() const { return idle_bytes_max_; }

 private:
  BlockPool() {
    idle_.reserve(kIdleBlocksMax);  // so that give_back() cannot throw
    const auto pages = static_cast<std::size_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
    const auto page_bytes = static_cast<std::size_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
    idle_bytes_max_ = std::min(std::size_t{1} << 30, pages * page_bytes / 16);
  }

  // The smallest that fits and of which at least half is used.
  Block* take_idle(std::size_t bytes) {
    Lock lock(mutex_);
    auto best = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      const std::size_t capacity = (*it)->capacity();
      if (capacity < bytes || capacity / 2 > bytes) continue;
      if (best == idle_.end() || capacity <= (*best)->capacity()) best = it;
    }
    return best == idle_.end() ? nullptr : remove(best);
  }

  Block* remove(std::vector<Block*>::iterator position) COHORT_REQUIRES(mutex_) {
    Block* block = *position;
    idle_.erase(position);
    idle_bytes_ -= block->capacity();
    return block;
  }

  static void destroy(Block* block) noexcept {
    block->~Block();
    std::free(block);
  }

  Mutex mutex_;
  std::vector<Block*> idle_ COHORT_GUARDED_BY(mutex_);  // in the order of their return
  std::size_t idle_bytes_ COHORT_GUARDED_BY(mutex_) = 0;
  std::size_t idle_bytes_max_ = 0;
};

void Block::release() noexcept {
  if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) BlockPool::instance().give_back(this);
}

BlockRef acquire_block(std::size_t bytes) { return BlockRef(BlockPool::instance().acquire(bytes)); }
std::size_t idle_block_bytes() { return BlockPool::instance().idle_bytes(); }
std::size_t idle_block_bytes_max() { return BlockPool::instance().idle_bytes_max(); }

}  // namespace cohort::rpc::internal
