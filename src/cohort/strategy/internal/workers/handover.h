// SPDX-License-Identifier: Apache-2.0
// How all members of a new group get the values of one of them.
#pragma once

#include "cohort/collective/group.h"
#include "cohort/core/clock.h"

namespace cohort::internal {

class MirroredHome;

// All members of the group make this call while no run is open. The member of the lowest rank that
// has a whole state, `is_new` on none but those whose program has just begun, gives its own to all:
// the values of variables and their slots, the state of optimizers, and the state of LibTorch's
// default generator to those with the same seed. What a member has not created yet it keeps
// (MirroredHome::received()).
//
// Throws unavailable if no member has a whole state; failed_precondition on all members, and changes
// nothing, if one has what the source has not, or another number of replicas; and the errors of
// calls of the group. If values have been replaced by then, home.are_values_whole() is false, and
// another handover, from another member, makes them whole.
void hand_over(MirroredHome& home, collective::Group& group, bool is_new, Deadline deadline);

}  // namespace cohort::internal
