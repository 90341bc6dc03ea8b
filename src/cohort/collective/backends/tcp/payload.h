// SPDX-License-Identifier: Apache-2.0
// Where the values of a call lie in memory, and how members divide them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/collective/backends/tcp/channel.h"
#include "cohort/collective/groups/call.h"

namespace cohort::collective::tcp {

// Memory for the values of each member, which calls use one after the other. Thread-compatible.
class Scratch {
 public:
  static constexpr std::size_t kBytes = kSegmentBytesMax;
  explicit Scratch(int size) : members_(static_cast<std::size_t>(size)) {}
  // kBytes, aligned for all types.
  std::byte* of(int rank);

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<std::unique_ptr<Line[]>> members_;
};

// Whether a member sends its values with its offer. `message_bytes`: of exchange().
bool fits_offer(const Call& call, std::int64_t message_bytes);
// The part of the payload that this member sums, in segments of so many bytes.
Range share_of(const Call& call, int rank);
std::int64_t segment_bytes(const Call& call);
// Appends the memory of a range, without the gaps between the parts: in this member's tensors, or
// in memory that begins with the range.
void add_pieces(const Call& call, Range range, Pieces& pieces, std::byte* memory = nullptr);
// The same of all values of a member that sends them with its offer.
void add_all(const Call& call, Scratch& scratch, Pieces& pieces, std::byte* memory = nullptr);
// Sums a range of this member's share. The contributions of the others lie in the scratch memory.
void reduce_range(Call& call, Range range, Scratch& scratch);

}  // namespace cohort::collective::tcp
