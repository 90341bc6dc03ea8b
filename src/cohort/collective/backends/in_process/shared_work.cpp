// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/in_process/shared_work.h"

#include <algorithm>
#include <cstring>

namespace cohort::collective::in_process {
namespace {

// Whole cache lines, so that two members rarely write to the same; at most what stays in a
// second-level cache with the inputs of several members.
constexpr std::int64_t kChunkBytesMin = 512;
constexpr std::int64_t kChunkBytesMax = 64 << 10;
constexpr std::int64_t kChunksEach = 4;  // so that a member that is late can be helped

using Pointers = c10::SmallVector<std::byte*, 8>;

std::byte* data_of(const Turn& turn, std::int64_t part) {
  return part == 0 ? turn.offer.data : turn.offer.parts[part].data;
}

void reduce_range(const Call& call, const Part& part, Pointers& tensors, std::int64_t bytes) {
  std::span<std::byte* const> outputs(tensors);
  if (call.kind == CallKind::reduce)
    outputs = outputs.subspan(static_cast<std::size_t>(call.root), 1);
  const c10::SmallVector<const std::byte*, 8> inputs(tensors.begin(), tensors.end());
  call.reduce(part, inputs, outputs, bytes);
}

void broadcast_range(const Call& call, const Pointers& tensors, std::int64_t bytes) {
  const std::byte* const from = tensors[static_cast<std::size_t>(call.root)];
  for (std::byte* const to : tensors) {
    if (to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
}

}  // namespace

Chunks::Chunks(const Call& call) : size_(call.size), payload_bytes_(call.payload_bytes) {
  const std::int64_t wanted = payload_bytes_ / (size_ * kChunksEach);
  chunk_bytes_ = std::clamp(rounded_up(wanted, kChunkBytesMin), kChunkBytesMin, kChunkBytesMax);
  count_ = (payload_bytes_ + chunk_bytes_ - 1) / chunk_bytes_;
}

void Chunks::compute(std::int64_t chunk, const Call& mine,
                     std::span<Turn* const> turns) const noexcept {
  const std::int64_t begin = chunk * chunk_bytes_;
  const Range range{begin, std::min(payload_bytes_, begin + chunk_bytes_)};
  Pointers tensors(turns.size());
  for_parts(mine, range, [&](const Part& part, std::int64_t from, std::int64_t to) {
    for (std::size_t rank = 0; rank < turns.size(); ++rank)
      tensors[rank] = data_of(*turns[rank], &part - mine.parts.begin()) + from;
    if (mine.kind == CallKind::broadcast) {
      broadcast_range(mine, tensors, to - from);
    } else {
      reduce_range(mine, part, tensors, to - from);
    }
  });
}

std::uint64_t compute_chunks(const Chunks& chunks, int owner, const Call& mine,
                             std::span<Turn* const> turns) noexcept {
  std::uint64_t num_computed = 0;
  std::atomic<std::int64_t>& next = turns[static_cast<std::size_t>(owner)]->next_chunk;
  const std::int64_t end = chunks.share(owner + 1);
  // It was published with the turn, so no order is needed to begin a chunk; complete() orders what
  // is written.
  while (next.load(std::memory_order_relaxed) < end) {
    const std::int64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= end) break;
    chunks.compute(chunk, mine, turns);
    num_computed += 1;
  }
  return num_computed;
}

}  // namespace cohort::collective::in_process
