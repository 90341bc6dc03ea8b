// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/group.h"

#include "cohort/collective/backends/in_process/member.h"
#include "cohort/core/error.h"

namespace cohort {

using collective::in_process::Member;
using collective::in_process::Splits;

InProcessWorkers::InProcessWorkers(int num_workers) {
  COHORT_CHECK(num_workers > 0, ErrorCode::invalid_argument,
               "[collective.workers] expected num_workers > 0, got ", num_workers);
  splits_ = std::make_shared<Splits>(num_workers);
}

std::shared_ptr<collective::Group> InProcessWorkers::group(int rank) const {
  COHORT_CHECK(rank >= 0 && rank < splits_->size(), ErrorCode::invalid_argument,
               "[collective.workers] expected a rank in [0, ", splits_->size(), "), got ", rank);
  return std::make_shared<Member>(splits_, rank);
}

}  // namespace cohort
