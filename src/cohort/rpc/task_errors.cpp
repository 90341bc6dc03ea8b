// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/task_errors.h"

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

Error as_lost_server(const Error& error) {
  Error lost = Error(ErrorCode::unavailable,
                     error.message() + "; the variables there may be lost: see that " +
                         error.origin() + " runs, and start the program again",
                     error.cause())
                   .at(error.origin(), error.incarnation());
  for (const std::string& line : error.context()) lost = Error(lost).during(line);
  return lost;
}

void check_watermark(std::uint64_t low_watermark, std::uint64_t closure_id) {
  if (low_watermark <= closure_id) return;
  throw Error(
      ErrorCode::data_loss,
      "[server.receive] expected a low watermark of at most the closure that it comes with, " +
          std::to_string(closure_id) + ", got " + std::to_string(low_watermark) +
          "; see whether the sender's memory is sound",
      ErrorCause::peer_lost);
}

bool is_violation(const Error& error) {
  return error.code() == ErrorCode::data_loss && error.cause() == ErrorCause::peer_lost;
}

}  // namespace cohort::rpc
