// SPDX-License-Identifier: Apache-2.0
// A backend that implements exchange() and split() alone, for tests and benchmarks of the defaults.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/collective/group.h"

namespace cohort::collective {

// Exchanges over another group, of whose operations it uses no other.
class ExchangeOnlyGroup final : public Group {
 public:
  explicit ExchangeOnlyGroup(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) override {
    return group_->exchange(std::move(mine), what, deadline);
  }
  std::shared_ptr<Group> split() override {
    return std::make_shared<ExchangeOnlyGroup>(group_->split());
  }

 private:
  const std::shared_ptr<Group> group_;
};

}  // namespace cohort::collective
