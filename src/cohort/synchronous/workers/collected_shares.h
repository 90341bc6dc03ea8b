// SPDX-License-Identifier: Apache-2.0
// How workers of which each has a share of the slots (sharded_updates.h) make them whole again.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/clock.h"
#include "cohort/strategy/strategy_parts.h"

namespace cohort::internal {

class MirroredHome;

// All members of a new group make this call before a handover of values. If those of the last group
// have shares of the slots, each of them gets the whole slots; the first step cuts them for the
// workers of the new group. Returns whether this member's values and slots fit each other, and
// may be handed over to others.
//
// Throws data_loss on all members, and changes nothing, if a share is lost with its worker, which
// it names, or if the last step has updated only a part of the shares.
bool collect_shares(MirroredHome& home, collective::Group& group, Deadline deadline);

// See StrategyVariables. The shares stay as they are.
std::vector<StrategyVariables::GatheredSlot> gather_shared_slots(MirroredHome& home,
                                                                 std::string_view call,
                                                                 std::uint64_t chunk_bytes);
std::vector<StrategyVariables::SlotRows> own_rows_of_shared_slots(MirroredHome& home,
                                                                  std::string_view call);

}  // namespace cohort::internal
