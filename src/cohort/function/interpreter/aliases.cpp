// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/interpreter/aliases.h"

#include <algorithm>
#include <numeric>

#include "cohort/function/program/op_memory.h"

namespace cohort::function {
namespace {

// Whether a boolean argument is false. The op may leave it out where it has its default.
bool is_false(const Op& op, const c10::OperatorHandle& kernel, int argument) {
  const auto index = static_cast<std::size_t>(argument);
  if (index < op.args.size()) return op.args[index].kind == Arg::Kind::boolean_false;
  const auto& fallback = kernel.schema().arguments().at(index).default_value();
  return fallback && fallback->isBool() && !fallback->toBool();
}

}  // namespace

AliasClasses::AliasClasses(int value_count)
    : parents_(static_cast<std::size_t>(value_count)),
      sizes_(parents_.size(), 1),
      last_writes_(parents_.size(), -1) {
  std::iota(parents_.begin(), parents_.end(), 0);
}

void AliasClasses::add(const Op& op, const c10::OperatorHandle& kernel, int position) {
  const auto& arguments = kernel.schema().arguments();
  const auto& returns = kernel.schema().returns();
  bool is_silent = false;
  for (std::size_t i = 0; i < op.outs.size(); ++i)
    is_silent |= returns[i].alias_info() == nullptr && may_be_alias(kernel, i);
  std::vector<int> shared;
  for (std::size_t i = 0; i < op.args.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr || is_silent) {
      for_each_value(op.args[i], [&](int id) { shared.push_back(id); });
    }
    if (alias != nullptr && alias->isWrite()) mark_written(op.args[i], position);
  }
  for (std::size_t i = 0; i < op.outs.size(); ++i) {
    if (!may_be_alias(kernel, i)) continue;
    for (const int out : op.outs[i].ids) {
      if (out == -1) continue;
      for (const int id : shared) unite(out, id);
    }
  }
  for (std::size_t i = 0; i < op.args.size(); ++i) {
    const auto flag = hidden_write(op.name, i);
    if (!flag || (*flag != kAlways && is_false(op, kernel, *flag))) continue;
    mark_written(op.args[i], position);
  }
}

int AliasClasses::root(int id) const {
  while (parents_[static_cast<std::size_t>(id)] != id) id = parents_[static_cast<std::size_t>(id)];
  return id;
}

// The smaller class joins the larger one, so that paths stay short.
void AliasClasses::unite(int a, int b) {
  auto small = static_cast<std::size_t>(root(a));
  auto large = static_cast<std::size_t>(root(b));
  if (small == large) return;
  if (sizes_[small] > sizes_[large]) std::swap(small, large);
  parents_[small] = static_cast<int>(large);
  sizes_[large] += sizes_[small];
  last_writes_[large] = std::max(last_writes_[large], last_writes_[small]);
}

void AliasClasses::mark_written(int id, int position) {
  int& last = last_writes_[static_cast<std::size_t>(root(id))];
  last = std::max(last, position);
}

void AliasClasses::mark_written(const Arg& arg, int position) {
  for_each_value(arg, [&](int id) { mark_written(id, position); });
}

AliasClasses aliases_of(const Program& program) {
  AliasClasses classes(program.value_count);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const auto kernel = c10::Dispatcher::singleton().findSchema({op.name, op.overload});
    if (kernel) classes.add(op, *kernel, static_cast<int>(i));
  }
  return classes;
}

}  // namespace cohort::function
