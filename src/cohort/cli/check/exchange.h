// SPDX-License-Identifier: Apache-2.0
// Tells all tasks the facts of this one, and gets theirs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cohort/cli/check/comparison.h"
#include "cohort/cli/check/task_facts.h"
#include "cohort/core/clock.h"

namespace cohort::cli {

struct ExchangedFacts {
  std::optional<Error> listening = {};
  bool is_listening = false;
  std::vector<PeerReport> peers = {};
};

// Listens at `address` (empty: not at all), dials `peers`, of which task and address are set, and
// answers those that dial. Returns when all have been reached and have reached this task, or at the
// deadline.
ExchangedFacts exchange_facts(const TaskFacts& own, const std::string& address,
                              std::vector<PeerReport> peers, Deadline deadline);

}  // namespace cohort::cli
