// SPDX-License-Identifier: Apache-2.0
// Checks the arguments of closures and the threads of the coordinator's calls.
#pragma once

#include <string_view>
#include <vector>

#include "cohort/core/nest.h"
#include "cohort/function/call_signature.h"
#include "cohort/function/function.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"

namespace cohort::coordinator {

class Runtime;

// Throws failed_precondition, naming the call, if a function is being traced or runs eagerly on
// this thread: the call would wait for itself.
void check_outside_step(std::string_view call);
// Converts numbers to tensors where the function takes tensors. Replaces tensors that were computed
// from read() of variables of this process by their values, since no step trains those variables.
// Throws invalid_argument for tensors that cannot be sent, that have a graph, or that have no
// current value (tensor() of the variables of `home`); and for iterators of another coordinator,
// which would not be restored on a worker that returns.
function::BoundArguments prepare_arguments(const Runtime& runtime,
                                           const detail::ParameterServerHome& home,
                                           const Function& fn, std::vector<Nest>& arguments);

}  // namespace cohort::coordinator
