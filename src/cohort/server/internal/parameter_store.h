// SPDX-License-Identifier: Apache-2.0
// The variables of one parameter server. It answers pulls, and applies each push once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "cohort/rpc/detail/messages.h"
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

  // Does nothing for a variable that exists with the same name and spec. Throws already_exists if
  // its name or spec differs.
  void create(const std::vector<rpc::VariableSpec>& variables);
  rpc::PullReply pull(const rpc::PullRequest& request);
  // Applies all effects or none: everything that can fail is done before the first one is applied.
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

  mutable std::shared_mutex mutex_;  // guards the table, from which nothing is ever removed
  std::unordered_map<std::uint64_t, std::unique_ptr<StoredVariable>> variables_;
  AppliedPushes applied_;
  Counters counters_;
};

}  // namespace cohort::server
