// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cohort/rpc/channel.h"

namespace cohort::rpc::backends {

// Plain TCP. Tensors leave from and arrive in their own memory.
Backend& stream_backend();

}  // namespace cohort::rpc::backends
