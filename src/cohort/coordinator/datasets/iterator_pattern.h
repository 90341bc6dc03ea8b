// SPDX-License-Identifier: Apache-2.0
// Signatures of calls, in which a pattern represents each per-worker iterator.
#pragma once

#include <span>

#include "cohort/function/call_signature.h"

namespace cohort::coordinator {

// The signature of a call. Throws invalid_argument for a remote value or another handle that is not
// a per-worker iterator.
function::CallSignature signature_of(std::span<const Nest> arguments,
                                     const function::TracingMode& mode);

}  // namespace cohort::coordinator
