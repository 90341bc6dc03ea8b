// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/detail/farewell.h"

namespace cohort::rpc {

Frame farewell_frame(const Error& why) { return error_frame(kFarewellId, why); }

}  // namespace cohort::rpc
