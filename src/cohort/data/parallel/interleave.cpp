// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "cohort/data/graph/flat_map_base.h"

namespace cohort::data {
namespace {

class Interleave final : public Stage {
 public:
  Interleave(const FlatMapBase& node, const StageContext& context, const InterleaveOrder& order)
      : Stage(node),
        order_(order),
        opener_(node, context),
        input_(node.input().start(context.input(0))) {}

  // An error does not count towards the slot's turn.
  bool next(Fields& fields) override {
    while (!is_input_at_end_ || !open_.empty()) {
      check_cancelled();
      std::unique_ptr<Slot>* slot = current();
      if (slot == nullptr) {
        leave();
      } else if (*slot == nullptr) {
        fill(*slot);
      } else if ((*slot)->dataset->next(fields)) {
        if (++taken_ == order_.block_length) leave();
        return true;
      } else {
        slot->reset();
        open_.put(position_, false);
        leave();
      }
    }
    return false;
  }

  void describe_position(Position& at) override {
    at(next_index_);
    opener_.describe_position(at, is_input_at_end_);
    at(position_, taken_);
    if (at.is_restored()) open_.clear();
    at.list(slots_, 1, [&](std::unique_ptr<Slot>& slot) { describe_slot(at, slot); });
    at.check(order_.has_place(position_, slots_.size(), taken_), "a position in the cycle");
    at(*input_);
  }

 private:
  struct Slot {
    std::uint64_t index;
    Fields element;  // the input's element, from which a restore makes the dataset again
    std::unique_ptr<OpenDataset> dataset;
  };

  // The current slot; nullptr if it will always be empty. A slot exists only if it was current
  // before.
  std::unique_ptr<Slot>* current() {
    if (position_ == slots_.size() && !is_input_at_end_) slots_.emplace_back();
    const bool is_free = position_ == slots_.size() || !slots_[position_];
    return is_free && is_input_at_end_ ? nullptr : &slots_[position_];
  }

  void leave() {
    taken_ = 0;
    const bool is_last = position_ + 1 == static_cast<std::uint64_t>(order_.cycle_length) ||
                         (is_input_at_end_ && position_ + 1 >= slots_.size());
    position_ = is_last ? 0 : position_ + 1;
    // Slots that stay empty are passed over, however many they are.
    if (is_input_at_end_) position_ = open_.next(position_).value_or(0);
  }

  void fill(std::unique_ptr<Slot>& slot) {
    Fields element;
    const std::uint64_t index = next_index_++;
    if (!input_->next(element)) {
      is_input_at_end_ = true;
      return;
    }
    std::unique_ptr<OpenDataset> dataset = opener_.open(element, index);
    slot = std::make_unique<Slot>(Slot{index, std::move(element), std::move(dataset)});
    open_.put(position_, true);
  }

  // While positions are restored, `slot` will be the next one in the list.
  void describe_slot(Position& at, std::unique_ptr<Slot>& slot) {
    bool is_open = slot != nullptr;
    at(is_open);
    if (!is_open) return;
    if (at.is_restored()) slot = std::make_unique<Slot>();
    at(slot->index, slot->element);
    if (at.is_restored()) {
      slot->dataset = opener_.open(slot->element, slot->index);
      open_.put(slots_.size(), true);
    }
    at(*slot->dataset);
  }

  InterleaveOrder order_;
  DatasetOpener opener_;
  std::unique_ptr<Stage> input_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::uint64_t position_ = 0;
  std::int64_t taken_ = 0;  // elements of the current turn
  PositionSet open_;        // the slots that have a dataset
  std::uint64_t next_index_ = 0;
  bool is_input_at_end_ = false;
};

}  // namespace

std::unique_ptr<Stage> start_interleave(const FlatMapBase& node, const StageContext& context,
                                        const InterleaveOrder& order) {
  return std::make_unique<Interleave>(node, context, order);
}

}  // namespace cohort::data
