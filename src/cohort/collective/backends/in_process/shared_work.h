// SPDX-License-Identifier: Apache-2.0
// The work of a large all_reduce, reduce or broadcast, in chunks that the members divide.
#pragma once

#include <cstdint>
#include <span>

#include "cohort/collective/backends/in_process/meeting.h"
#include "cohort/collective/groups/call.h"

namespace cohort::collective::in_process {

// The chunks of a call's payload; equal for all members, since their calls agree. A value type.
class Chunks {
 public:
  explicit Chunks(const Call& call);

  std::int64_t count() const { return count_; }
  // The chunks of member `rank`'s share are [share(rank), share(rank + 1)). The same member has the
  // same share in each call, so that it stays in the cache of its core.
  std::int64_t share(int rank) const { return count_ * rank / size_; }
  // Computes one chunk, for all members. `turns` are theirs in the order of ranks.
  void compute(std::int64_t chunk, const Call& mine, std::span<Turn* const> turns) const noexcept;

 private:
  int size_;
  std::int64_t payload_bytes_;
  std::int64_t chunk_bytes_;
  std::int64_t count_;
};

// Computes the chunks of the share of `owner` that nobody has begun; returns how many. Each member
// begins with its own share, and then helps the others, so that one whose thread does not run holds
// nobody up.
std::uint64_t compute_chunks(const Chunks& chunks, int owner, const Call& mine,
                             std::span<Turn* const> turns) noexcept;

}  // namespace cohort::collective::in_process
