// SPDX-License-Identifier: Apache-2.0
// The variables of a shared job by name, as its chief has announced them. The first server has it;
// workers find there what the chief has made, and whether they may train.
#pragma once

#include <map>
#include <string>

#include "cohort/core/mutex.h"
#include "cohort/rpc/messages.h"

namespace cohort::server {

// Thread-safe.
class SharedDirectory {
 public:
  // All variables of the request are found from now on, or none.
  void add(rpc::AnnounceRequest request) {
    const Lock lock(mutex_);
    for (rpc::SharedVariable& each : request.variables) {
      std::string name = each.name;
      variables_.insert_or_assign(std::move(name), std::move(each));
    }
    is_ready_ = is_ready_ || request.is_ready;
  }
  // Without names, all variables, in the order of their names.
  rpc::FindReply find(const rpc::FindRequest& request) const {
    const Lock lock(mutex_);
    rpc::FindReply reply{.variables = {}, .is_ready = is_ready_};
    for (const std::string& name : request.names) {
      const auto known = variables_.find(name);
      if (known != variables_.end()) reply.variables.push_back(known->second);
    }
    if (!request.names.empty()) return reply;
    for (const auto& [name, variable] : variables_) reply.variables.push_back(variable);
    return reply;
  }
  void clear() noexcept {
    const Lock lock(mutex_);
    variables_.clear();
    is_ready_ = false;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, rpc::SharedVariable> variables_ COHORT_GUARDED_BY(mutex_);
  bool is_ready_ COHORT_GUARDED_BY(mutex_) = false;
};

}  // namespace cohort::server
