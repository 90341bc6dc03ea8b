// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/groups/caller.h"

namespace cohort::collective {

std::string prefix(CallKind kind) {
  return "[collective." + std::string(name_of(kind)) + "] expected ";
}

std::string in_call(const Caller& caller) {
  return std::string(caller.what) + " in call " + std::to_string(caller.call);
}

Error left_error(const Caller& caller, const std::string& name) {
  return Error(ErrorCode::aborted, prefix(caller.kind) + name + " to take part in " +
                                       in_call(caller) +
                                       ", got the end of its group; all workers make the same "
                                       "calls")
      .at(name);
}

Error ended_error(ErrorCode code, const Caller& caller, const std::string& reason) {
  return Error(code, prefix(caller.kind) + "to take part in " + in_call(caller) +
                         ", got the end of all workers' group: " + reason +
                         "; begin a new one on all");
}

Error late_error(const Caller& caller, const std::string& got) {
  return Error(ErrorCode::deadline_exceeded, prefix(caller.kind) + "all workers in call " +
                                                 std::to_string(caller.call) + " to take part in " +
                                                 std::string(caller.what) + " in time, got " + got);
}

}  // namespace cohort::collective
