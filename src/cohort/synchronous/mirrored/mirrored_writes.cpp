// SPDX-License-Identifier: Apache-2.0
// Assignments to variables of a synchronous strategy, and changes of their rows.
#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/synchronous/mirrored/combined_writes.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"

namespace cohort::internal {
namespace {

// Throws unless all replicas make the same calls.
void check_same_calls(const PerReplica<std::vector<VariableWrite>>& all) {
  for (std::size_t r = 1; r < all.size(); ++r) {
    const bool is_same =
        std::ranges::equal(all[0], all[r], [](const VariableWrite& a, const VariableWrite& b) {
          return a.variable == b.variable && a.kind == b.kind;
        });
    COHORT_CHECK(is_same, ErrorCode::invalid_argument, "[variable.", kind_of_write(all[0].front()),
                 "] expected the same assignment in all replicas, got variable '",
                 all[0].front().variable.name(),
                 "' in replica 0 and another variable or kind of assignment in replica ", r);
  }
}

}  // namespace

bool MirroredHome::is_update(const MirroredVariable& variable, Reach::Kind reach) const {
  if (variable.traits().synchronization == VariableSynchronization::on_read) return false;
  const bool is_alone =
      !has_several_replicas() && variable.traits().aggregation != VariableAggregation::none;
  return reach == Reach::Kind::merged || (reach == Reach::Kind::one && is_alone);
}

// Combines what all replicas write, which make the same calls.
void MirroredHome::write_merged(const ReplicaContext& replica, std::vector<VariableWrite> writes) {
  const std::string_view kind = kind_of_write(writes.front());
  StrategyAccess::merge(
      replica, kind,
      [this](Strategy&, const PerReplica<std::vector<VariableWrite>>& all) {
        check_same_calls(all);
        std::vector<JointWrite> joint(all[0].size());
        for (std::size_t i = 0; i < joint.size(); ++i) {
          for (std::size_t r = 0; r < all.size(); ++r) joint[i].of_replicas.push_back(all[r][i]);
          joint[i].one = one_for_all(joint[i].of_replicas);
        }
        for (const VariableWrite& each : combined(*this, std::move(joint)))
          target_of(each.variable).variable.write_all(each);
      },
      std::move(writes));
}

void MirroredHome::write(std::span<const VariableWrite> writes) {
  const Place place = place_here();
  std::vector<Reach> reaches;
  std::vector<VariableWrite> merged;
  for (const VariableWrite& each : writes) {
    const Reach reach = reach_of(each.variable, place, call_of(each));
    check_write(each, reach.kind == Reach::Kind::all);
    if (reach.kind == Reach::Kind::merged) merged.push_back(each);
    reaches.push_back(reach);
  }
  bool is_any_update = false;
  // First, since it may fail.
  if (!merged.empty()) write_merged(*place.replica, std::move(merged));
  for (std::size_t i = 0; i < writes.size(); ++i) {
    MirroredVariable& variable = target_of(writes[i].variable).variable;
    is_any_update = is_any_update || is_update(variable, reaches[i].kind);
    if (reaches[i].kind == Reach::Kind::one) {
      if (place.kind == Place::Kind::replica)
        undo_.about_to_write(variable, reaches[i].value, place.component);
      variable.allow_difference();
      variable.write_value(reaches[i].value, writes[i]);
    }
    if (reaches[i].kind == Reach::Kind::all) variable.write_all(writes[i]);
  }
  note_written(place, is_any_update);
}

}  // namespace cohort::internal
