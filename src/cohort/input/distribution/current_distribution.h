// SPDX-License-Identifier: Apache-2.0
// A distributed dataset over all groups of workers that a strategy has, one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "cohort/core/mutex.h"
#include "cohort/input/distribution/input_distribution.h"
#include "cohort/input/input_host.h"

namespace cohort::input {

// Decides the order of a pass over a dataset that shuffles: the seed where the dataset has none,
// and the number of the pass.
struct PassOrder {
  std::uint64_t seed = 0;
  std::uint64_t pass = 0;
};

// Thread-safe.
class CurrentDistribution {
 public:
  // Divides the dataset among the workers of a host.
  using Make = std::function<std::shared_ptr<InputDistribution>(std::shared_ptr<const InputHost>)>;
  CurrentDistribution(std::shared_ptr<InputDistribution> first, Make make);

  // The host of the group that the strategy has now.
  std::shared_ptr<const InputHost> host() const;
  // The distribution of the workers of this host; makes it if the host is a new one.
  std::shared_ptr<InputDistribution> of(const std::shared_ptr<const InputHost>& host);
  std::shared_ptr<InputDistribution> get() { return of(host()); }

  // The order of the next pass.
  PassOrder next() const;
  // A pass of this order has begun; the next one has the number after it.
  void note_begun(const PassOrder& order);
  void set_next_pass(std::uint64_t pass);

 private:
  const Make make_;
  mutable Mutex mutex_;
  std::shared_ptr<InputDistribution> distribution_ COHORT_GUARDED_BY(mutex_);
  PassOrder next_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::input
