// SPDX-License-Identifier: Apache-2.0
// Writes this server's share of a cut into a folder that its coordinator has made.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/parameter_server/parameter_store.h"
#include "cohort/rpc/written_cut.h"

namespace cohort::server {

// Thread-safe. A thread writes, so that the coordinator's channel goes on meanwhile.
class CutWriter {
 public:
  // `store` must outlive it. `folders`: below them it may write. `self`: for messages.
  CutWriter(ParameterStore& store, std::vector<std::string> folders, std::string self);
  // Ends the writing after the chunk that is being written.
  ~CutWriter();

  // Begins, ends, or tells how far it is, and once what was written. Throws permission_denied for a
  // path that is not below a folder for which the server was started; failed_precondition if the
  // folder is not the coordinator's; not_found if nothing is being written for this cut; and the
  // error with which the writing has ended.
  rpc::CutWritten handle(rpc::CutWrite request);

 private:
  class Writing;
  rpc::CutWritten tell(std::uint64_t cut);
  rpc::CutWritten end(std::optional<std::uint64_t> cut);  // nullopt: any
  ParameterStore& store_;
  const std::vector<std::string> folders_;
  const std::string self_;
  Mutex mutex_;
  std::shared_ptr<Writing> writing_ COHORT_GUARDED_BY(mutex_);  // nullptr: none
};

}  // namespace cohort::server
