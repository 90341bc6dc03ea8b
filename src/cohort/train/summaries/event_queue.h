// SPDX-License-Identifier: Apache-2.0
// The queue between the callers of a SummaryWriter and the thread that writes its files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "cohort/core/clock.h"
#include "cohort/train/summaries/event_files.h"

namespace cohort::train {

struct EventQueueOptions {
  std::size_t elements_max = 1000;
  std::size_t bytes_max = 64 << 20;
  Duration flush_interval = std::chrono::minutes(2);
  Duration timeout = std::chrono::minutes(1);
  Clock* clock = nullptr;  // nullptr: the machine's
};

// Its thread sleeps until half of the queue is full, somebody waits, or the interval is over. An
// error that it finds is thrown by every call from then on. Thread-safe.
class EventQueue {
 public:
  EventQueue(std::unique_ptr<EventSink> sink, const EventQueueOptions& options);
  // Closes the files. If the disk does not answer within the timeout, the thread is left behind.
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // Waits for room. Throws deadline_exceeded after the timeout, failed_precondition after close().
  void push(EventEntry entry);
  // Waits until all entries pushed before are in the files.
  void flush(Duration timeout);
  void close();

 private:
  struct State;  // shared with the thread, which may be left behind
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace cohort::train
