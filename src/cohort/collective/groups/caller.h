// SPDX-License-Identifier: Apache-2.0
// Who makes which call, and the errors of calls in which others do not take part.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cohort/collective/group.h"
#include "cohort/collective/groups/call.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"

namespace cohort::collective {

// For errors. `what` is the name of the content; `call` counts the calls that users make.
struct Caller {
  const Group& member;
  std::uint64_t call = 0;
  CallKind kind = CallKind::barrier;
  std::string_view what = {};
  Deadline deadline = {};  // in shared memory
};

// "[collective.NAME] expected "
std::string prefix(CallKind kind);
// "WHAT in call N"
std::string in_call(const Caller& caller);
// The member `name` has left.
Error left_error(const Caller& caller, const std::string& name);
Error ended_error(ErrorCode code, const Caller& caller, const std::string& reason);
// `got`: "nothing from worker:1".
Error late_error(const Caller& caller, const std::string& got);

}  // namespace cohort::collective
