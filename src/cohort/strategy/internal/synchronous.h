// SPDX-License-Identifier: Apache-2.0
// Functions that the synchronous strategies share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/device.h"

namespace cohort::internal {

// Parses device names; without names, returns all GPUs, or CPU:0. `strategy` is for messages.
std::vector<Device> replica_devices(const std::vector<std::string>& names,
                                    std::string_view strategy);
// "CPU:0", …
std::vector<std::string> names_of(const std::vector<Device>& devices);
// Throws invalid_argument inside a replica of a strategy other than the default one.
void check_outside_replicas(std::string_view method);

}  // namespace cohort::internal
