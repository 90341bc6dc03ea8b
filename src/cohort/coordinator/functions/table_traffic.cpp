// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/functions/table_traffic.h"

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/function/row_reads.h"

namespace cohort::coordinator {
namespace {

constexpr std::size_t kMovedBytesMax = std::size_t{16} << 20;

}  // namespace

bool warn_of_moved_tables(const std::string& step, const Bytes& program,
                          const function::ProgramInfo& info, const VariableTable& variables) {
  std::size_t moved = 0;
  std::string names;
  for (const std::size_t place : function::variables_read_by_rows(program)) {
    const function::ProgramInfo::Variable& used = info.variables.at(place);
    if (used.is_handle_only) continue;  // its rows alone are moved
    const VariableTable::Entry* entry = variables.find(used.name);
    COHORT_ASSERT(entry != nullptr);
    const std::size_t bytes = entry->variable.tensor().nbytes();
    moved += (used.is_read ? bytes : 0) + (used.is_updated ? bytes : 0);
    names += (names.empty() ? "'" : ", '") + used.name + "'";
  }
  if (moved <= kMovedBytesMax) return false;
  log_warn(
      "[coordinator.schedule] each call of '", step, "' moves ", moved >> 20, " MiB for ", names,
      ", of which it indexes rows: a step pulls whole variables, and pushes whole gradients; "
      "make the tables smaller, or train them in one process (MirroredStrategy), where nothing "
      "is moved");
  return true;
}

}  // namespace cohort::coordinator
