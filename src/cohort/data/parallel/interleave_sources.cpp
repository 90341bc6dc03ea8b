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

void write_source(ByteWriter& writer, const InterleaveSource* source) {
  writer.u8(source != nullptr ? 1 : 0);
  if (source == nullptr) return;
  writer.varint(source->index);
  write_fields(writer, source->element);
  writer.u8(source->has_failed ? 1 : 0);
  writer.u8(source->is_ended ? 1 : 0);
  writer.varint(source->ready.size());
  for (const Item& item : source->ready) write_item(writer, item);
  const bool is_running = source->dataset && !source->is_ended;
  writer.u8(is_running ? 1 : 0);
  if (is_running) source->dataset->save(writer);
}

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

void InterleaveSources::save(ByteWriter& writer, const DatasetOpener& opener) const {
  writer.varint(next_index_);
  opener.save(writer, is_input_at_end_);
  writer.varint(position_);
  writer.zigzag(taken_);
  for (const auto* sources : {&slots_, &upcoming_}) {
    writer.varint(sources->size());
    for (const auto& source : *sources) write_source(writer, source.get());
  }
}

void InterleaveSources::restore(ByteReader& reader, DatasetOpener& opener) {
  next_index_ = reader.varint();
  is_input_at_end_ = opener.restore(reader);
  position_ = reader.varint();
  taken_ = reader.zigzag();
  bytes_ = 0;
  for (PositionSet* places : {&open_, &free_, &ready_, &done_, &hungry_, &growing_})
    places->clear();
  for (auto* sources : {&slots_, &upcoming_}) {
    sources->clear();
    for (std::size_t left = reader.count(); left > 0; --left) {
      sources->push_back(read_source(reader, opener));
    }
  }
  for (std::size_t place = 0; place < slots_.size(); ++place) {
    if (slots_[place]) slots_[place]->place = place;
    note(place);
  }
  if (!options_.order.has_place(position_, slots_.size(), taken_) ||
      std::count(upcoming_.begin(), upcoming_.end(), nullptr) > 0) {
    reader.fail("a position in the cycle");
  }
}

InterleaveSources::SourcePtr InterleaveSources::read_source(ByteReader& reader,
                                                            DatasetOpener& opener) {
  if (reader.u8() == 0) return nullptr;
  auto source = std::make_shared<InterleaveSource>();
  source->index = reader.varint();
  source->element = read_fields(reader);
  source->has_failed = reader.u8() != 0;
  source->is_ended = reader.u8() != 0;
  for (std::size_t left = reader.count(2); left > 0; --left) {
    source->ready.push_back(read_item(reader));
    bytes_ += source->ready.back().byte_count();
  }
  if (source->has_failed && source->ready.size() != 1) reader.fail("one error");
  if (reader.u8() != 0) {
    source->dataset = opener.open(source->element, source->index);
    source->dataset->restore(reader);
  }
  return source;
}

}  // namespace cohort::data
