// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/functions/table_traffic.h"

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/spelling.h"
#include "cohort/function/row_reads.h"

namespace cohort::coordinator {
namespace {

constexpr std::size_t kMovedBytesMax = std::size_t{16} << 20;

}  // namespace

bool warn_of_moved_tables(const std::string& step, const Bytes& program,
                          const function::ProgramInfo& info, const VariableTable& variables) {
  std::size_t moved = 0;
  QuotedNames pulled, pushed;
  for (const function::WholeTable& table : function::tables_moved_whole(program)) {
    const std::string& name = info.variables.at(table.variable).name;
    const VariableTable::EntryPtr entry = variables.find(name);
    COHORT_ASSERT(entry != nullptr);
    const std::size_t bytes = entry->variable.tensor().nbytes();
    moved += (table.is_pulled ? bytes : 0) + (table.is_pushed ? bytes : 0);
    if (table.is_pulled) pulled.add(name);
    if (table.is_pushed) pushed.add(name);
  }
  if (moved <= kMovedBytesMax) return false;
  std::string why;
  if (!pulled.text().empty()) {
    why += "; it pulls " + pulled.text() +
           " whole: look rows up by embedding, embedding_bag or index_select alone, and by fewer "
           "ids than half of the rows";
  }
  if (!pushed.text().empty()) {
    why += "; it pushes the gradient of " + pushed.text() +
           " whole: look rows up by embedding or embedding_bag, and let only minimize() or "
           "apply_gradients() use the gradient";
  }
  log_warn("[coordinator.schedule] each call of '", step, "' moves ", moved >> 20,
           " MiB for tables of which it looks up rows", why);
  return true;
}

}  // namespace cohort::coordinator
