// SPDX-License-Identifier: Apache-2.0
// The made datasets of a parallel interleave, with the elements that were read ahead: says which
// element is the next one, and which dataset should be read next.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/data/graph/flat_map_base.h"
#include "cohort/data/parallel/item.h"

namespace cohort::data {

// A made dataset and the elements that were read from it, or the error that replaces it.
struct InterleaveSource {
  std::uint64_t index = 0;
  Fields element;
  std::unique_ptr<OpenDataset> dataset;  // used by the thread that is busy with it
  std::deque<Item> ready;
  std::optional<std::size_t> place;  // its slot; nullopt while it is upcoming
  bool is_busy = false;
  bool is_ended = false;    // no elements follow those in `ready`
  bool has_failed = false;  // it could not be opened: `ready` is the error, which uses up no turn

  // The current exception replaces the dataset.
  void fail();
};

// Slots in turn, refilled with the upcoming datasets, which are in the input's order.
// Thread-compatible: the stage locks it. It has no threads and does not wait. Many methods because
// what is taken, what is read next and the position are questions about the same slots.
class InterleaveSources {
 public:
  using SourcePtr = std::shared_ptr<InterleaveSource>;  // shared with the thread that reads it

  struct Options {
    InterleaveOrder order;
    bool is_deterministic = true;  // else skips slots without a ready element
    std::size_t upcoming_max = 1;
    // Called when a dataset moves to a slot, so that another one may be made.
    std::function<void()> on_room;
  };
  explicit InterleaveSources(Options options);

  enum class Taken : std::uint8_t { element, nothing_yet, end };
  Taken take(Item& item);
  // Whether take() would not return nothing_yet.
  bool can_take() const { return options_.is_deterministic ? has_turn() : is_anything_new(); }
  bool is_exhausted() const;

  bool wants_input() const { return !is_input_at_end_ && upcoming_.size() < options_.upcoming_max; }
  void add(SourcePtr source);
  void end_input();
  // Returns the dataset whose elements are needed first among those that no thread works on, or
  // null.
  SourcePtr wanted() const;
  // A thread works on the dataset from the first call to the second one.
  void begin_reading(InterleaveSource& source);
  void end_reading(InterleaveSource& source, std::vector<Item> items);

  void describe_position(Position& at, DatasetOpener& opener);

  // How often a slot was looked at so far, for tests of the costs.
  std::uint64_t noted_count() const { return noted_count_; }

 private:
  std::size_t cycle_length() const { return static_cast<std::size_t>(options_.order.cycle_length); }
  Taken take_in_order(Item& item);
  Taken take_any(Item& item);
  bool has_turn() const;
  bool is_anything_new() const;
  bool has_no_more() const { return is_input_at_end_ && upcoming_.empty(); }
  bool has_room() const { return !free_.empty() || slots_.size() < cycle_length(); }
  void leave();
  void take_from(std::size_t place, Item& item);
  void open_free_slots();
  bool refill(std::size_t place);
  void append_slot();
  void empty_slot(std::size_t place);
  // Updates the sets below after any change of this slot.
  void note(std::size_t place);
  void describe_source(Position& at, DatasetOpener& opener, SourcePtr& source);

  const Options options_;
  const std::size_t elements_max_;
  std::deque<SourcePtr> slots_;
  std::deque<SourcePtr> upcoming_;
  // Places in slots_, so that no call looks at all slots of a long cycle.
  PositionSet open_;     // with a dataset
  PositionSet free_;     // without one
  PositionSet ready_;    // with an element that was read
  PositionSet done_;     // whose dataset has ended
  PositionSet hungry_;   // without an element, and no thread reads one
  PositionSet growing_;  // which may read more ahead
  std::uint64_t noted_count_ = 0;
  std::uint64_t position_ = 0;
  std::int64_t taken_ = 0;  // in this turn
  std::uint64_t next_index_ = 0;
  std::size_t bytes_ = 0;  // of all ready elements
  bool is_input_at_end_ = false;
};

}  // namespace cohort::data
