// SPDX-License-Identifier: Apache-2.0
// Assignments to variables of a synchronous strategy, and changes of their rows.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/replicas/reduction.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/synchronous/mirrored/combined_writes.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/variable/rows.h"

namespace cohort::internal {
namespace {

// A sum of zeros is zero for any number of replicas.
bool is_zero(const at::Tensor& value) { return !value.to(at::kBool).any().item<bool>(); }

// Whether all replicas assign the same: one tensor, or equal numbers of the host.
bool is_one_value(const std::vector<const Assignment*>& of_replicas) {
  const Assignment& first = *of_replicas.front();
  return std::all_of(of_replicas.begin(), of_replicas.end(), [&](const Assignment* each) {
    return each->value.is_same(first.value) ||
           (each->is_number && first.is_number && at::equal(each->value, first.value));
  });
}

bool is_one_change(const std::vector<const RowUpdate*>& of_replicas) {
  const RowUpdate& first = *of_replicas.front();
  return std::all_of(of_replicas.begin(), of_replicas.end(), [&](const RowUpdate* each) {
    return each->indices.is_same(first.indices) && each->rows.is_same(first.rows);
  });
}

// Throws unless all replicas make the same calls.
template <class T>
void check_same_calls(const PerReplica<std::vector<T>>& all, std::string_view call) {
  for (std::size_t r = 1; r < all.size(); ++r) {
    const bool is_same = std::equal(
        all[0].begin(), all[0].end(), all[r].begin(), all[r].end(),
        [](const T& a, const T& b) { return a.variable == b.variable && a.kind == b.kind; });
    COHORT_CHECK(is_same, ErrorCode::invalid_argument, "[", call,
                 "] expected the same assignment in all replicas, got variable '",
                 all[0].front().variable.name(),
                 "' in replica 0 and another variable or kind of assignment in replica ", r);
  }
}

// Call number i of each replica.
template <class T>
std::vector<const T*> of_replicas(const PerReplica<std::vector<T>>& all, std::size_t i) {
  std::vector<const T*> each;
  for (std::size_t r = 0; r < all.size(); ++r) each.push_back(&all[r][i]);
  return each;
}

}  // namespace

at::Tensor combined(const MirroredVariable& variable, const std::vector<at::Tensor>& values,
                    const OneForAll& one) {
  const at::Tensor& first = values.front();
  const VariableAggregation aggregation = variable.traits().aggregation;
  if (aggregation == VariableAggregation::only_first_replica) return first;
  const bool is_mean = aggregation == VariableAggregation::mean;
  if (one.is_one && (is_mean || is_zero(first))) return first;
  COHORT_CHECK(!one.is_one, ErrorCode::invalid_argument,
               "[variable.assign] expected a value of each replica to sum for variable '",
               variable.name(), "', got one ", one.is_number ? "number" : "tensor",
               " that is the same in all; assign a tensor that each replica has made, or use "
               "aggregation mean or only_first_replica");
  const Reduction reduction(is_mean ? ReduceOp::mean : ReduceOp::sum, {}, "variable.assign");
  std::vector<Reduction::Parts> parts;
  for (const at::Tensor& value : values) parts.push_back(reduction.parts(value.detach()));
  const at::Tensor value = reduction.result(reduction.sum(parts));
  COHORT_CHECK(value.scalar_type() == variable.spec().dtype, ErrorCode::invalid_argument,
               "[variable.assign] expected a mean of the variable's own dtype, got ",
               TensorSpec::of(value).to_string(), " (variable '", variable.name(), "')");
  return value;
}

RowUpdate combined_rows(const MirroredVariable& variable,
                        const std::vector<const RowUpdate*>& of_replicas, bool is_one) {
  const RowUpdate& first = *of_replicas.front();
  const VariableAggregation aggregation = variable.traits().aggregation;
  if (aggregation == VariableAggregation::only_first_replica) return first;
  const bool is_mean = aggregation == VariableAggregation::mean;
  if (is_one && is_mean) return first;
  COHORT_CHECK(!is_one, ErrorCode::invalid_argument, "[", variable::call_name(first.kind),
               "] expected rows of each replica to apply to variable '", variable.name(),
               "', got tensors that are the same in all; give it tensors that each replica has "
               "made, or use aggregation mean or only_first_replica");
  COHORT_CHECK(!is_mean || at::isFloatingType(variable.spec().dtype), ErrorCode::invalid_argument,
               "[", variable::call_name(first.kind),
               "] expected floating-point rows for a mean, got ", variable.spec().to_string(),
               " (variable '", variable.name(), "')");
  std::vector<at::Tensor> indices, rows;
  for (const RowUpdate* each : of_replicas) {
    indices.push_back(each->indices.cpu().to(at::kLong));  // rows change on the CPU
    rows.push_back(each->rows.detach().cpu());
  }
  RowUpdate all{first.variable, first.kind, at::cat(indices), at::cat(rows)};
  if (is_mean) all.rows.div_(static_cast<std::int64_t>(of_replicas.size()));
  return all;
}

bool MirroredHome::is_update(const MirroredVariable& variable, Reach::Kind reach) const {
  if (variable.traits().synchronization == VariableSynchronization::on_read) return false;
  const bool is_alone =
      !has_several_replicas() && variable.traits().aggregation != VariableAggregation::none;
  return reach == Reach::Kind::merged || (reach == Reach::Kind::one && is_alone);
}

void MirroredHome::about_to_write(MirroredVariable& variable, std::size_t value,
                                  const Place& place) {
  if (place.kind == Place::Kind::replica) undo_.about_to_write(variable, value, place.component);
}

void MirroredHome::assign(std::span<const Assignment> assignments) {
  const Place place = place_here();
  std::vector<Reach> reaches;
  std::vector<Assignment> merged;
  for (const Assignment& each : assignments) {
    const Reach reach = reach_of(each.variable, place, "variable.assign");
    if (reach.kind == Reach::Kind::all)
      target_of(each.variable).variable.check_assign_all(each.kind);
    if (reach.kind == Reach::Kind::merged) merged.push_back(each);
    reaches.push_back(reach);
  }
  bool is_any_update = false;
  // First, since it may fail.
  if (!merged.empty()) assign_merged(*place.replica, std::move(merged));
  for (std::size_t i = 0; i < assignments.size(); ++i) {
    MirroredVariable& variable = target_of(assignments[i].variable).variable;
    const auto& [handle, kind, value, is_number] = assignments[i];
    is_any_update = is_any_update || is_update(variable, reaches[i].kind);
    if (reaches[i].kind == Reach::Kind::one) {
      about_to_write(variable, reaches[i].value, place);
      variable.allow_difference();
      variable.assign_value(reaches[i].value, kind, value);
    }
    if (reaches[i].kind == Reach::Kind::all) variable.assign_all(kind, value);
  }
  note_written(place, is_any_update);
}

void MirroredHome::assign_merged(const ReplicaContext& replica,
                                 std::vector<Assignment> assignments) {
  StrategyAccess::merge(
      replica, "assign",
      [this](Strategy&, const PerReplica<std::vector<Assignment>>& all) {
        check_same_calls(all, "variable.assign");
        const std::vector<Assignment>& first = all[0];
        std::vector<std::vector<at::Tensor>> given;
        std::vector<bool> are_one;
        for (std::size_t i = 0; i < first.size(); ++i) {
          const std::vector<const Assignment*> each = of_replicas(all, i);
          std::vector<at::Tensor>& own = given.emplace_back();
          for (const Assignment* one : each) own.push_back(one->value);
          are_one.push_back(is_one_value(each));
        }
        if (has_workers()) given = assigned_by_all(first, given, are_one);
        std::vector<at::Tensor> values;
        for (std::size_t i = 0; i < first.size(); ++i) {
          values.push_back(combined(target_of(first[i].variable).variable, given[i],
                                    {are_one[i], first[i].is_number}));
        }
        for (std::size_t i = 0; i < first.size(); ++i)
          target_of(first[i].variable).variable.assign_all(first[i].kind, values[i]);
      },
      std::move(assignments));
}

void MirroredHome::scatter(std::span<const RowUpdate> updates) {
  const Place place = place_here();
  std::vector<Reach> reaches;
  std::vector<RowUpdate> merged;
  for (const RowUpdate& each : updates) {
    const MirroredTarget target = target_of(each.variable);
    if (!target.component) target.variable.check_scatter(each.kind);
    const Reach reach = reach_of(each.variable, place, variable::call_name(each.kind));
    if (reach.kind == Reach::Kind::merged) merged.push_back(each);
    reaches.push_back(reach);
  }
  bool is_any_update = false;
  if (!merged.empty()) scatter_merged(*place.replica, std::move(merged));
  for (std::size_t i = 0; i < updates.size(); ++i) {
    MirroredVariable& variable = target_of(updates[i].variable).variable;
    is_any_update = is_any_update || is_update(variable, reaches[i].kind);
    if (reaches[i].kind == Reach::Kind::one) {
      about_to_write(variable, reaches[i].value, place);
      variable.allow_difference();
      variable.scatter_value(reaches[i].value, updates[i]);
    }
    if (reaches[i].kind == Reach::Kind::all) variable.scatter_all(updates[i]);
  }
  note_written(place, is_any_update);
}

void MirroredHome::scatter_merged(const ReplicaContext& replica, std::vector<RowUpdate> updates) {
  StrategyAccess::merge(
      replica, "scatter",
      [this](Strategy&, const PerReplica<std::vector<RowUpdate>>& all) {
        check_same_calls(all, "variable.scatter");
        std::vector<RowUpdate> together;
        if (has_workers()) together = scattered_by_all(all);
        for (std::size_t i = 0; i < all[0].size() && !has_workers(); ++i) {
          const std::vector<const RowUpdate*> each = of_replicas(all, i);
          together.push_back(
              combined_rows(target_of(all[0][i].variable).variable, each, is_one_change(each)));
        }
        for (const RowUpdate& each : together) target_of(each.variable).variable.scatter_all(each);
      },
      std::move(updates));
}

}  // namespace cohort::internal
