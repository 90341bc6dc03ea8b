// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/violation.h"

namespace cohort::rpc {

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
