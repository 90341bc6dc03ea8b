// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/interpreter/effect_ops.h"

#include <ATen/core/TensorBody.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <array>
#include <string>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::function {
namespace {

using internal::Effect;
using torch::jit::parseSchema;

UpdateRole role_of(const std::string& argument) {
  constexpr std::array<std::pair<std::string_view, UpdateRole>, 9> kRoles{{
      {"rule", UpdateRole::rule},
      {"optimizer", UpdateRole::optimizer},
      {"variable", UpdateRole::variable},
      {"ids", UpdateRole::row_ids},
      {"hyper", UpdateRole::hyper},
      {"lazy_rows", UpdateRole::lazy_rows},
      {"momentum", UpdateRole::momentum},
      {"old", UpdateRole::old},
      {"is_variance", UpdateRole::is_variance},
  }};
  for (const auto& [name, role] : kRoles)
    if (name == argument) return role;
  return UpdateRole::tensor;
}

EffectOp update(Effect::Kind kind, const std::string& schema) {
  EffectOp op{.kind = EffectOpKind::update,
              .schema = parseSchema(schema),
              .keeps_arguments = true,
              .update = kind};
  for (const c10::Argument& argument : op.schema.arguments())
    op.roles.push_back(role_of(argument.name()));
  return op;
}

EffectOp scatter(Effect::Kind kind, const std::string& name) {
  return update(kind, "cohort::" + name + "(int variable, Tensor ids, Tensor rows) -> ()");
}

EffectOp other(EffectOpKind kind, const char* schema, bool keeps_arguments = false) {
  return {.kind = kind, .schema = parseSchema(schema), .keeps_arguments = keeps_arguments};
}

// One row per operator; `variable` and `resource` are indices into the program's tables.
std::vector<EffectOp> make_table() {
  return {
      other(EffectOpKind::iterator_next, "cohort::iterator_next(int resource) -> Tensor[]"),
      update(Effect::Kind::apply,
             "cohort::apply(str rule, str optimizer, int variable, Tensor gradient, "
             "Tensor[] hyper, bool lazy_rows=False) -> ()"),
      update(Effect::Kind::assign, "cohort::assign(int variable, Tensor value) -> ()"),
      update(Effect::Kind::assign_add, "cohort::assign_add(int variable, Tensor value) -> ()"),
      update(Effect::Kind::assign_sub, "cohort::assign_sub(int variable, Tensor value) -> ()"),
      update(Effect::Kind::apply,
             "cohort::apply_rows(str rule, str optimizer, int variable, Tensor ids, Tensor rows, "
             "Tensor[] hyper, bool lazy_rows=False) -> ()"),
      other(EffectOpKind::gather,
            "cohort::gather(int[] tables, int[] paddings, int[] counts, Tensor[] ids, "
            "int[] variables) -> Tensor[]"),
      scatter(Effect::Kind::scatter_add, "scatter_add"),
      scatter(Effect::Kind::scatter_sub, "scatter_sub"),
      scatter(Effect::Kind::scatter_mul, "scatter_mul"),
      scatter(Effect::Kind::scatter_div, "scatter_div"),
      scatter(Effect::Kind::scatter_min, "scatter_min"),
      scatter(Effect::Kind::scatter_max, "scatter_max"),
      scatter(Effect::Kind::scatter_update, "scatter_update"),
      other(EffectOpKind::next_segment, "cohort::next_segment(int[] variables) -> ()"),
      other(EffectOpKind::wait_until_positive, "cohort::wait_until_positive(int variable) -> ()"),
      update(Effect::Kind::merge_average,
             "cohort::merge_average(int variable, Tensor value, Tensor old, float momentum, "
             "bool is_variance) -> ()"),
      other(EffectOpKind::call, "cohort::call(str name, int number, Tensor[] values) -> Tensor[]",
            true),
      other(EffectOpKind::print, "cohort::print(str label, Tensor value) -> ()"),
      other(EffectOpKind::check_finite, "cohort::check_finite(str label, Tensor value) -> ()"),
  };
}

const std::vector<EffectOp>& table() {
  static const std::vector<EffectOp> kTable = make_table();
  return kTable;
}

}  // namespace

at::Tensor statistic_of(const AverageStep& step) {
  const at::Tensor old = step.old.to(at::kDouble);
  at::Tensor statistic = step.value.to(at::kDouble).sub(old).div_(step.momentum).add_(old);
  if (step.is_variance) statistic.clamp_min_(0);
  return statistic.to(step.value.scalar_type());
}

const EffectOp& update_op(Effect::Kind kind) {
  for (const EffectOp& op : table())
    if (op.kind == EffectOpKind::update && op.update == kind) return op;
  COHORT_ASSERT(false);
  return table().front();
}

const EffectOp* find_effect_op(std::string_view name) {
  for (const EffectOp& op : table()) {
    if (op.schema.name() == name) return &op;
  }
  return nullptr;
}

}  // namespace cohort::function
