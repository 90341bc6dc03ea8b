// SPDX-License-Identifier: Apache-2.0
// Texts by key, which the processes of a job share while they meet. Below it is LibTorch's
// c10d::TCPStore, whose calls may wait for ever: so they are made on a thread that nobody joins.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cohort/core/clock.h"

namespace cohort::cluster {

// Used from one thread at a time.
class KeyStore {
 public:
  virtual ~KeyStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Does not wait for the key.
  virtual std::optional<std::string> find(const std::string& key) = 0;
  // Adds 1 to a number that begins at 0, and returns the sum.
  virtual std::int64_t count(const std::string& key) = 0;
};

struct StorePlace {
  std::string host;
  std::uint16_t port = 0;
  bool opens_it = false;  // this process has the store; the others connect to it
};

// Opens the store, or connects to it, which waits until it is there. Throws LibTorch's errors.
std::unique_ptr<KeyStore> open_tcp_store(const StorePlace& place, Deadline deadline);
// LibTorch's, for messages.
std::string torch_version();

}  // namespace cohort::cluster
