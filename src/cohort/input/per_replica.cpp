// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/per_replica.h"

namespace cohort {

bool DistributedElement::has_data(std::size_t i) const {
  COHORT_CHECK(i < counts_.examples.size(), ErrorCode::invalid_argument,
               "[input.per_replica] expected a replica below ", counts_.examples.size(), ", got ",
               static_cast<std::int64_t>(i), "; local replicas are counted from 0");
  return counts_.examples[i] >= 0;
}

std::int64_t DistributedElement::local_num_examples() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < size(); ++i) sum += num_examples(i);
  return sum;
}

}  // namespace cohort
