// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/interpreter/effect_ops.h"

#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <vector>

namespace cohort::function {
namespace {

using torch::jit::parseSchema;

// One row per operator; `variable` and `resource` are indices into the program's tables.
std::vector<EffectOp> make_table() {
  return {
      {Effect::iterator_next, parseSchema("cohort::iterator_next(int resource) -> Tensor[]")},
      {Effect::apply,
       parseSchema("cohort::apply(str rule, str optimizer, int variable, Tensor gradient, "
                   "Tensor[] hyper) -> ()")},
      {Effect::assign, parseSchema("cohort::assign(int variable, Tensor value) -> ()")},
      {Effect::assign_add, parseSchema("cohort::assign_add(int variable, Tensor value) -> ()")},
      {Effect::assign_sub, parseSchema("cohort::assign_sub(int variable, Tensor value) -> ()")},
      {Effect::gather,
       parseSchema("cohort::gather(Tensor handle, int variable, Tensor ids) -> Tensor")},
      {Effect::scatter_add,
       parseSchema("cohort::scatter_add(int variable, Tensor ids, Tensor rows) -> ()")},
      {Effect::next_segment, parseSchema("cohort::next_segment(int[] variables) -> ()")},
      {Effect::merge_average,
       parseSchema("cohort::merge_average(int variable, Tensor value, Tensor old, float momentum, "
                   "bool is_variance) -> ()")},
      {Effect::call,
       parseSchema("cohort::call(str name, int number, Tensor[] values) -> Tensor[]")},
      {Effect::print, parseSchema("cohort::print(str label, Tensor value) -> ()")},
      {Effect::check_finite, parseSchema("cohort::check_finite(str label, Tensor value) -> ()")},
  };
}

}  // namespace

bool keeps_arguments(Effect effect) {
  switch (effect) {
    case Effect::none:
    case Effect::iterator_next:
    case Effect::gather:
    case Effect::next_segment:
    case Effect::print:
    case Effect::check_finite:
      return false;
    case Effect::apply:
    case Effect::assign:
    case Effect::assign_add:
    case Effect::assign_sub:
    case Effect::scatter_add:
    case Effect::merge_average:
    case Effect::call:
      return true;
  }
  return true;
}

const EffectOp* find_effect_op(std::string_view name) {
  static const std::vector<EffectOp> table = make_table();
  for (const EffectOp& op : table) {
    if (op.schema.name() == name) return &op;
  }
  return nullptr;
}

}  // namespace cohort::function
