// SPDX-License-Identifier: Apache-2.0
// Lets each server write its share of a cut into one folder.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "cohort/core/export.h"
#include "cohort/parameter_server/placement_table.h"
#include "cohort/parameter_server/server_links.h"
#include "cohort/rpc/written_cut.h"
#include "cohort/variable/variable.h"

namespace cohort::parameter_server {

// Variables with their places, and the whole variable of which each is some rows.
struct WrittenVariables {
  struct Rows {
    std::string name = {};
    TensorSpec spec = {};
    std::int64_t first_row = 0;
    std::int64_t count = 0;  // 0 for a table
  };
  const Places& places;
  std::span<const Rows> of;  // for each variable of `places`
};

// All servers of these variables write at the same time; `begin` has the cut and the folder, and
// neither rows nor a prefix. Calls `take` with the name of a server and what it has written. Throws
// the first error of a server, with its name; deadline_exceeded for one that does not get on within
// the links' data_timeout.
COHORT_API void write_cut(
    ServerLinks& links, const WrittenVariables& variables, const rpc::CutWrite& begin,
    const std::function<void(const std::string& server, rpc::CutWritten written)>& take);

}  // namespace cohort::parameter_server
