// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/per_replica.h"

namespace cohort {

std::int64_t DistributedElement::local_num_examples() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < size(); ++i) sum += num_examples(i);
  return sum;
}

}  // namespace cohort
