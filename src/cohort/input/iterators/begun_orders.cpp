// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/iterators/begun_orders.h"

#include <cstddef>

#include "cohort/core/log.h"

namespace cohort::input {
namespace {

constexpr std::size_t kOrdersMax = 1024;

}  // namespace

void BegunOrders::begin(std::uint64_t fingerprint) {
  const Lock lock(mutex_);
  const bool is_new = !fingerprints_.contains(fingerprint);
  if (is_new && fingerprints_.size() < kOrdersMax) fingerprints_.insert(fingerprint);
  if (is_new || has_warned_) return;
  has_warned_ = true;
  log_warn(
      "[input.iterator] expected one distributed dataset for all passes over a dataset that is "
      "shuffled with a seed, got a second one: its passes are counted from 0, so its order begins "
      "again; call distribute_dataset() once, before the loop over epochs, or set_next_pass()");
}

}  // namespace cohort::input
