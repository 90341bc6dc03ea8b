// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/internal/parallel/interleave_sources.h"

#include <algorithm>

#include "cohort/data/internal/nest_codec.h"

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

bool InterleaveSources::is_exhausted() const {
  return is_input_at_end_ && upcoming_.empty() &&
         std::all_of(slots_.begin(), slots_.end(), [](const auto& slot) { return !slot; });
}

// --- what comes next -------------------------------------------------------------------------

InterleaveSources::Taken InterleaveSources::take(Item& item) {
  const Taken taken = options_.is_deterministic ? take_in_order(item) : take_any(item);
  if (taken == Taken::element) bytes_ -= item.byte_count();
  return taken;
}

InterleaveSources::Taken InterleaveSources::take_in_order(Item& item) {
  while (!is_exhausted()) {
    if (position_ == slots_.size()) slots_.emplace_back();
    if (!has_turn()) return Taken::nothing_yet;
    SourcePtr& slot = slots_[position_];
    if (!slot) {
      if (!refill(slot)) leave();
      continue;
    }
    if (slot->ready.empty()) {
      slot.reset();
      leave();
      continue;
    }
    take_from(slot, item);
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
  do {
    open_free_slots();
    if (is_exhausted()) return Taken::end;
    for (std::size_t visits = slots_.size(); visits > 0; --visits) {
      if (position_ >= slots_.size()) position_ = 0;
      SourcePtr& slot = slots_[position_];
      if (slot && !slot->ready.empty()) {
        take_from(slot, item);
        if (++taken_ == options_.order.block_length) leave();
        return Taken::element;
      }
      leave();
    }
  } while (is_anything_new());
  return Taken::nothing_yet;
}

bool InterleaveSources::is_anything_new() const {
  std::size_t free = cycle_length() - slots_.size();
  for (const SourcePtr& slot : slots_) {
    if (!slot) {
      ++free;
    } else if (slot->is_ended || !slot->ready.empty()) {
      return true;
    }
  }
  return (free > 0 && !upcoming_.empty()) || is_exhausted();
}

void InterleaveSources::leave() {
  taken_ = 0;
  const bool has_no_more = is_input_at_end_ && upcoming_.empty();
  const bool is_last =
      position_ + 1 == cycle_length() || (has_no_more && position_ + 1 >= slots_.size());
  position_ = is_last ? 0 : position_ + 1;
}

void InterleaveSources::take_from(SourcePtr& slot, Item& item) {
  item = std::move(slot->ready.front());
  slot->ready.pop_front();
  if (slot->has_failed) slot.reset();
}

void InterleaveSources::open_free_slots() {
  for (SourcePtr& slot : slots_) {
    if (slot && slot->is_ended && slot->ready.empty()) slot.reset();
    if (!slot) refill(slot);
  }
  while (!upcoming_.empty() && slots_.size() < cycle_length()) {
    slots_.emplace_back();
    refill(slots_.back());
  }
}

bool InterleaveSources::refill(SourcePtr& slot) {
  if (upcoming_.empty()) return false;
  slot = std::move(upcoming_.front());
  upcoming_.pop_front();
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
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const SourcePtr& slot = slots_[(position_ + i) % slots_.size()];
    if (slot && wants_elements(*slot, true)) return slot;
  }
  for (const SourcePtr& source : upcoming_) {
    if (wants_elements(*source, false)) return source;
  }
  return nullptr;
}

bool InterleaveSources::wants_elements(const InterleaveSource& source, bool is_in_slot) const {
  if (source.is_busy || source.is_ended) return false;
  if (source.ready.empty() && is_in_slot) return true;
  return source.ready.size() < elements_max_ && bytes_ < kAheadBytesMax;
}

void InterleaveSources::add_elements(InterleaveSource& source, std::vector<Item> items) {
  for (Item& item : items) {
    bytes_ += item.byte_count();
    source.ready.push_back(std::move(item));
  }
}

// --- positions -------------------------------------------------------------------------------

void InterleaveSources::save(ByteWriter& writer) const {
  writer.varint(next_index_);
  writer.u8(is_input_at_end_ ? 1 : 0);
  writer.varint(position_);
  writer.zigzag(taken_);
  for (const auto* sources : {&slots_, &upcoming_}) {
    writer.varint(sources->size());
    for (const auto& source : *sources) write_source(writer, source.get());
  }
}

void InterleaveSources::restore(ByteReader& reader, DatasetOpener& opener) {
  next_index_ = reader.varint();
  is_input_at_end_ = reader.u8() != 0;
  position_ = reader.varint();
  taken_ = reader.zigzag();
  bytes_ = 0;
  for (auto* sources : {&slots_, &upcoming_}) {
    sources->clear();
    for (std::size_t left = reader.count(); left > 0; --left) {
      sources->push_back(read_source(reader, opener));
    }
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
