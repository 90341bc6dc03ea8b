// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/multi_device_iterator.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"

namespace cohort {

MultiDeviceIterator::MultiDeviceIterator(std::unique_ptr<data::ElementSource> source,
                                         std::vector<Device> devices, MultiDeviceOptions options)
    : source_(std::move(source)),
      devices_(std::move(devices)),
      options_(std::move(options)),
      queues_(devices_.size()) {
  COHORT_CHECK(!devices_.empty(), ErrorCode::invalid_argument,
               "[input.multi_device] expected at least one device, got none");
  COHORT_CHECK(options_.buffer_size >= 0, ErrorCode::invalid_argument,
               "[input.multi_device] expected buffer_size >= 0, got ", options_.buffer_size);
  for (const Device& device : devices_) {
    is_fetching_.push_back(options_.fetch_to_device && !options_.memory->is_host(device));
  }
}

bool MultiDeviceIterator::deal_one() {
  if (is_at_end_) return false;
  Item item{.number = num_assigned_, .host = {}};
  try {
    is_at_end_ = !source_->next(item.host);
  } catch (...) {
    if (options_.error_turn == ErrorTurn::round) discard_round();
    throw;
  }
  if (is_at_end_) return false;
  queues_[num_assigned_ % devices_.size()].push_back(std::move(item));
  num_assigned_ += 1;
  return true;
}

// Drops the rest of the round whose next element failed.
void MultiDeviceIterator::discard_round() {
  const std::uint64_t drawn = num_assigned_ % devices_.size();
  num_assigned_ -= drawn;
  for (std::size_t i = 0; i < drawn; ++i) {
    if (!queues_[i].empty() && queues_[i].back().number == num_assigned_ + i) queues_[i].pop_back();
  }
  Fields fields;
  for (std::uint64_t left = devices_.size() - drawn - 1; left > 0; --left) {
    try {
      if (!source_->next(fields)) break;
    } catch (...) {
      // The round is lost already.
    }
  }
}

void MultiDeviceIterator::fetch(std::size_t i, Item& item) const {
  if (item.is_fetched) return;
  Fields fields;
  for (const at::Tensor& field : item.host) {
    fields.push_back(StringTensor::is(field) ? field : options_.memory->copy(field, devices_[i]));
  }
  item.device = std::move(fields);
  item.is_fetched = true;
}

// Draws and copies what device i will ask for next, so that copying overlaps with its work.
void MultiDeviceIterator::fetch_ahead(std::size_t i) {
  if (!is_fetching_[i]) return;
  const auto wanted = static_cast<std::size_t>(options_.buffer_size);
  try {
    while (queues_[i].size() < wanted && !error_ahead_ && deal_one()) {
    }
  } catch (...) {
    error_ahead_ = std::current_exception();
  }
  try {
    for (std::size_t k = 0; k < std::min(wanted, queues_[i].size()); ++k) fetch(i, queues_[i][k]);
  } catch (...) {
    // front() copies again, and throws if that fails too.
  }
}

bool MultiDeviceIterator::has(std::size_t i) {
  COHORT_CHECK(i < devices_.size(), ErrorCode::invalid_argument,
               "[input.multi_device] expected a device below ", devices_.size(), ", got ",
               static_cast<std::int64_t>(i), "; devices are counted from 0");
  while (queues_[i].empty()) {
    if (error_ahead_) std::rethrow_exception(std::exchange(error_ahead_, nullptr));
    if (!deal_one()) return false;
  }
  return true;
}

const Fields* MultiDeviceIterator::front(std::size_t i) {
  if (!has(i)) return nullptr;
  Item& item = queues_[i].front();
  if (!is_fetching_[i]) return &item.host;
  fetch(i, item);
  return &item.device;
}

void MultiDeviceIterator::pop(std::size_t i) {
  COHORT_ASSERT(!queues_[i].empty());
  queues_[i].pop_front();
  fetch_ahead(i);
}

std::vector<Fields> MultiDeviceIterator::undelivered() const {
  std::vector<const Item*> items;
  for (const std::deque<Item>& queue : queues_) {
    for (const Item& item : queue) items.push_back(&item);
  }
  std::ranges::sort(items, {}, [](const Item* item) { return item->number; });
  std::vector<Fields> elements;
  for (const Item* item : items) elements.push_back(item->host);
  return elements;
}

void MultiDeviceIterator::requeue(std::vector<Fields> elements) {
  for (std::deque<Item>& queue : queues_) queue.clear();
  error_ahead_ = nullptr;
  is_at_end_ = false;
  num_assigned_ = 0;
  for (Fields& fields : elements) {
    queues_[num_assigned_ % devices_.size()].push_back(
        {.number = num_assigned_, .host = std::move(fields)});
    num_assigned_ += 1;
  }
}

}  // namespace cohort
