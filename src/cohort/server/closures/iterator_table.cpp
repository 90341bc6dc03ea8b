// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/iterator_table.h"

#include <utility>

#include "cohort/core/log.h"
#include "cohort/core/start_thread.h"
#include "cohort/data/iterator.h"
#include "cohort/data/string_fields.h"
#include "cohort/server/closures/open_count.h"

namespace cohort::server {
namespace {

// How long a release waits for the end of the iterators, because the next call may need what they
// hold.
constexpr auto kMoment = std::chrono::milliseconds(500);

// Counts the threads that end iterators. Never destroyed, since these threads may outlive main().
OpenCount& ending() {
  static auto& instance = *new OpenCount();
  return instance;
}

// Counts the threads of use(). Never destroyed either.
OpenCount& in_use() {
  static auto& instance = *new OpenCount();
  return instance;
}

constexpr const char* kBuilding = "building the iterator's pipeline";

// As tf's ClosureInputError, whatever the reason is. An error that tells the loss of a task keeps
// its code, by which the coordinator sees that.
Error building_failed(const std::string& operation) {
  const Error reason = current_error();
  Error error = reason;
  if (reason.retry_class() != RetryClass::elsewhere) {
    error = Error(ErrorCode::failed_precondition, reason.message());
    for (const std::string& inner : reason.context()) error = Error(error).during(inner);
  }
  return std::move(error).during(operation).because(ErrorCause::closure_input);
}

}  // namespace

WorkerIterator::WorkerIterator(const rpc::IteratorSpec& spec, const IterationOptions& options,
                               data::ProgramSupply::Ask ask)
    : options_(options),
      is_value_(spec.is_value),
      files_(spec.epoch ? std::make_shared<data::OpenedFiles>(spec.files) : nullptr),
      supply_(std::make_shared<data::ProgramSupply>(std::move(ask))) {
  const Lock lock(mutex_);
  try {
    dataset_ = data::load_shipped(spec.dataset, supply_);
  } catch (...) {
    set_broken(building_failed(kBuilding));
    return;
  }
  start();
}

void WorkerIterator::start() {
  source_.reset();  // destroyed before the next one is made, as both may open the same file
  peeked_.clear();
  peeked_error_.reset();
  taken_ = 0;
  try {
    source_ = data::cancellable_source(*dataset_, options_, stop_.get_token(), files_);
    supply_->start();
  } catch (...) {
    set_broken(building_failed(kBuilding));
  }
}

void WorkerIterator::set_broken(const Error& error) {
  if (is_broken_) return;
  broken_ = error;
  is_broken_.store(true, std::memory_order_release);
}

void WorkerIterator::check_usable() const {
  if (is_broken_.load(std::memory_order_acquire)) throw Error(*broken_);
}

bool WorkerIterator::draw(Fields& fields) {
  if (broken_) throw *broken_;
  bool has_one = false;
  try {
    has_one = source_->next(fields);
  } catch (...) {
    check_in_use();
    check_files();
    throw;
  }
  // If the iterator was stopped meanwhile, elements may have been left out before this one.
  check_in_use();
  check_files();
  return has_one;
}

void WorkerIterator::check_in_use() const {
  COHORT_CHECK(!stop_.stop_requested(), ErrorCode::cancelled,
               "[server.iterator_next] expected an iterator in use, got one that was released, or "
               "whose coordinator has ended");
}

// Throws even if the pipeline has swallowed the error of a changed file.
void WorkerIterator::check_files() {
  try {
    if (files_) files_->check();
  } catch (...) {
    set_broken(current_error());
    throw;
  }
}

void WorkerIterator::end() noexcept {
  stop_.request_stop();  // before supply_ ends, so that draw() finds it
  supply_->end();
}

void WorkerIterator::throw_peeked_error() {
  if (peeked_error_) throw Error(*std::exchange(peeked_error_, std::nullopt));
}

// Takes the next element, whether it was peeked at or not; returns false at the end. Throws if the
// next item is an error.
bool WorkerIterator::take(Fields& fields) {
  ++taken_;
  if (!peeked_.empty()) {
    fields = std::move(peeked_.front());
    peeked_.pop_front();
    return true;
  }
  throw_peeked_error();
  if (draw(fields)) return true;
  --taken_;
  return false;
}

// Made by the first draw, and not when the iterator is created: user code may take any time.
Fields WorkerIterator::value() {
  if (broken_) throw Error(*broken_);
  if (value_) return *value_;
  try {
    Fields fields;
    COHORT_CHECK(draw(fields), ErrorCode::out_of_range,
                 "[server.iterator_next] expected a dataset of one element, got an empty one");
    data::check_no_strings(source_->pack(fields), "server.iterator_next");  // as in peek()
    value_ = std::move(fields);
  } catch (...) {
    if (stop_.stop_requested()) throw;
    set_broken(building_failed("making the per-worker value"));
    throw Error(*broken_);
  }
  return *value_;
}

Fields WorkerIterator::next() {
  const Lock lock(mutex_);
  if (is_value_) return value();
  Fields fields;
  COHORT_CHECK(
      take(fields), ErrorCode::out_of_range,
      "[server.iterator_next] expected an element, got the end of this worker's data after ",
      taken_,
      " elements; ClusterCoordinator::run_epoch() takes a dataset to its end, and "
      "schedule() needs one that repeat()s");
  return fields;
}

std::optional<Fields> WorkerIterator::at(std::uint64_t position) {
  const Lock lock(mutex_);
  if (position < taken_ && !broken_) start();
  Fields fields;
  while (taken_ < position) {
    if (broken_) throw *broken_;
    try {
      if (!take(fields)) return std::nullopt;
    } catch (...) {  // another closure has reported this error or will report it
      if (stop_.stop_requested()) throw;
    }
  }
  if (!take(fields)) return std::nullopt;
  return fields;
}

std::vector<Fields> WorkerIterator::peek(std::size_t count) {
  const Lock lock(mutex_);
  if (is_value_) return {value()};
  while (peeked_.size() < count && !peeked_error_) {
    Fields fields;
    try {
      if (!draw(fields)) break;
    } catch (...) {
      peeked_error_ = current_error();
      break;
    }
    peeked_.push_back(std::move(fields));
  }
  if (peeked_.empty() && peeked_error_) {
    ++taken_;
    throw_peeked_error();
  }
  // The elements are examples for the trace of a step, and a step cannot take strings.
  if (!peeked_.empty()) data::check_no_strings(source_->pack(peeked_.front()), "server.peek");
  const std::size_t available = std::min(count, peeked_.size());
  return {peeked_.begin(), peeked_.begin() + static_cast<std::ptrdiff_t>(available)};
}

void WorkerIterator::take(const rpc::ProgramReply& reply) {
  std::optional<Error> error = reply.error;
  try {
    if (!error) supply_->add(reply.function, reply.program);
  } catch (...) {
    error = current_error().because(ErrorCause::closure_input);
  }
  if (error) supply_->refuse(reply.function, reply.element, *error);
}

void IteratorTable::create(const rpc::IteratorSpec& spec, const IterationOptions& options,
                           data::ProgramSupply::Ask ask) {
  auto made = std::make_shared<WorkerIterator>(spec, options, std::move(ask));
  {
    const Lock lock(mutex_);
    std::swap(iterators_[spec.id], made);
  }
  if (made) let_go({std::move(made)});
}

std::shared_ptr<WorkerIterator> IteratorTable::find(std::uint64_t id) const {
  const Lock lock(mutex_);
  const auto found = iterators_.find(id);
  if (found == iterators_.end()) {
    throw Error(ErrorCode::not_found,
                "[server.find_iterator] expected an iterator or a per-worker value that is here, "
                "got one that is not: this worker was restarted since it was made, or it was "
                "released",
                ErrorCause::handle_lost);
  }
  return found->second;
}

void IteratorTable::use(std::uint64_t id, std::function<void(WorkerIterator&)> body) const {
  std::shared_ptr<WorkerIterator> iterator = find(id);
  in_use().add(1);
  try {
    start_thread("to draw an element", [iterator = std::move(iterator),
                                        body = std::move(body)]() mutable {
      body(*iterator);
      body = nullptr;
      iterator.reset();
      in_use().add(-1);
    }).detach();
  } catch (...) {
    in_use().add(-1);
    throw;
  }
}

void IteratorTable::take(const rpc::ProgramReply& reply) const {
  std::shared_ptr<WorkerIterator> iterator;
  {
    const Lock lock(mutex_);
    const auto found = iterators_.find(reply.resource);
    if (found == iterators_.end()) return;
    iterator = found->second;
  }
  iterator->take(reply);
}

void IteratorTable::release(const std::vector<std::uint64_t>& ids) {
  Iterators released;
  {
    const Lock lock(mutex_);
    for (const std::uint64_t id : ids) {
      const auto found = iterators_.find(id);
      if (found == iterators_.end()) continue;
      released.push_back(std::move(found->second));
      iterators_.erase(found);
    }
  }
  if (released.empty()) return;
  let_go(std::move(released));
  ending().wait_for_none(Deadline::after(kMoment));
}

IteratorTable::Iterators IteratorTable::take_all() {
  const Lock lock(mutex_);
  Iterators all;
  for (auto& [id, iterator] : iterators_) all.push_back(std::move(iterator));
  iterators_.clear();
  return all;
}

void IteratorTable::let_go(Iterators iterators) noexcept {
  if (iterators.empty()) return;
  for (const auto& iterator : iterators) iterator->end();
  ending().add(1);
  try {
    start_thread("to end an iterator", [held = std::move(iterators)]() mutable {
      held.clear();
      ending().add(-1);
    }).detach();
  } catch (const std::exception& error) {
    log_warn(error.what());  // they have ended on this thread
    ending().add(-1);
  }
}

void IteratorTable::cancel() const noexcept {
  const Lock lock(mutex_);
  for (const auto& [id, iterator] : iterators_) iterator->end();
}

IteratorTable::~IteratorTable() { let_go(take_all()); }

bool IteratorTable::end(Deadline deadline) noexcept {
  let_go(take_all());
  if (ending().wait_for_none(deadline) && in_use().wait_for_none(deadline)) return true;
  log_warn("a pipeline does not end: its threads are left behind");
  return false;
}

int IteratorTable::left_behind() noexcept { return ending().get() + in_use().get(); }

}  // namespace cohort::server
