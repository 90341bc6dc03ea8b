// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/internal/formation/on_backend.h"

#include <utility>

#include "cohort/collective/internal/formation/plain_exchange.h"
#include "cohort/core/error.h"

namespace cohort::collective::formation {

std::shared_ptr<Group> on_backend(std::shared_ptr<Links> links, GroupBackend backend) {
  for (int rank = 0; rank < links->size(); ++rank) {
    COHORT_CHECK(backend != GroupBackend::shared_memory || links->host(rank) == links->host(0),
                 ErrorCode::invalid_argument,
                 "[collective.form] expected all workers on one host for "
                 "GroupBackend::shared_memory, got ",
                 links->member_name(0), " and ", links->member_name(rank),
                 " on two, or as different users or in different containers; use "
                 "GroupBackend::automatic or tcp");
  }
  return std::make_shared<PlainExchange>(std::move(links), SplitPath());
}

}  // namespace cohort::collective::formation
