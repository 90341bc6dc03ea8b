// SPDX-License-Identifier: Apache-2.0
// The datasets of all workers, as they are sent.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/data/dataset.h"

namespace cohort::coordinator {

// Thread-safe.
struct PerWorkerData {
  // One for each worker, or one for all. Ships them.
  explicit PerWorkerData(const std::vector<Dataset>& all);

  const Bytes& of(std::uint32_t worker) const { return datasets[worker % datasets.size()]; }

  std::vector<Bytes> datasets;
  ElementSpec spec;
  std::vector<std::int64_t> cardinalities;  // Dataset::cardinality() of each
  std::string changing_order;               // data::why_order_may_change() of the first that does
  bool is_same_everywhere = false;          // every worker has the same
  mutable std::atomic<std::uint64_t> epochs{0};  // that have begun: each shuffles in another order
};

}  // namespace cohort::coordinator
