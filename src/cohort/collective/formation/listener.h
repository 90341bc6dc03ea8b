// SPDX-License-Identifier: Apache-2.0
// Answers the questions of other processes, on a thread of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cohort/collective/formation/message.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/mutex.h"
#include "cohort/net/waker.h"

namespace cohort::collective::formation {

// Owns the sockets that listen and the thread. Connections that have not sent a valid question are
// limited in number, time and bytes, and never delay others. Thread-safe.
class Listener {
 public:
  struct Options {
    // Connections that have sent no valid question; the oldest is closed for a new one.
    std::size_t strangers_max = 0;
    std::size_t peers_max = 0;  // connections that have
    std::size_t question_bytes_max = 0;
    // Called on the listener's thread; must not block. Returns nullopt if it has taken the socket
    // to keep it. After a refusal the connection is closed.
    std::function<std::optional<Reply>(const Request& request, std::uint64_t connection,
                                       FileDescriptor& socket)>
        answer = {};
    // A connection, of which `answer` did not take the socket, was closed.
    std::function<void(std::uint64_t connection)> closed = {};
  };

  Listener(std::vector<FileDescriptor> listening, Options options);
  ~Listener();
  // Returns when all questions are answered that had arrived before the call, or after a second.
  void settle();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  class Connections;

  void run() noexcept;
  void serve();

  const std::vector<FileDescriptor> listening_;
  net::Waker waker_;
  std::atomic<bool> is_ending_ = false;
  Mutex mutex_;
  Condition changed_;
  std::uint64_t wanted_ COHORT_GUARDED_BY(mutex_) = 0;   // calls of settle()
  std::uint64_t settled_ COHORT_GUARDED_BY(mutex_) = 0;  // of these, those that may return
  std::unique_ptr<Connections> connections_;             // used only from the thread
  std::thread thread_;
};

}  // namespace cohort::collective::formation
