// SPDX-License-Identifier: Apache-2.0
// The base of update rules without slots, in tests.
#pragma once

#include <array>

#include "cohort/variable/update_rule.h"

namespace cohort::testing {

// A subclass has a name and an update. Its only hyperparameter is "rate".
class SlotlessRule : public variable::UpdateRule {
 public:
  std::span<const std::string_view> hyperparameter_names() const override {
    static constexpr std::array<std::string_view, 1> kNames{"rate"};
    return kNames;
  }
  std::span<const std::string_view> slot_names() const final { return {}; }
  std::vector<at::Tensor> create_slots(const at::Tensor&, std::span<const double>) const final {
    return {};
  }
};

}  // namespace cohort::testing
