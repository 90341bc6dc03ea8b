// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/control.h"

namespace cohort::rpc {

Error replaced_error(const std::string& task) {
  return Error(ErrorCode::aborted,
               "[rpc.control] another coordinator took its place: " + task +
                   " expected the coordinator that it works for, got a call of an earlier one; end "
                   "the earlier program, whose variables and results are not used any more",
               ErrorCause::handle_lost)
      .at(task);
}

bool is_replaced(const Error& error) {
  return error.code() == ErrorCode::aborted && error.cause() == ErrorCause::handle_lost;
}

}  // namespace cohort::rpc
