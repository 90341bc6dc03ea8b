// SPDX-License-Identifier: Apache-2.0
// The sockets that connect the members of a group.
#pragma once

#include <memory>

#include "cohort/collective/backends/tcp/channel.h"
#include "cohort/collective/links.h"
#include "cohort/core/clock.h"

namespace cohort::collective::tcp {

// As Carrier.
class Sockets final : public Carrier {
 public:
  explicit Sockets(std::shared_ptr<Links> links);
  Channels connect(const SplitPath& path, Deadline deadline) override;
  void sleep(const Channels& channels, TimePoint idle_since, TimePoint until) override;
  void sleep_for_farewell(const Channels& channels, TimePoint until) override;

 private:
  const std::shared_ptr<Links> links_;
};

}  // namespace cohort::collective::tcp
