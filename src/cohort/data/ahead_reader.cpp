// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/ahead_reader.h"

#include <chrono>
#include <exception>
#include <utility>

#include "cohort/core/spin.h"

namespace cohort::data {
namespace {

constexpr auto kAwake = std::chrono::microseconds(50);
constexpr int kWaitsToSleep = 16;

}  // namespace

std::optional<Item> AheadReader::take() {
  if (limits_.elements == 0) {
    if (!has_news_) read();
  } else if (!has_threads()) {
    const Lock lock(mutex_);
    if (!is_at_end_)
      start(1, [this] {
        while (wait_for_room() && read()) {
        }
      });
  }
  await_briefly();
  std::optional<Item> item;
  {
    const Lock lock(mutex_);
    wait_to_take([this]() COHORT_REQUIRES(mutex_) { return !ready_.empty() || is_at_end_; });
    if (is_cancelled() || ready_.empty()) return std::nullopt;
    item = std::move(ready_.front());
    ready_.pop_front();
    has_news_ = !ready_.empty() || is_at_end_;
    bytes_ -= item->byte_count();
  }
  room_.notify_one();
  return item;
}

bool AheadReader::is_at_end() const {
  stop();
  const Lock lock(mutex_);
  return is_at_end_;
}

void AheadReader::save(ByteWriter& writer) const {
  stop();
  const Lock lock(mutex_);
  writer.varint(ready_.size());
  for (const Item& item : ready_) write_item(writer, item);
  source_.save(writer);
}

void AheadReader::restore(ByteReader& reader, bool is_at_end) {
  stop();
  const Lock lock(mutex_);
  ready_.clear();
  bytes_ = 0;
  is_at_end_ = is_at_end;
  for (std::size_t left = reader.count(2); left > 0; --left) push(read_item(reader));
  has_news_ = !ready_.empty() || is_at_end_;
  source_.restore(reader);
}

// Sleeping and waking takes longer than making a small batch, so this first spins. If nothing
// arrives while it spins, the next kWaitsToSleep waits sleep at once.
void AheadReader::await_briefly() {
  if (has_news_ || waits_to_sleep_-- > 0) return;
  waits_to_sleep_ = spin_for(kAwake, [this] { return has_news_.load(); }) ? 0 : kWaitsToSleep;
}

void AheadReader::push(Item item) {
  bytes_ += item.byte_count();
  ready_.push_back(std::move(item));
}

bool AheadReader::wait_for_room() {
  const Lock lock(mutex_);
  return WorkThreads::wait_for_room([this]() COHORT_REQUIRES(mutex_) {
    return ready_.empty() || (ready_.size() < limits_.elements && bytes_ < limits_.bytes);
  });
}

// False at the end.
bool AheadReader::read() {
  Item item;
  bool has_item = true;
  try {
    has_item = source_.next(item.fields);
  } catch (...) {
    item.error = std::current_exception();
  }
  {
    const Lock lock(mutex_);
    if (has_item) push(std::move(item));
    is_at_end_ = !has_item;
    has_news_ = true;
  }
  ready_to_take_.notify_one();
  return has_item;
}

}  // namespace cohort::data
