// SPDX-License-Identifier: Apache-2.0
// How all members of a new group get the values of one of them.
#pragma once

#include "cohort/collective/group.h"
#include "cohort/core/clock.h"

namespace cohort::internal {

class MirroredHome;

// How this worker came into the group.
struct Arrival {
  // It was not in the last group, so its values are not those to go on from.
  bool is_new = false;
  // Its program has just begun, and has created nothing yet.
  bool begins = false;
};

// All members of the group make this call while no run is open. The member of the lowest rank that
// has a whole state gives it to all: the values of variables and their slots, the state of
// optimizers, and the state of LibTorch's default generator to those with the same seed. A member
// keeps the values of variables that it has not created yet (MirroredHome::received()).
//
// Throws data_loss if no member has a whole state; failed_precondition on all members, and
// changes nothing, if one has what the source has not, or another number of replicas; and the
// errors of calls of the group. If values have been replaced by then, or the worker is new,
// home.are_values_whole() is false, and another handover makes them whole.
void hand_over(MirroredHome& home, collective::Group& group, const Arrival& arrival,
               Deadline deadline);

}  // namespace cohort::internal
