// SPDX-License-Identifier: Apache-2.0
// Why a task does not answer, as far as its host says.
#pragma once

#include <string>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort::rpc {

// Whether the host of "host:port" refuses connections there (ECONNREFUSED): it is up, and nobody
// listens. False also when the deadline comes first, and where this process has too little to ask.
// Connects, so a server that listens sees a stranger: ask after a failure only.
COHORT_API bool is_refusing(const std::string& address, Deadline deadline) noexcept;

}  // namespace cohort::rpc
