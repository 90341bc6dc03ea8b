// SPDX-License-Identifier: Apache-2.0
// The variables of one parameter server: pulls, and pushes applied once a closure.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "cohort/rpc/messages.h"
#include "cohort/server/internal/applied_pushes.h"
#include "cohort/server/internal/stored_variable.h"

namespace cohort::server {

// Thread-safe.
class ParameterStore {
 public:
  struct Counters {
    std::atomic<std::uint64_t> pushes_applied{0};
    std::atomic<std::uint64_t> pushes_dropped{0};
    std::atomic<std::uint64_t> pulled_bytes{0};
    std::atomic<std::uint64_t> pushed_bytes{0};
  };

  // Creating one again with the same spec is nothing; with another it is already_exists.
  void create(const std::vector<rpc::VariableSpec>& variables);
  rpc::PullReply pull(const rpc::PullRequest& request);
  // All effects or none: what can fail comes before the first of them is applied.
  rpc::PushReply push(const rpc::PushRequest& request);
  const Counters& counters() const { return counters_; }

 private:
  struct Update {
    const rpc::Effect* effect;
    StoredVariable* variable;
    StoredVariable::Reserve reserve;
  };
  StoredVariable& find(std::uint64_t id) const;
  std::vector<Update> prepare(const std::vector<rpc::Effect>& effects) const;
  StoredVariable::Reserve reserve(const rpc::Effect& effect, StoredVariable& variable) const;
  static void apply(Update update);

  mutable std::shared_mutex mutex_;  // of the table; entries are never removed
  std::unordered_map<std::uint64_t, std::unique_ptr<StoredVariable>> variables_;
  AppliedPushes applied_;
  Counters counters_;
};

}  // namespace cohort::server
