// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/detail/resource_host.h"

#include "cohort/core/error.h"

namespace cohort {

std::vector<at::Tensor> ResourceHost::next_segment(std::span<const std::int64_t>) {
  internal::throw_error(ErrorCode::unimplemented,
                        "[function.run] the step reads a variable that it has updated, which this "
                        "place cannot do; read it before the update");
}

void ResourceHost::merge_average(std::int64_t variable, at::Tensor value, at::Tensor, double) {
  assign(AssignKind::assign, variable, std::move(value));
}

}  // namespace cohort
