// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/farewell.h"

namespace cohort::rpc {

Frame farewell_frame(const Error& why) { return error_frame(kFarewellId, why); }

}  // namespace cohort::rpc
