// SPDX-License-Identifier: Apache-2.0
// Which arguments a closure may have, and where its calls may be made.
#pragma once

#include <string_view>
#include <vector>

#include "cohort/core/nest.h"
#include "cohort/function/detail/call_signature.h"
#include "cohort/function/function.h"
#include "cohort/strategy/detail/parameter_server_home.h"

namespace cohort::coordinator {

class Runtime;

// Throws failed_precondition, naming the call, where a function is being traced, or runs eagerly,
// on this thread: it would wait for itself.
void check_outside_step(std::string_view call);
// Makes tensors of numbers where the function takes tensors, and takes the values of tensors that
// were computed from read() of variables of this process, since no step trains those. Throws
// invalid_argument for tensors that cannot travel, whose gradients would stay behind, or that have
// no current value, as tensor() of the variables of `home`; and for iterators of another
// coordinator, which would not come back with a worker that was lost.
function::BoundArguments prepare_arguments(const Runtime& runtime,
                                           const detail::ParameterServerHome& home,
                                           const Function& fn, std::vector<Nest>& arguments);

}  // namespace cohort::coordinator
