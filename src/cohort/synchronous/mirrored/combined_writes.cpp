// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/mirrored/combined_writes.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/replicas/reduction.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"

namespace cohort::internal {
namespace {

// A sum of zeros is zero for any number of replicas.
bool is_zero(const at::Tensor& value) { return !value.to(at::kBool).any().item<bool>(); }

// The value that the replicas assign together.
at::Tensor combined_value(const std::vector<VariableWrite>& of_replicas, const OneForAll& one) {
  const MirroredVariable& variable = target_of(of_replicas.front().variable).variable;
  const at::Tensor& first = of_replicas.front().value;
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
  for (const VariableWrite& each : of_replicas)
    parts.push_back(reduction.parts(each.value.detach()));
  const at::Tensor value = reduction.result(reduction.sum(parts));
  COHORT_CHECK(value.scalar_type() == variable.spec().dtype, ErrorCode::invalid_argument,
               "[variable.assign] expected a mean of the variable's own dtype, got ",
               TensorSpec::of(value).to_string(), " (variable '", variable.name(), "')");
  return value;
}

// The change of rows that the replicas make together: all of theirs, one after the other.
VariableWrite combined_rows(const std::vector<VariableWrite>& of_replicas, bool is_one) {
  const VariableWrite& first = of_replicas.front();
  const MirroredVariable& variable = target_of(first.variable).variable;
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
  for (const VariableWrite& each : of_replicas) {
    indices.push_back(each.row_ids.cpu().to(at::kLong));  // rows change on the CPU
    rows.push_back(each.value.detach().cpu());
  }
  VariableWrite all{first.variable, first.kind, at::cat(rows), at::cat(indices)};
  if (is_mean) all.value.div_(static_cast<std::int64_t>(of_replicas.size()));
  return all;
}

// Adds what the replicas of the other workers bring. `request`: for comparison with them.
void collect_from_workers(const MirroredHome& home, const std::string& request,
                          std::vector<JointWrite>& writes) {
  const std::size_t width = write_tensors(writes.front().of_replicas.front()).size();
  const auto own = [&] {
    std::vector<std::vector<at::Tensor>> values(width * writes.size());
    for (std::size_t i = 0; i < writes.size(); ++i) {
      for (const VariableWrite& each : writes[i].of_replicas) {
        const std::vector<at::Tensor> tensors = write_tensors(each);
        for (std::size_t k = 0; k < width; ++k) values[i * width + k].push_back(tensors[k]);
      }
    }
    return values;
  };
  const auto all =
      home.of_all_replicas(kind_of_write(writes.front().of_replicas.front()), request, own);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    std::vector<VariableWrite>& of_replicas = writes[i].of_replicas;
    of_replicas.resize(all[i * width].size(), of_replicas.front());
    for (std::size_t r = 0; r < of_replicas.size(); ++r) {
      std::vector<at::Tensor> tensors;
      for (std::size_t k = 0; k < width; ++k) tensors.push_back(all[i * width + k][r]);
      of_replicas[r] = with_tensors(std::move(of_replicas[r]), tensors);
    }
  }
}

}  // namespace

OneForAll one_for_all(const std::vector<VariableWrite>& of_replicas) {
  const VariableWrite& first = of_replicas.front();
  const bool is_one = std::ranges::all_of(of_replicas, [&](const VariableWrite& each) {
    const bool is_same = each.value.is_same(first.value) && each.row_ids.is_same(first.row_ids);
    return is_same || (each.is_number && first.is_number && at::equal(each.value, first.value));
  });
  return {is_one, first.is_number};
}

std::vector<VariableWrite> combined(const MirroredHome& home, std::vector<JointWrite> writes) {
  const bool are_rows = variable::is_scatter(writes.front().of_replicas.front().kind);
  if (home.has_workers()) {
    std::string text = are_rows ? "changes of rows in replicas" : "assignments in replicas";
    for (auto& [of_replicas, one] : writes) {
      const VariableWrite& first = of_replicas.front();
      // A single replica cannot tell whether its tensor is one for all.
      one.is_one = one.is_one && !are_rows && (one.is_number || home.replicas() > 1);
      text += "\n" + std::string(variable::effect_kind(first.kind).name);
      if (!are_rows) text += one.is_one ? " of one value" : " of a value of each replica";
      text += " to variable '" + first.variable.name() + "'";
    }
    collect_from_workers(home, text, writes);
  }
  std::vector<VariableWrite> together;
  for (auto& [of_replicas, one] : writes) {
    const VariableWrite& first = of_replicas.front();
    if (home.has_workers())
      one.is_one = one.is_one && std::ranges::all_of(of_replicas, [&](const VariableWrite& each) {
                     return at::equal(each.value, first.value);
                   });
    together.push_back(are_rows ? combined_rows(of_replicas, one.is_one)
                                : with_tensors(first, {combined_value(of_replicas, one)}));
  }
  return together;
}

std::vector<at::Tensor> write_tensors(const VariableWrite& write) {
  if (!variable::is_scatter(write.kind)) return {write.value};
  return {write.row_ids, write.value};
}

VariableWrite with_tensors(VariableWrite write, const std::vector<at::Tensor>& tensors) {
  write.value = tensors.back();
  if (tensors.size() > 1) write.row_ids = tensors.front();
  return write;
}

void check_write(const VariableWrite& write, bool is_of_all) {
  const MirroredTarget target = target_of(write.variable);
  if (variable::is_scatter(write.kind)) {
    if (!target.component) target.variable.check_scatter(write.kind);
  } else if (is_of_all) {
    target.variable.check_write_all(write.kind);
  }
}

}  // namespace cohort::internal
