// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/backends/shared_memory/stream.h"

#include <algorithm>
#include <cstring>

namespace cohort::collective::shared_memory {
namespace {

// By how many slices each stage is behind the one before.
constexpr std::int64_t kLag = 1;
constexpr std::int64_t kShareAlignment = 64;
constexpr std::int64_t kPieceBytes = 8 << 10;

// The part of a round that one member reduces.
Range share_of(const Range& round, int rank, int size) {
  const auto bound = [&](int i) {
    const std::int64_t bytes = (round.length()) * i / size;
    return i == size ? round.end : round.begin + bytes / kShareAlignment * kShareAlignment;
  };
  return {bound(rank), bound(rank + 1)};
}

// Asks for lines that this process reads now and writes soon, as their only owner. A line that is
// only read stays with both processes, and the one that writes it next has to ask once more.
#if defined(__x86_64__)
[[gnu::target("prfchw")]]
#endif
void take_lines(const std::byte* from, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 1, 3);
}

// In pieces, of which the next one is on its way while one is used.
template <class Run>
void for_pieces(std::byte* slice, std::int64_t base, const Range& range, const Run& run) {
  take_lines(slice + (range.begin - base), std::min(kPieceBytes, range.length()));
  for (std::int64_t at = range.begin; at < range.end; at += kPieceBytes) {
    const std::int64_t end = std::min(at + kPieceBytes, range.end);
    take_lines(slice + (end - base), std::min(kPieceBytes, range.end - end));
    run(Range{at, end});
  }
}

// `slice` is where byte `base` of the payload lies.
void copy_in(const Call& call, const Range& range, std::byte* slice, std::int64_t base) {
  for_parts(call, range, [&](const Part& part, std::int64_t from, std::int64_t to) {
    std::memcpy(slice + (part.offset + from - base), part.data + from,
                static_cast<std::size_t>(to - from));
  });
}
void copy_out(const Call& call, const Range& range, const std::byte* slice, std::int64_t base) {
  for_parts(call, range, [&](const Part& part, std::int64_t from, std::int64_t to) {
    std::memcpy(part.data + from, slice + (part.offset + from - base),
                static_cast<std::size_t>(to - from));
  });
}

// Reduces a range of the caller's tensors and the others' slices; to the caller's tensors, to its
// slice of member `slice`, or both.
struct Outputs {
  bool tensors = false;
  int slice = -1;
};
void reduce_range(const Call& call, const Range& range, std::span<std::byte* const> slices,
                  std::int64_t base, Outputs to_where) {
  c10::SmallVector<const std::byte*, 8> inputs(slices.size());
  for_parts(call, range, [&](const Part& part, std::int64_t from, std::int64_t to) {
    const std::int64_t at = part.offset + from - base;
    for (std::size_t i = 0; i < slices.size(); ++i) inputs[i] = slices[i] + at;
    inputs[static_cast<std::size_t>(call.rank)] = part.data + from;
    // In the order of ranks, for which two inputs in place are a single pass.
    c10::SmallVector<std::byte*, 2> outputs;
    if (to_where.tensors) outputs.push_back(part.data + from);
    if (to_where.slice >= 0) {
      std::byte* const shared = slices[static_cast<std::size_t>(to_where.slice)] + at;
      outputs.insert(to_where.slice < call.rank ? outputs.begin() : outputs.end(), shared);
    }
    call.reduce(part, inputs, outputs, to - from);
  });
}

}  // namespace

c10::SmallVector<std::byte*, 8> Stream::slices(std::uint64_t number) const {
  c10::SmallVector<std::byte*, 8> all;
  for (int rank = 0; rank < meeting_.size(); ++rank)
    all.push_back(meeting_.room().slice(rank, number));
  return all;
}

void Stream::run(std::int64_t bytes, const Stages& stages, const Caller& caller) {
  const std::int64_t num_rounds = rounded_up(bytes, kSliceBytes) / kSliceBytes;
  const std::int64_t reduce_lag = stages.reduce ? kLag : 0;
  const std::int64_t consume_lag = reduce_lag + kLag;
  const auto is_round = [&](std::int64_t round) { return round >= 0 && round < num_rounds; };
  const auto number = [&](std::int64_t round) {
    return num_before_ + static_cast<std::uint64_t>(round);
  };
  const auto run_stage = [&](const OnSlices& stage, std::int64_t round) {
    const auto all = slices(number(round));
    stage({round * kSliceBytes, std::min((round + 1) * kSliceBytes, bytes)}, all);
  };
  for (std::int64_t step = 0; step < num_rounds + consume_lag; ++step) {
    if (is_round(step)) {
      const std::uint64_t mine = number(step);
      if (mine >= kNumSlices)
        meeting_.wait_for_all(Progress::consumed, mine - kNumSlices + 1, caller);
      run_stage(stages.fill, step);
      meeting_.publish(Progress::filled, mine + 1);
    }
    if (const std::int64_t round = step - reduce_lag; stages.reduce && is_round(round)) {
      meeting_.wait_for_all(Progress::filled, number(round) + 1, caller);
      run_stage(stages.reduce, round);
      meeting_.publish(Progress::reduced, number(round) + 1);
    }
    if (const std::int64_t round = step - consume_lag; is_round(round)) {
      meeting_.wait_for_all(stages.reduce ? Progress::reduced : Progress::filled, number(round) + 1,
                            caller);
      run_stage(stages.consume, round);
      meeting_.publish(Progress::consumed, number(round) + 1);
    }
  }
  num_before_ += static_cast<std::uint64_t>(num_rounds);
}

void stream_in_place(Stream& stream, const Call& call, const Caller& caller) {
  const auto mine = static_cast<std::size_t>(call.rank);
  Stages stages;
  if (call.kind == CallKind::broadcast) {
    stages.fill = [&](const Range& range, std::span<std::byte* const> slices) {
      if (call.rank == call.root) copy_in(call, range, slices[mine], range.begin);
    };
    stages.consume = [&](const Range& range, std::span<std::byte* const> slices) {
      if (call.rank != call.root)
        copy_out(call, range, slices[static_cast<std::size_t>(call.root)], range.begin);
    };
    return stream.run(call.payload_bytes, stages, caller);
  }
  const bool is_written = call.writes_tensors();
  stages.fill = [&](const Range& range, std::span<std::byte* const> slices) {
    const Range share = share_of(range, call.rank, call.size);
    copy_in(call, {range.begin, share.begin}, slices[mine], range.begin);
    copy_in(call, {share.end, range.end}, slices[mine], range.begin);
  };
  // This member has not filled its share, where the others find the result. In a group of two, one
  // member writes it to the slice that it has just read instead, so each line moves only twice.
  const bool is_pair = call.size == 2;
  const auto other = static_cast<std::size_t>(1 - call.rank);
  stages.reduce = [&](const Range& range, std::span<std::byte* const> slices) {
    const Range share = share_of(range, call.rank, call.size);
    if (!is_pair)
      return reduce_range(call, share, slices, range.begin,
                          {.tensors = is_written, .slice = call.rank});
    for_pieces(slices[other], range.begin, share, [&](const Range& piece) {
      reduce_range(call, piece, slices, range.begin,
                   {.tensors = is_written, .slice = 1 - call.rank});
    });
  };
  stages.consume = [&](const Range& range, std::span<std::byte* const> slices) {
    if (!is_written) return;
    for (int rank = 0; rank < call.size; ++rank) {
      const Range share = share_of(range, rank, call.size);
      if (rank == call.rank) continue;
      if (!is_pair) {
        copy_out(call, share, slices[static_cast<std::size_t>(rank)], range.begin);
        continue;
      }
      for_pieces(slices[mine], range.begin, share,
                 [&](const Range& piece) { copy_out(call, piece, slices[mine], range.begin); });
    }
  };
  stream.run(call.payload_bytes, stages, caller);
}

void stream_rows(Stream& stream, const Call& call, const Caller& caller) {
  const Part& part = call.parts.front();
  const std::int64_t rows = part.tensor->size(0);
  const auto [first, last] = call.rows_of(rows, call.rank);
  const std::int64_t row_bytes = rows == 0 ? 0 : part.bytes / rows;
  const Range wanted{first * row_bytes, last * row_bytes};
  auto* const result = static_cast<std::byte*>(call.result.data_ptr());
  c10::SmallVector<const std::byte*, 8> inputs(static_cast<std::size_t>(call.size));
  Stages stages;
  stages.fill = [&](const Range& range, std::span<std::byte* const> slices) {
    copy_in(call, range, slices[static_cast<std::size_t>(call.rank)], range.begin);
  };
  stages.consume = [&](const Range& range, std::span<std::byte* const> slices) {
    const std::int64_t begin = std::max(range.begin, wanted.begin);
    const std::int64_t end = std::min({range.end, wanted.end, part.bytes});
    if (begin >= end) return;
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = slices[i] + (begin - range.begin);
    std::byte* const output = result + (begin - wanted.begin);
    call.reduce(part, inputs, {&output, 1}, end - begin);
  };
  stream.run(call.payload_bytes, stages, caller);
}

void stream_bytes(Stream& stream, const Gathering& gathering, int rank, const Caller& caller) {
  const auto clipped = [](const Range& range, std::int64_t bytes) {
    return Range{std::min(range.begin, bytes), std::min(range.end, bytes)};
  };
  const auto mine = static_cast<std::int64_t>(gathering.mine.size());
  Stages stages;
  stages.fill = [&](const Range& range, std::span<std::byte* const> slices) {
    const Range filled = clipped(range, mine);
    if (filled.begin < filled.end)
      std::memcpy(slices[static_cast<std::size_t>(rank)], gathering.mine.data() + filled.begin,
                  static_cast<std::size_t>(filled.length()));
  };
  stages.consume = [&](const Range& range, std::span<std::byte* const> slices) {
    for (std::size_t other = 0; other < slices.size(); ++other) {
      const Range filled = clipped(range, gathering.sizes[other]);
      if (static_cast<int>(other) != rank && filled.begin < filled.end)
        gathering.consume(static_cast<int>(other), filled.begin,
                          {slices[other], static_cast<std::size_t>(filled.length())});
    }
  };
  const std::int64_t longest = *std::max_element(gathering.sizes.begin(), gathering.sizes.end());
  stream.run(longest, stages, caller);
}

}  // namespace cohort::collective::shared_memory
