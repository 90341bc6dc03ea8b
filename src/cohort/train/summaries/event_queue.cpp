// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/summaries/event_queue.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"
#include "cohort/core/start_thread.h"

namespace cohort::train {

// Thread-safe.
struct EventQueue::State {
  State(std::unique_ptr<EventSink> event_sink, const EventQueueOptions& queue_options)
      : options(queue_options),
        clock(options.clock == nullptr ? Clock::system() : *options.clock),
        path(event_sink->path()),
        sink(std::move(event_sink)),
        next_flush(Deadline::after(options.flush_interval, clock)) {}

  const EventQueueOptions options;
  Clock& clock;
  const std::string path;
  std::unique_ptr<EventSink> sink;  // used only from the thread
  Deadline next_flush;              // used only from the thread

  Mutex mutex;
  Condition has_work;      // the thread waits for it
  Condition has_advanced;  // callers wait for it
  std::deque<EventEntry> waiting COHORT_GUARDED_BY(mutex);
  // Entries that are not in the files yet, also those that the thread has taken.
  std::size_t elements COHORT_GUARDED_BY(mutex) = 0;
  std::size_t bytes COHORT_GUARDED_BY(mutex) = 0;
  int callers_without_room COHORT_GUARDED_BY(mutex) = 0;
  std::uint64_t pushed COHORT_GUARDED_BY(mutex) = 0;
  std::uint64_t flush_wanted COHORT_GUARDED_BY(mutex) = 0;  // as a value of `pushed`
  std::uint64_t flushed COHORT_GUARDED_BY(mutex) = 0;       // as a value of `pushed`
  bool is_closing COHORT_GUARDED_BY(mutex) = false;
  bool has_ended COHORT_GUARDED_BY(mutex) = false;
  std::optional<Error> failure COHORT_GUARDED_BY(mutex);
  bool has_thrown COHORT_GUARDED_BY(mutex) = false;

  struct Batch {
    std::deque<EventEntry> entries;
    std::uint64_t up_to = 0;  // of `pushed`, with these entries
    bool must_flush = false;
    bool is_last = false;
  };

  bool has_room(std::size_t more) const COHORT_REQUIRES(mutex) {
    return elements == 0 || (elements < options.elements_max && bytes + more <= options.bytes_max);
  }
  bool is_worth_writing() const COHORT_REQUIRES(mutex) {
    return elements * 2 >= options.elements_max || bytes * 2 >= options.bytes_max ||
           callers_without_room > 0;
  }
  void throw_failure() COHORT_REQUIRES(mutex) {
    if (!failure) return;
    has_thrown = true;
    throw Error(*failure);
  }
  // Waits until `is_reached`, or throws.
  template <class IsReached>
  void await(Duration timeout, const IsReached& is_reached) COHORT_REQUIRES(mutex) {
    const bool is_done = has_advanced.wait(
        mutex, Deadline::after(timeout, clock),
        [&]() COHORT_REQUIRES(mutex) { return failure.has_value() || is_reached(); }, clock);
    throw_failure();
    COHORT_CHECK(is_done, ErrorCode::deadline_exceeded,
                 "[train.summary_writer] expected the disk to take ", elements, " summaries of '",
                 path, "' within ", std::chrono::duration<double>(timeout).count(),
                 " s, got no end of a write; use a faster or nearer folder, or a longer "
                 "SummaryWriterOptions::timeout");
  }

  void await_room(std::size_t more) COHORT_REQUIRES(mutex) {
    ++callers_without_room;
    const std::unique_ptr<int, void (*)(int*)> counted(&callers_without_room,
                                                       [](int* count) { --*count; });
    has_work.notify_one();
    await(options.timeout, [&]() COHORT_REQUIRES(mutex) { return has_room(more); });
  }

  void push(EventEntry entry) {
    const Lock lock(mutex);
    throw_failure();
    COHORT_CHECK(!is_closing, ErrorCode::failed_precondition,
                 "[train.summary_writer] expected an open writer, got '", path,
                 "', which was closed; call close() after the last summary");
    if (!has_room(entry.bytes)) await_room(entry.bytes);
    const bool was_worth_writing = is_worth_writing() && callers_without_room == 0;
    bytes += entry.bytes;
    ++elements;
    ++pushed;
    waiting.push_back(std::move(entry));
    if (!was_worth_writing && is_worth_writing()) has_work.notify_one();
  }
  void flush(Duration timeout) {
    const Lock lock(mutex);
    throw_failure();
    if (has_ended) return;
    const std::uint64_t wanted = pushed;
    flush_wanted = std::max(flush_wanted, wanted);
    has_work.notify_one();
    await(timeout, [&, this]() COHORT_REQUIRES(mutex) { return flushed >= wanted || has_ended; });
  }
  void close() {
    const Lock lock(mutex);
    is_closing = true;
    has_work.notify_one();
    await(options.timeout, [this]() COHORT_REQUIRES(mutex) { return has_ended; });
  }

  Batch next_batch() {
    const Lock lock(mutex);
    has_work.wait(
        mutex, next_flush,
        [this]() COHORT_REQUIRES(mutex) {
          return (!waiting.empty() && is_worth_writing()) || flush_wanted > flushed || is_closing;
        },
        clock);
    const bool is_due = next_flush.has_expired(clock);
    if (is_due) next_flush = Deadline::after(options.flush_interval, clock);
    return {.entries = std::exchange(waiting, {}),
            .up_to = pushed,
            .must_flush = flush_wanted > flushed || (is_due && pushed > flushed),
            .is_last = is_closing};
  }
  void note_written(const Batch& batch) {
    const Lock lock(mutex);
    elements -= batch.entries.size();
    for (const EventEntry& entry : batch.entries) bytes -= entry.bytes;
    if (batch.must_flush) flushed = batch.up_to;
    has_advanced.notify_all();
  }
  void write_all() {
    while (true) {
      const Batch batch = next_batch();
      for (const EventEntry& entry : batch.entries) sink->write(entry);
      if (batch.is_last) return sink->close();
      if (batch.must_flush) sink->flush();
      note_written(batch);
    }
  }
  void run() {
    std::optional<Error> found;
    try {
      write_all();
    } catch (...) {
      found = current_error().during("writing summaries to '" + path +
                                     "'; make another SummaryWriter to go on in another file");
    }
    sink.reset();
    const Lock lock(mutex);
    failure = std::move(found);
    waiting.clear();
    has_ended = true;
    has_advanced.notify_all();
  }
};

EventQueue::EventQueue(std::unique_ptr<EventSink> sink, const EventQueueOptions& options)
    : state_(std::make_shared<State>(std::move(sink), options)),
      thread_(
          start_thread_without_signals("to write summaries", [state = state_] { state->run(); })) {}

EventQueue::~EventQueue() {
  const auto value_of = [this](bool State::*flag) {
    const Lock lock(state_->mutex);
    return (*state_).*flag;
  };
  const bool is_known = value_of(&State::has_thrown);
  try {
    close();
  } catch (const Error& error) {
    if (!is_known) log_warn("[train.summary_writer] summaries are missing: ", error.what());
  }
  value_of(&State::has_ended) ? thread_.join() : thread_.detach();
}

void EventQueue::push(EventEntry entry) { state_->push(std::move(entry)); }

void EventQueue::flush(Duration timeout) { state_->flush(timeout); }

void EventQueue::close() { state_->close(); }

}  // namespace cohort::train
