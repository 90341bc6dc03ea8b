// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/iterators/read_ahead.h"

#include <optional>
#include <utility>

#include "cohort/core/error_bytes.h"
#include "cohort/core/start_thread.h"

namespace cohort::input {

ReadAhead::ReadAhead(std::stop_source source_stop, std::unique_ptr<data::ElementSource> source,
                     std::size_t elements_max)
    : source_stop_(std::move(source_stop)),
      source_(std::move(source)),
      elements_max_(elements_max) {}

bool ReadAhead::next(Fields& fields) {
  if (elements_max_ > 0 && !thread_.joinable()) start();
  Item item;
  {
    const Lock lock(mutex_);
    if (elements_max_ > 0) {
      changed_.wait(mutex_, Deadline(),
                    [this]() COHORT_REQUIRES(mutex_) { return !ready_.empty() || is_at_end_; });
    }
    if (ready_.empty()) {
      if (is_at_end_) return false;
      is_at_end_ = !source_->next(fields);  // there is no thread
      return !is_at_end_;
    }
    item = std::move(ready_.front());
    ready_.pop_front();
  }
  changed_.notify_all();
  if (item.error) std::rethrow_exception(item.error);
  fields = std::move(item.fields);
  return true;
}

void ReadAhead::save(ByteWriter& writer) const {
  stop();
  const Lock lock(mutex_);
  writer.varint(ready_.size());
  for (const Item& item : ready_) {
    std::optional<Error> error;
    if (item.error) error = error_in(item.error);
    write_optional_error(writer, error);
    if (!error) data::write_fields(writer, item.fields);
  }
  source_->save(writer);
}

void ReadAhead::restore(ByteReader& reader) {
  stop();
  const Lock lock(mutex_);
  ready_.clear();
  is_at_end_ = false;
  for (std::size_t left = reader.count(2); left > 0; --left) {
    Item& item = ready_.emplace_back();
    if (std::optional<Error> error = read_optional_error(reader)) {
      item.error = std::make_exception_ptr(*std::move(error));
    } else {
      item.fields = data::read_fields(reader);
    }
  }
  source_->restore(reader);
}

void ReadAhead::start() {
  {
    const Lock lock(mutex_);
    must_stop_ = false;
    if (is_at_end_) return;
  }
  thread_ = start_thread("to read ahead", [this] { produce(); });
}

void ReadAhead::stop() const {
  {
    const Lock lock(mutex_);
    must_stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool ReadAhead::wait_for_room() {
  const Lock lock(mutex_);
  changed_.wait(mutex_, Deadline(), [this]() COHORT_REQUIRES(mutex_) {
    return must_stop_ || ready_.size() < elements_max_;
  });
  return !must_stop_;
}

void ReadAhead::produce() {
  while (wait_for_room()) {
    Item item;
    bool has_item = true;
    try {
      has_item = source_->next(item.fields);
    } catch (...) {
      item.error = std::current_exception();
    }
    {
      const Lock lock(mutex_);
      if (has_item) ready_.push_back(std::move(item));
      is_at_end_ = !has_item;
    }
    changed_.notify_all();
    if (!has_item) return;
  }
}

}  // namespace cohort::input
