// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/iterators/step_status.h"

#include <utility>

#include "cohort/core/fields.h"

namespace cohort::input {
template <class Codec>
void fields(Codec& codec, StepStatus& status) {
  codec(status.components, status.examples, status.costs_batch, status.error);
}

Bytes encode(const StepStatus& status) { return encode_fields(status); }

StepStatus sum_of(const std::vector<Bytes>& all, const collective::Group& group) {
  StepStatus sum;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    auto status = decode_fields<StepStatus>(all[rank], "status of a step");
    sum.components += status.components;
    sum.examples += status.examples;
    sum.costs_batch = sum.costs_batch || status.costs_batch;
    if (status.error && !sum.error)
      sum.error = std::move(*status.error).at(group.member_name(static_cast<int>(rank)));
  }
  return sum;
}

}  // namespace cohort::input
