// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/launchers/key_store.h"

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <vector>

namespace cohort::cluster {
namespace {

class TcpStore final : public KeyStore {
 public:
  TcpStore(const StorePlace& place, const c10d::TCPStoreOptions& options)
      : store_(place.host, options) {}

  void set(const std::string& key, const std::string& value) override {
    store_.set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }
  std::optional<std::string> find(const std::string& key) override {
    if (!store_.check({key})) return std::nullopt;
    const std::vector<std::uint8_t> value = store_.get(key);
    return std::string(value.begin(), value.end());
  }
  std::int64_t count(const std::string& key) override { return store_.add(key, 1); }

 private:
  c10d::TCPStore store_;
};

}  // namespace

std::unique_ptr<KeyStore> open_tcp_store(const StorePlace& place, Deadline deadline) {
  c10d::TCPStoreOptions options;
  options.port = place.port;
  options.isServer = place.opens_it;
  options.waitWorkers = false;
  // Whole seconds, to which LibTorch cuts it. The callers have a deadline of their own.
  options.timeout = std::chrono::ceil<std::chrono::seconds>(
      std::max<Duration>(deadline.remaining(), std::chrono::seconds(1)));
  return std::make_unique<TcpStore>(place, options);
}

std::string torch_version() { return TORCH_VERSION; }

}  // namespace cohort::cluster
