// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/parallel/interleave_sources.h"

#include <algorithm>

namespace cohort::data {
namespace {

// Limits for reading ahead: in elements of each dataset, and in bytes of all datasets together (but
// one element is always read if next() waits for it).
constexpr std::int64_t kAheadMin = 16;
constexpr std::int64_t kAheadMax = 1024;
constexpr std::size_t kAheadBytesMax = 256 << 20;

}  // namespace

void InterleaveSource::fail() {
  ready.push_back({.error = std::current_exception()});
  has_failed = true;
  is_ended = true;
}

InterleaveSources::InterleaveSources(Options options)
    : options_(std::move(options)),
      elements_max_(
          static_cast<std::size_t>(std::clamp(options_.order.block_length, kAheadMin, kAheadMax))) {
}

bool InterleaveSources::is_exhausted() const { return has_no_more() && open_.empty(); }

void InterleaveSources::note(std::size_t place) {
  ++noted_count_;
  const InterleaveSource* source = slots_[place].get();
  const bool is_empty = source != nullptr && source->ready.empty();
  const bool may_grow = source != nullptr && !source->is_busy && !source->is_ended;
  open_.put(place, source != nullptr);
  free_.put(place, source == nullptr);
  ready_.put(place, source != nullptr && !is_empty);
  done_.put(place, is_empty && source->is_ended);
  hungry_.put(place, is_empty && may_grow);
  growing_.put(place, !is_empty && may_grow && source->ready.size() < elements_max_);
}

void InterleaveSources::append_slot() {
  slots_.emplace_back();
  note(slots_.size() - 1);
}

void InterleaveSources::empty_slot(std::size_t place) {
  slots_[place].reset();
  note(place);
}

// --- what comes next -------------------------------------------------------------------------

InterleaveSources::Taken InterleaveSources::take(Item& item) {
  const Taken taken = options_.is_deterministic ? take_in_order(item) : take_any(item);
  if (taken == Taken::element) bytes_ -= item.byte_count();
  return taken;
}

InterleaveSources::Taken InterleaveSources::take_in_order(Item& item) {
  while (!is_exhausted()) {
    if (position_ == slots_.size()) append_slot();
    if (!has_turn()) return Taken::nothing_yet;
    const SourcePtr& slot = slots_[position_];
    if (!slot) {
      if (!refill(position_)) leave();
      continue;
    }
    if (slot->ready.empty()) {
      empty_slot(position_);
      leave();
      continue;
    }
    take_from(position_, item);
    if (!item.error && ++taken_ == options_.order.block_length) leave();
    return Taken::element;
  }
  return Taken::end;
}

// Whether the slot in turn is known to have an element or to have none.
bool InterleaveSources::has_turn() const {
  const SourcePtr slot = position_ < slots_.size() ? slots_[position_] : nullptr;
  if (!slot) return is_input_at_end_ || !upcoming_.empty();
  return slot->is_ended || !slot->ready.empty();
}

// Also visits the slots in turn, but skips those without a ready element.
InterleaveSources::Taken InterleaveSources::take_any(Item& item) {
  open_free_slots();
  if (is_exhausted()) return Taken::end;
  const std::optional<std::size_t> place = ready_.next(position_);
  if (!place || *place != position_) taken_ = 0;
  if (!place) return Taken::nothing_yet;
  position_ = *place;
  take_from(position_, item);
  if (++taken_ == options_.order.block_length) leave();
  return Taken::element;
}

bool InterleaveSources::is_anything_new() const {
  return !ready_.empty() || !done_.empty() || (has_room() && !upcoming_.empty()) || is_exhausted();
}

void InterleaveSources::leave() {
  taken_ = 0;
  const bool is_last =
      position_ + 1 == cycle_length() || (has_no_more() && position_ + 1 >= slots_.size());
  position_ = is_last ? 0 : position_ + 1;
  // Slots that stay empty are passed over, however many they are.
  if (has_no_more()) position_ = open_.next(position_).value_or(0);
}

void InterleaveSources::take_from(std::size_t place, Item& item) {
  InterleaveSource& source = *slots_[place];
  item = std::move(source.ready.front());
  source.ready.pop_front();
  if (source.has_failed) slots_[place].reset();
  note(place);
}

void InterleaveSources::open_free_slots() {
  while (true) {
    while (const auto done = done_.next(0)) empty_slot(*done);
    if (upcoming_.empty() || !has_room()) return;
    if (free_.empty()) append_slot();
    refill(*free_.next(0));
  }
}

bool InterleaveSources::refill(std::size_t place) {
  if (upcoming_.empty()) return false;
  slots_[place] = std::move(upcoming_.front());
  upcoming_.pop_front();
  slots_[place]->place = place;
  note(place);
  options_.on_room();
  return true;
}

// --- what is read next -----------------------------------------------------------------------

void InterleaveSources::add(SourcePtr source) {
  source->index = next_index_++;
  upcoming_.push_back(std::move(source));
}

void InterleaveSources::end_input() {
  ++next_index_;
  is_input_at_end_ = true;
}

InterleaveSources::SourcePtr InterleaveSources::wanted() const {
  const bool has_bytes = bytes_ < kAheadBytesMax;
  std::optional<std::size_t> place = hungry_.next(position_);
  if (has_bytes) {
    const std::size_t count = slots_.size();
    const auto turns_to = [&](std::size_t at) { return (at + count - position_ % count) % count; };
    const std::optional<std::size_t> grows = growing_.next(position_);
    if (grows && (!place || turns_to(*grows) < turns_to(*place))) place = grows;
  }
  if (place) return slots_[*place];
  for (const SourcePtr& source : upcoming_) {
    if (!source->is_busy && !source->is_ended && source->ready.size() < elements_max_ && has_bytes)
      return source;
  }
  return nullptr;
}

void InterleaveSources::begin_reading(InterleaveSource& source) {
  source.is_busy = true;
  if (source.place) note(*source.place);
}

void InterleaveSources::end_reading(InterleaveSource& source, std::vector<Item> items) {
  for (Item& item : items) {
    bytes_ += item.byte_count();
    source.ready.push_back(std::move(item));
  }
  source.is_busy = false;
  if (source.place) note(*source.place);
}

// --- positions -------------------------------------------------------------------------------

void InterleaveSources::describe_position(Position& at, DatasetOpener& opener) {
  at(next_index_);
  opener.describe_position(at, is_input_at_end_);
  at(position_, taken_);
  if (at.is_restored()) {
    bytes_ = 0;
    for (PositionSet* places : {&open_, &free_, &ready_, &done_, &hungry_, &growing_})
      places->clear();
  }
  for (auto* sources : {&slots_, &upcoming_}) {
    at.list(*sources, 1, [&](SourcePtr& source) { describe_source(at, opener, source); });
  }
  if (!at.is_restored()) return;
  for (std::size_t place = 0; place < slots_.size(); ++place) {
    if (slots_[place]) slots_[place]->place = place;
    note(place);
  }
  at.check(options_.order.has_place(position_, slots_.size(), taken_) &&
               std::ranges::count(upcoming_, nullptr) == 0,
           "a position in the cycle");
}

void InterleaveSources::describe_source(Position& at, DatasetOpener& opener, SourcePtr& source) {
  bool is_there = source != nullptr;
  at(is_there);
  if (!is_there) return;
  if (at.is_restored()) source = std::make_shared<InterleaveSource>();
  at(source->index, source->element, source->has_failed, source->is_ended);
  at.list(source->ready, 2, [&](Item& item) {
    at(item);
    if (at.is_restored()) bytes_ += item.byte_count();
  });
  at.check(!source->has_failed || source->ready.size() == 1, "one error");
  bool is_running = source->dataset && !source->is_ended;
  at(is_running);
  if (!is_running) return;
  if (at.is_restored()) source->dataset = opener.open(source->element, source->index);
  at(*source->dataset);
}

}  // namespace cohort::data
