// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cohort/rpc/channel.h"

namespace cohort::rpc::backends {

// Within one process, for tests and one-machine runs. Addresses are names; none given: a new one.
Backend& inprocess_backend();

}  // namespace cohort::rpc::backends
