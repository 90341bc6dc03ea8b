// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/distribution/current_distribution.h"

#include <utility>

#include "cohort/core/random.h"

namespace cohort::input {

CurrentDistribution::CurrentDistribution(std::shared_ptr<InputDistribution> first, Make make)
    : make_(std::move(make)), distribution_(std::move(first)), next_{.seed = draw_number()} {}

std::shared_ptr<const InputHost> CurrentDistribution::host() const {
  std::shared_ptr<const InputHost> own;
  {
    const Lock lock(mutex_);
    own = distribution_->shared_host();
  }
  if (!own->latest) return own;
  std::shared_ptr<const InputHost> latest = own->latest();
  return latest != nullptr ? latest : own;
}

std::shared_ptr<InputDistribution> CurrentDistribution::of(
    const std::shared_ptr<const InputHost>& host) {
  {
    const Lock lock(mutex_);
    if (distribution_->shared_host() == host) return distribution_;
  }
  std::shared_ptr<InputDistribution> made = make_(host);  // may call a function of the user
  const Lock lock(mutex_);
  distribution_ = made;
  return made;
}

PassOrder CurrentDistribution::next() const {
  const Lock lock(mutex_);
  return next_;
}

void CurrentDistribution::note_begun(const PassOrder& order) {
  const Lock lock(mutex_);
  next_ = {.seed = order.seed, .pass = order.pass + 1};
}

void CurrentDistribution::set_next_pass(std::uint64_t pass) {
  const Lock lock(mutex_);
  next_.pass = pass;
}

}  // namespace cohort::input
