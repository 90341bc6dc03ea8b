// SPDX-License-Identifier: Apache-2.0
// The error of a parameter server that is lost, for users.
#pragma once

#include "cohort/core/error.h"

namespace cohort::rpc {

// The same error, which has the server as origin, with the code unavailable, on which callers can
// rely for a lost parameter server, and with a remedy.
COHORT_API Error as_lost_server(const Error& error);

}  // namespace cohort::rpc
