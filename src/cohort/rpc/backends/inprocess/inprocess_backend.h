// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cohort/rpc/channel.h"

namespace cohort::rpc::backends {

// For tests and runs on one machine: all tasks are in one process. Addresses are names; an empty
// one gets a new name.
std::shared_ptr<Channel> connect_inprocess(const ConnectOptions& options,
                                           Channel::Handlers handlers);

}  // namespace cohort::rpc::backends
