// SPDX-License-Identifier: Apache-2.0
// The values of one moment on all parameter servers of a strategy, exported while closures run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/variable/state_walk.h"
#include "cohort/variable/variable.h"

namespace cohort::coordinator {

class Runtime;

// Used from one thread at a time.
class COHORT_API ServerCut {
 public:
  // Whether the variable is on the servers of the strategy.
  static bool covers(const ParameterServerStrategy& strategy, const Variable& variable);

  // Sends no closure any more, waits for those that run, and marks the moment on all servers of the
  // variables, which it covers. Updates may then replace `bytes_max` bytes on each server before
  // they wait for the export. No other thread may update the variables meanwhile. Throws
  // deadline_exceeded if a closure does not end, and the errors of servers.
  ServerCut(const ParameterServerStrategy& strategy, std::vector<Variable> variables,
            std::uint64_t bytes_max);
  // The servers forget what they keep.
  ~ServerCut();
  ServerCut(const ServerCut&) = delete;
  ServerCut& operator=(const ServerCut&) = delete;

  // Closures go on.
  void resume();
  // Gives the state of that moment, in records of at most about 16 MiB. Call it once. Throws
  // aborted if updates have waited for too long, or the servers have got other values.
  void export_state(const TakeRecord& take) const;
  // The folder into which servers write, and a file there by which they see that it is the same.
  struct Folder {
    std::string path = {};
    std::string proof_name = {};
    std::string proof_text = {};
    std::uint64_t header_room = 0;  // as FolderWriter has it
  };
  // The answer of a server that has written; see rpc::CutWritten.
  struct Share {
    std::string server = {};
    std::string text = {};
    std::vector<std::string> number_names = {};
    std::vector<at::Tensor> numbers = {};
  };
  // In place of export_state(): all servers write their parts of that state at the same time.
  // Throws also permission_denied and failed_precondition if a server may not write there, or does
  // not see the folder; deadline_exceeded, naming the server, if one does not get on.
  std::vector<Share> write_shares(const Folder& folder) const;

 private:
  // By stored variable: the position of the one to which it belongs, and where its rows begin
  // there.
  std::vector<std::pair<std::size_t, std::int64_t>> places() const;
  const std::shared_ptr<detail::ParameterServerHome> home_;
  const std::vector<Variable> variables_;
  const std::vector<Variable> stored_;  // these, or their shards
  const std::uint64_t cut_;
  std::shared_ptr<Runtime> paused_;  // nullptr: closures go on
};

}  // namespace cohort::coordinator
