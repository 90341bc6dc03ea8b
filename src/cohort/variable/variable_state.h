// SPDX-License-Identifier: Apache-2.0
// A value with the slots of the optimizers that update it, wherever a variable's value is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/export.h"
#include "cohort/variable/update_rule.h"

namespace cohort {

class UpdateCounter;  // variable/hyperparameter.h
class VariableImpl;   // variable/variable.h

// Variables of one optimizer that do not all have the same hyperparameters. Where calls have those
// of an optimizer, they have those of its groups, too: first
// the optimizer's own, then those of group 1, 2, …, each in the rule's order. Immutable, and
// thread-safe.
class HyperGroups {
 public:
  using Numbers = std::unordered_map<const VariableImpl*, std::size_t>;
  // `size`: the number of the rule's hyperparameters. A variable that is not in `numbers` has the
  // optimizer's own.
  HyperGroups(std::size_t size, Numbers numbers) : size_(size), numbers_(std::move(numbers)) {}

  std::size_t number_of(const VariableImpl* variable) const {
    const auto found = numbers_.find(variable);
    return found == numbers_.end() ? 0 : found->second;
  }
  // The hyperparameters of a variable.
  template <class T>
  std::span<const T> of(const VariableImpl* variable, std::span<const T> all) const {
    const std::size_t begin = number_of(variable) * size_;
    // A wrong number of them is refused where they are used.
    return begin + size_ <= all.size() ? all.subspan(begin, size_) : all;
  }

 private:
  const std::size_t size_;
  const Numbers numbers_;
};

// An update rule, and the name of the optimizer whose slots it uses.
struct SlotKey {
  const variable::UpdateRule& rule;
  std::string_view optimizer;
  // The counter of the optimizer. A home that makes an update for several replicas at once counts
  // it there, before one of them goes on to the next.
  UpdateCounter* counter = nullptr;
  // For a sparse gradient: rows without a gradient stay as they are, whatever the rule is.
  bool lazy_rows = false;
  // nullptr: all variables of the optimizer have the same hyperparameters.
  std::shared_ptr<const HyperGroups> groups = nullptr;

  // The hyperparameters of a variable, of all that a call has.
  template <class T>
  std::span<const T> hyper_of(const VariableImpl* variable, std::span<const T> all) const {
    return groups == nullptr ? all : groups->of(variable, all);
  }
  internal::SlotOwner owner() const { return {rule.name(), optimizer, lazy_rows}; }
};

// The values of a gradient as rules take them: row-major, and without a graph. The tensor itself if
// it is like that, else a copy or a view. A sparse one stays sparse.
COHORT_API at::Tensor plain_gradient(const at::Tensor& gradient);

// Elements of a value, in row-major order.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};
// They share their memory with the tensor, which must be row-major.
COHORT_API at::Tensor elements_of(const at::Tensor& tensor, ElementRange range);

// Memory for tensors like this one, but with another number of rows.
COHORT_API at::Tensor memory_for_rows(const at::Tensor& like, std::int64_t rows);

// How many rows of this size an update copies out, changes and copies back at once: so many as stay
// in a processor's cache meanwhile; at least 1.
COHORT_API std::int64_t rows_in_cache(std::uint64_t row_bytes);

// An update has two steps, so that several can be made together or not at all: reserve() checks and
// allocates what the update needs, but changes nothing; then apply() cannot fail.
// Thread-compatible: the owner locks.
class COHORT_API VariableState {
 public:
  struct RuleSlots {
    std::string rule;
    std::vector<at::Tensor> tensors;
    // For each tensor whether it has only a range of the elements; empty: none of them.
    std::vector<bool> are_parts = {};
    bool is_part() const;
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
  // The slots themselves. Throws unimplemented, naming `variable_name`, if some are of a range.
  std::vector<internal::OptimizerSlots> all_slots(std::string_view variable_name) const;
  // The same with undefined tensors in the place of those that are of a range.
  std::vector<internal::OptimizerSlots> slots_with_gaps() const;
  // Makes the slots those of another process, or of another replica, with the same value. They are
  // copied into slots that exist, and new ones become copies, or with `may_keep` the given tensors.
  void take_slots(std::span<const internal::OptimizerSlots> slots, bool may_keep);
  // The slots for import_slots(): those that exist, and zeros where these do not exist yet. Unless
  // the given ones `are_whole`, they are rows, and the result has all rows of the value.
  Slots slots_for(std::span<const internal::OptimizerSlots> slots, bool are_whole) const;
  // Makes `all` the slots, and copies the given ones into them; rows begin at this row of the
  // value.
  void import_slots(Slots all, std::span<const internal::OptimizerSlots> slots,
                    std::int64_t first_row);

  // An update with its memory, for one apply().
  struct Reserve {
    Fresh slots;
    at::Tensor gradient;      // of all elements, or of the rows
    at::Tensor row_ids = {};  // int64 [n], each row once; undefined: all rows
  };
  // `gradient`: from prepared_gradient(). already_exists, naming `variable_name`, if this optimizer
  // has slots of another rule; unimplemented if it has slots of a range.
  Reserve reserve(const SlotKey& key, const at::Tensor& gradient, std::span<const double> hyper,
                  std::string_view variable_name) const;
  // The same for rows of the value, without a sparse tensor: each of the ids, int64 [n], once and
  // ascending, and checked.
  Reserve reserve_rows(const SlotKey& key, at::Tensor row_ids, at::Tensor gradient,
                       std::span<const double> hyper, std::string_view variable_name) const;
  // Writes the new value into `new_value`, which is value() itself or shares no memory with it. If
  // two updates were reserved together, the second uses the slots of the first.
  void apply(const SlotKey& key, Reserve reserve, at::Tensor& new_value,
             std::span<const double> hyper);

  // The same for a range of the elements, which is always the same one: other processes have the
  // rest of the slots. The new values of the range go into `new_part`.
  void check_rule(const SlotKey& key, std::string_view variable_name) const;
  Fresh reserve_part(const SlotKey& key, std::span<const double> hyper,
                     std::string_view variable_name, ElementRange range) const;
  void apply_part(const SlotKey& key, Fresh fresh, at::Tensor& new_part,
                  const at::Tensor& gradient_part, std::span<const double> hyper,
                  ElementRange range);
  // If there are whole slots, keeps only this range of them.
  void cut_slots(const SlotKey& key, std::span<const double> hyper, ElementRange range);
  void drop_slots(const SlotKey& key);
  // Replaces a part of a slot by the whole slot.
  void replace_slot(const std::string& optimizer, std::size_t number, at::Tensor whole);

  // Copies the value and these slots of `first`, which may be on another device. `reserve`: as for
  // apply().
  void follow(const VariableState& first, const SlotKey& key, Reserve reserve);

 private:
  Fresh reserve_slots(const SlotKey& key, std::span<const double> hyper,
                      std::string_view variable_name) const;
  const RuleSlots* find(std::string_view optimizer, std::string_view rule) const;
  RuleSlots* find(std::string_view optimizer, std::string_view rule) {
    return const_cast<RuleSlots*>(std::as_const(*this).find(optimizer, rule));
  }
  // The slot of this number, or an undefined tensor unless there is one of these sizes.
  at::Tensor find_slot(std::string_view optimizer, std::string_view rule, std::size_t number,
                       at::IntArrayRef sizes) const;
  RuleSlots& made(const SlotKey& key, Fresh fresh);

  at::Tensor value_;
  Slots slots_;
};

}  // namespace cohort
