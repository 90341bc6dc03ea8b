// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/effect_handler.h"

#include "cohort/core/error.h"

namespace cohort::internal {

std::vector<at::Tensor> EffectHandler::next_segment(std::span<const std::int64_t>) {
  internal::throw_error(ErrorCode::unimplemented,
                        "[function.run] the step reads a variable that it has updated, which this "
                        "place cannot do; read it before the update");
}

std::vector<at::Tensor> EffectHandler::call(std::int64_t number, std::vector<at::Tensor>) {
  internal::throw_error(ErrorCode::unimplemented, "[function.run] expected the process that has ",
                        "traced the function, got another one, which cannot make its call ", number,
                        "; give the function to the strategy that made it");
}

}  // namespace cohort::internal
