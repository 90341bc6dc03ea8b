// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/sparse_gradients.h"

#include <algorithm>

#include "cohort/function/tracer/row_tables.h"

namespace cohort::function {
namespace {

// For a smaller table the rows cost as much as the dense gradient.
constexpr std::int64_t kRowsMin = 4096;

// aten::embedding_sparse_backward has its arguments.
constexpr std::string_view kDense = "aten::embedding_dense_backward";
constexpr std::size_t kByFrequency = 4, kNumArguments = 5;

// A padding makes the number of rows depend on the ids, and the sparse operator cannot scale by
// frequency.
bool may_be_sparse(const Op& op, const std::vector<std::optional<TensorSpec>>& specs) {
  const RowGradient* const row = row_gradient(op);
  if (row == nullptr || row->name != kDense || op.args.size() != kNumArguments) return false;
  const Arg &ids = op.args[row->ids], &rows = op.args[row->rows], &padding = op.args[row->padding];
  if (ids.kind != Arg::Kind::value || rows.kind != Arg::Kind::integer ||
      padding.kind != Arg::Kind::integer)
    return false;
  const std::optional<TensorSpec>& spec = specs[static_cast<std::size_t>(ids.id)];
  return spec && spec->dtype == at::kLong && rows.constant.toInt() >= kRowsMin &&
         padding.constant.toInt() < 0 && op.args[kByFrequency].kind == Arg::Kind::boolean_false;
}

bool takes(const Op& call, int value, const TakesRows& takes_rows) {
  if (call.name != "cohort::call") return false;
  const std::vector<int>& values = call.args.at(2).ids;
  const auto place = std::find(values.begin(), values.end(), value) - values.begin();
  return takes_rows(call.args.at(1).constant.toInt(), static_cast<std::size_t>(place));
}

}  // namespace

void make_gradients_sparse(Program& program, std::vector<std::optional<TensorSpec>>& specs,
                           const TakesRows& takes_rows) {
  const auto is_candidate = [&](const Op& op) { return may_be_sparse(op, specs); };
  if (std::ranges::none_of(program.ops, is_candidate)) return;
  std::vector<std::size_t> sparse;
  const RowTables facts(program, specs);
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (!is_candidate(op)) continue;
    const int gradient = op.outs.at(0).ids.at(0);
    const auto takers = facts.takers(gradient);
    const bool is_output = std::ranges::find(program.outputs, gradient) != program.outputs.end();
    if (takers.size() == 1 && !is_output && facts.makers(gradient).size() == 1 &&
        takes(program.ops[takers.front()], gradient, takes_rows))
      sparse.push_back(i);
  }
  for (const std::size_t place : sparse) {
    program.ops[place].name = "aten::embedding_sparse_backward";
    specs[static_cast<std::size_t>(program.ops[place].outs[0].ids[0])].reset();
  }
}

}  // namespace cohort::function
