// SPDX-License-Identifier: Apache-2.0
// Memory of received tensors and of answers. Fresh from the system it is ten times slower to write
// to than reused memory, so large blocks are kept and reused until nobody needs them for some time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cohort/core/clock.h"

namespace cohort::rpc::internal {

// A reference-counted piece of memory, 64-byte aligned. The last owner returns it to the pool.
// Thread-safe.
class Block {
 public:
  static constexpr std::size_t kAlignment = 64;

  std::byte* data() { return reinterpret_cast<std::byte*>(this) + kAlignment; }
  std::size_t capacity() const { return capacity_; }
  void retain() { owners_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;

 private:
  friend class BlockPool;
  explicit Block(std::size_t capacity) : capacity_(capacity) {}

  std::size_t capacity_;
  std::atomic<std::uint64_t> owners_{1};
};

struct ReleaseBlock {
  void operator()(Block* block) const noexcept { block->release(); }
};
// Owns one reference to a block.
using BlockRef = std::unique_ptr<Block, ReleaseBlock>;

// Smaller blocks are left to malloc, which caches them well.
inline constexpr std::size_t kPooledBytesMin = std::size_t{64} << 10;
// Returns a block of at least `bytes`. Throws resource_exhausted if there is no memory.
// Thread-safe.
BlockRef acquire_block(std::size_t bytes);

// Bytes kept for reuse, and their limit.
std::size_t idle_block_bytes();
std::size_t idle_block_bytes_max();

// Held by each connection. Blocks are kept only while one exists, since the threads of connections
// are those that call free_unused_blocks(). Thread-compatible.
class BlockUser {
 public:
  BlockUser() noexcept;
  ~BlockUser();
  BlockUser(const BlockUser&) = delete;
  BlockUser& operator=(const BlockUser&) = delete;
};
// Gives blocks back to the system that were not used for kUnusedBlockTime. Returns when to call it
// again, or no deadline if there is no large block, used or not. Costs little before that time.
inline constexpr Duration kUnusedBlockTime = std::chrono::seconds(10);
Deadline free_unused_blocks(TimePoint now);

}  // namespace cohort::rpc::internal
