// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/detail/effect_handler.h"

#include "cohort/core/error.h"

namespace cohort::internal {

std::vector<at::Tensor> EffectHandler::next_segment(std::span<const std::int64_t>) {
  internal::throw_error(ErrorCode::unimplemented,
                        "[function.run] the step reads a variable that it has updated, which this "
                        "place cannot do; read it before the update");
}

void EffectHandler::merge_average(std::int64_t variable, at::Tensor value, at::Tensor, double) {
  assign(AssignKind::assign, variable, std::move(value));
}

}  // namespace cohort::internal
