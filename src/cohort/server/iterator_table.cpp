// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/iterator_table.h"

namespace cohort::server {

WorkerIterator::WorkerIterator(const rpc::IteratorSpec& spec, const RunOptions& options) {
  try {
    source_ = Dataset::deserialize(spec.dataset).source(options);
  } catch (...) {
    broken_ = current_error()
                  .during("building the iterator's pipeline")
                  .because(ErrorCause::closure_input);
  }
}

bool WorkerIterator::draw(Fields& fields) {
  if (broken_) throw *broken_;
  return source_->next(fields);
}

Fields WorkerIterator::next() {
  const Lock lock(mutex_);
  Fields fields;
  if (!peeked_.empty()) {
    fields = std::move(peeked_.front());
    peeked_.pop_front();
    return fields;
  }
  COHORT_CHECK(draw(fields), ErrorCode::out_of_range,
               "[server.iterator_next] the data has ended; repeat() the dataset and schedule a "
               "fixed number of steps");
  return fields;
}

std::vector<Fields> WorkerIterator::peek(std::size_t count) {
  const Lock lock(mutex_);
  while (peeked_.size() < count) {
    Fields fields;
    if (!draw(fields)) break;
    peeked_.push_back(std::move(fields));
  }
  const std::size_t available = std::min(count, peeked_.size());
  return {peeked_.begin(), peeked_.begin() + static_cast<std::ptrdiff_t>(available)};
}

void IteratorTable::create(const rpc::IteratorSpec& spec, const RunOptions& options) {
  auto made = std::make_shared<WorkerIterator>(spec, options);
  const Lock lock(mutex_);
  iterators_[spec.id] = std::move(made);
}

std::shared_ptr<WorkerIterator> IteratorTable::find(std::uint64_t id) const {
  const Lock lock(mutex_);
  const auto found = iterators_.find(id);
  if (found == iterators_.end()) {
    throw Error(ErrorCode::not_found,
                "[server.find_iterator] no resource " + std::to_string(id) +
                    " here: this worker was restarted since it was created, or it was released",
                ErrorCause::handle_lost);
  }
  return found->second;
}

void IteratorTable::release(const std::vector<std::uint64_t>& ids) {
  const Lock lock(mutex_);
  for (const std::uint64_t id : ids) iterators_.erase(id);
}

std::size_t IteratorTable::size() const {
  const Lock lock(mutex_);
  return iterators_.size();
}

}  // namespace cohort::server
