// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cohort/core/error.h"
#include "cohort/rpc/task_errors.h"

namespace cohort::parameter_server {

// If a connection broke while the answer was awaited, the error says what to do.
template <class Call>
void with_remedy(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    const bool is_lost =
        error.code() == ErrorCode::unavailable && error.cause() == ErrorCause::peer_lost;
    if (is_lost) throw rpc::as_lost_server(error);
    throw;
  }
}

}  // namespace cohort::parameter_server
