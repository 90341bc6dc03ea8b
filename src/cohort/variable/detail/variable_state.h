// SPDX-License-Identifier: Apache-2.0
// A value with the slots of the optimizers that update it, wherever a variable's value is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/variable/update_rule.h"

namespace cohort {

// An update rule, and the name of the optimizer whose slots it uses.
struct SlotKey {
  const variable::UpdateRule& rule;
  std::string_view optimizer;
};

// The values of a gradient as rules take them: row-major, and without a graph. The tensor itself if
// it is like that, else a copy or a view.
COHORT_API at::Tensor plain_gradient(const at::Tensor& gradient);
// The values of a sparse COO gradient, whose rows may come several times: the sum of each. Use this
// in place of to_dense(), with which LibTorch 1.13 loses one number that autograd has expanded.
COHORT_API at::Tensor dense_of(const at::Tensor& gradient);

// An update has two steps, so that several can be made together or not at all: reserve() checks and
// allocates what the update needs, but changes nothing; then apply() cannot fail.
// Thread-compatible: the owner locks.
class COHORT_API VariableState {
 public:
  struct RuleSlots {
    std::string rule;
    std::vector<at::Tensor> tensors;
  };
  // By the name of their optimizer, which has one rule.
  using Slots = std::multimap<std::string, RuleSlots, std::less<>>;
  // The slots of a first update; empty if there are slots already.
  using Fresh = Slots::node_type;

  explicit VariableState(at::Tensor value) : value_(std::move(value)) {}

  const at::Tensor& value() const { return value_; }
  // Makes `next` the value and returns the one before.
  at::Tensor exchange(at::Tensor next) { return std::exchange(value_, std::move(next)); }
  const Slots& slots() const { return slots_; }
  // Makes the slots those of another process, or of another replica, with the same value. They are
  // copied into slots that exist, and new ones become copies, or with `may_keep` the given tensors.
  void take_slots(const Slots& slots, bool may_keep);

  // already_exists, naming `variable_name`, if this optimizer has slots of another rule.
  Fresh reserve(const SlotKey& key, std::span<const double> hyper,
                std::string_view variable_name) const;
  // Writes the new value into `new_value`, which is value() itself or shares no memory with it. If
  // two updates were reserved together, the second uses the slots of the first.
  void apply(const SlotKey& key, Fresh fresh, at::Tensor& new_value, const at::Tensor& gradient,
             std::span<const double> hyper);
  // Copies the value and these slots of `first`, which may be on another device. `fresh`: as for
  // apply().
  void follow(const VariableState& first, const SlotKey& key, Fresh fresh);

 private:
  RuleSlots* find(const SlotKey& key);
  RuleSlots& made(const SlotKey& key, Fresh fresh);

  at::Tensor value_;
  Slots slots_;
};

}  // namespace cohort
