// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/tcp/payload.h"

#include <algorithm>

namespace cohort::collective::tcp {
namespace {

constexpr std::int64_t kSegmentBytesMin = 32 << 10;
constexpr std::int64_t kSegmentsEach = 4;  // so that sending, adding and receiving overlap
constexpr std::int64_t kShareAlignment = 64;
// More are copied into one piece.
constexpr std::size_t kInlinePartsMax = 8;

}  // namespace

std::byte* Scratch::of(int rank) {
  std::unique_ptr<Line[]>& lines = members_[static_cast<std::size_t>(rank)];
  if (!lines) lines = std::make_unique<Line[]>(kBytes / sizeof(Line));
  return lines[0].bytes;
}

bool fits_offer(const Call& call, std::int64_t message_bytes) {
  if (call.size == 1 || call.refusal) return true;
  if (call.kind == CallKind::exchange) return message_bytes <= kInlineBytesMax;
  if (call.kind == CallKind::all_gather) return call.parts.front().bytes <= kInlineBytesMax;
  // Each member sends all values of a sum to all others, and adds all of them.
  const std::int64_t receivers = call.is_reduction() ? call.size - 1 : 1;
  return call.payload_bytes * receivers <= kInlineBytesMax;
}

std::int64_t segment_bytes(const Call& call) {
  const std::int64_t owners = call.kind == CallKind::reduce ? 1 : call.size;
  return std::clamp(rounded_up(call.payload_bytes / owners / kSegmentsEach, kShareAlignment),
                    kSegmentBytesMin, kSegmentBytesMax);
}

Range share_of(const Call& call, int rank) {
  const std::int64_t all = call.payload_bytes;
  if (call.kind == CallKind::reduce) return {0, rank == call.root ? all : 0};
  if (call.kind == CallKind::reduce_scatter) {
    const Part& part = call.parts.front();
    const std::int64_t rows = part.tensor->size(0);
    const auto [first, last] = call.rows_of(rows, rank);
    return {first * (part.bytes / rows), last * (part.bytes / rows)};
  }
  const auto begin = [&](std::int64_t of) {
    return std::min(all, rounded_up(all / call.size * of, kShareAlignment));
  };
  return {begin(rank), rank + 1 == call.size ? all : begin(rank + 1)};
}

void add_pieces(const Call& call, Range range, Pieces& pieces, std::byte* memory) {
  for_parts(call, range, [&](const Part& part, std::int64_t from, std::int64_t to) {
    std::byte* const data =
        memory != nullptr ? memory + (part.offset + from - range.begin) : part.data + from;
    pieces.push_back(piece_of(data, to - from));
  });
}

void add_all(const Call& call, Scratch& scratch, Pieces& pieces, std::byte* memory) {
  if (call.parts.size() <= kInlinePartsMax) {
    add_pieces(call, {0, call.payload_bytes}, pieces, memory);
    return;
  }
  std::byte* const own = scratch.of(call.rank);
  if (memory == nullptr) call.write_payload(own);
  pieces.push_back(piece_of(memory != nullptr ? memory : own, call.payload_bytes));
}

void reduce_range(Call& call, Range range, Scratch& scratch) {
  const std::int64_t share_begin = share_of(call, call.rank).begin;
  c10::SmallVector<const std::byte*, 8> inputs(static_cast<std::size_t>(call.size));
  for_parts(call, range, [&](const Part& part, std::int64_t from, std::int64_t to) {
    std::byte* const own = part.data + from;
    const std::int64_t begin = part.offset + from;
    for (int rank = 0; rank < call.size; ++rank)
      inputs[static_cast<std::size_t>(rank)] =
          rank == call.rank ? own : scratch.of(rank) + (begin - range.begin);
    std::byte* output = own;
    if (call.kind == CallKind::reduce_scatter)
      output = static_cast<std::byte*>(call.result.data_ptr()) + (begin - share_begin);
    call.reduce(part, inputs, {&output, 1}, to - from);
  });
}

}  // namespace cohort::collective::tcp
