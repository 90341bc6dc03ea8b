// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cohort/rpc/channel.h"

namespace cohort::rpc::backends {

// Frames in chunks over a gRPC stream: slower, for networks where gRPC is what passes.
Backend& grpc_backend();

}  // namespace cohort::rpc::backends
