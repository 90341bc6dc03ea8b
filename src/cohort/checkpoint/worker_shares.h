// SPDX-License-Identifier: Apache-2.0
// Synchronous workers write the slots of which each has a share.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cohort/checkpoint_files/folder_writer.h"
#include "cohort/strategy/strategy_parts.h"

namespace cohort::checkpoint {

// All workers do this together: the first one makes the folder, and each writes `pieces` into it.
// Returns the folder, which has all shares; nullptr on the other workers. Throws the same on all of
// them: failed_precondition, naming a worker that does not see the folder; the errors of the file
// system.
std::shared_ptr<FolderWriter> write_worker_shares(
    const internal::StrategyVariables& parts, const std::string& path, std::uint64_t header_room,
    std::span<const internal::StrategyVariables::SlotRows> pieces);

}  // namespace cohort::checkpoint
