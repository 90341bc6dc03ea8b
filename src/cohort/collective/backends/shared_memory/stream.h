// SPDX-License-Identifier: Apache-2.0
// How values that are larger than the buffers pass through the slices of a room.
//
// Each member fills slice after slice with its values, reduces its share of what all have filled,
// and consumes what others have filled or reduced, always some slices behind: so what a member
// waits for has usually happened already.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "cohort/collective/backends/shared_memory/meeting.h"
#include "cohort/collective/groups/call.h"

namespace cohort::collective::shared_memory {

// A member's work on a slice of the bytes of a call. `slices` are those of all members, in the
// order of ranks.
using OnSlices = std::function<void(const Range& range, std::span<std::byte* const> slices)>;

struct Stages {
  OnSlices fill = {};
  OnSlices reduce = {};  // may be empty
  OnSlices consume = {};
};

// The slices of all calls of one member. Used only from the thread that calls the member.
class Stream {
 public:
  explicit Stream(Meeting& meeting) : meeting_(meeting) {}

  // All members pass the same number of bytes, and either all or none reduce.
  void run(std::int64_t bytes, const Stages& stages, const Caller& caller);

 private:
  c10::SmallVector<std::byte*, 8> slices(std::uint64_t number) const;

  Meeting& meeting_;
  std::uint64_t num_before_ = 0;  // slices of earlier calls
};

// all_reduce, reduce or broadcast of tensors in place.
void stream_in_place(Stream& stream, const Call& call, const Caller& caller);
// The caller's rows of reduce_scatter.
void stream_rows(Stream& stream, const Call& call, const Caller& caller);
// The bytes of each member to all others. `mine` are this member's, `sizes` those of all. `consume`
// gets the bytes of member `rank` from `begin` on.
struct Gathering {
  std::span<const std::byte> mine = {};
  std::span<const std::int64_t> sizes = {};
  std::function<void(int rank, std::int64_t begin, std::span<const std::byte> bytes)> consume = {};
};
void stream_bytes(Stream& stream, const Gathering& gathering, int rank, const Caller& caller);

}  // namespace cohort::collective::shared_memory
