// SPDX-License-Identifier: Apache-2.0
// TCP sockets between workers: names, listening and connecting. All sockets are non-blocking and
// closed on exec.
#pragma once

#include <netdb.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/mutex.h"

namespace cohort::collective::formation {

// Wakes a thread that polls. Thread-safe.
class Waker {
 public:
  Waker();
  int fd() const { return event_.get(); }
  void wake() noexcept;
  void drain() noexcept;

 private:
  FileDescriptor event_;
};

// The addresses of a host's name, which a thread of its own looks up, because getaddrinfo() has no
// deadline. Numbers are known at once. Thread-safe.
class Lookup {
 public:
  // Throws invalid_argument unless the address is "host:port".
  static std::shared_ptr<Lookup> start(const std::string& address, bool is_for_listening);
  bool is_done() const;
  // Waits for the end of the lookup.
  bool wait(Deadline deadline);
  // Null before the end, and if there is none, because of problem().
  std::shared_ptr<const addrinfo> found() const;
  std::string problem() const;

 private:
  void set(std::shared_ptr<const addrinfo> found, std::string problem);

  mutable Mutex mutex_;
  Condition changed_;
  bool is_done_ COHORT_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const addrinfo> found_ COHORT_GUARDED_BY(mutex_);
  std::string problem_ COHORT_GUARDED_BY(mutex_);
};

// Throws invalid_argument unless it is "host:port", with an IPv6 address in brackets.
void check_address(const std::string& address);

// Listens on all addresses of the name that this host has. Throws resource_exhausted if one is in
// use, invalid_argument if this host has none.
std::vector<FileDescriptor> listen_at(const std::string& address);

// Of an address with its port; equal in all processes.
std::uint64_t address_hash(const sockaddr* address, socklen_t size);
// Those to which these sockets are bound.
std::vector<std::uint64_t> bound_addresses(const std::vector<FileDescriptor>& sockets);

// Starts to connect. Returns 0 or EINPROGRESS, or why it failed at once.
int start_connecting(const addrinfo& address, FileDescriptor& socket);
// Whether a started connection succeeded: 0 or why it failed. The socket must be ready to write.
int connected_error(int fd);
// Disables delays of small messages, and notices the loss of a host within a minute.
void tune_link(int fd);

// Starts a thread that handles no signals, because they are for the program's own threads. Throws
// resource_exhausted if the system cannot start one.
std::thread start_without_signals(std::string_view purpose, std::function<void()> body);

// For poll(); at least 0, and -1 for none.
int poll_milliseconds(Deadline deadline);

}  // namespace cohort::collective::formation
