// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/row_reads.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "cohort/function/program/wire.h"

namespace cohort::function {
namespace {

// The first argument of each is what it indexes.
constexpr std::array<std::string_view, 7> kRowReaders = {
    "aten::embedding",    "aten::index_select",   "aten::index",
    "aten::gather",       "aten::_embedding_bag", "aten::_embedding_bag_forward_only",
    "aten::embedding_bag"};

struct Reads {
  bool by_rows = false;
  bool otherwise = false;
};

// Whether a step of an optimizer takes a dense gradient of the variable.
bool has_dense_gradient(const Program& program, std::size_t variable) {
  std::unordered_set<int> sparse;
  for (const Op& op : program.ops) {
    if (op.name.find("sparse_coo_tensor") != std::string::npos)
      for (const Out& out : op.outs) sparse.insert(out.ids.begin(), out.ids.end());
    const bool is_step = op.name == "cohort::apply" &&
                         op.args.at(2).constant.toInt() == static_cast<std::int64_t>(variable);
    if (is_step && !sparse.contains(op.args.at(3).id)) return true;
  }
  return false;
}

}  // namespace

std::vector<WholeTable> tables_moved_whole(std::span<const std::byte> bytes) {
  const Program program = decode_program(bytes);
  std::unordered_map<int, Reads> reads;  // of a variable's value
  for (const ProgramVariable& variable : program.variables) reads[variable.id];
  const auto note = [&reads](int id, bool by_rows) {
    const auto found = reads.find(id);
    if (found != reads.end()) (by_rows ? found->second.by_rows : found->second.otherwise) = true;
  };
  for (const Op& op : program.ops) {
    const bool is_reader =
        std::find(kRowReaders.begin(), kRowReaders.end(), op.name) != kRowReaders.end();
    for (std::size_t i = 0; i < op.args.size(); ++i) {
      const bool by_rows = is_reader && i == 0 && op.args[i].kind == Arg::Kind::value;
      for_each_value(op.args[i], [&](int id) { note(id, by_rows); });
    }
  }
  for (const int id : program.outputs) note(id, false);
  std::vector<WholeTable> found;
  for (std::size_t i = 0; i < program.variables.size(); ++i) {
    const bool is_gathered = program.variables[i].is_handle_only;
    const Reads& of = reads[program.variables[i].id];
    if (!is_gathered && (!of.by_rows || of.otherwise)) continue;
    const WholeTable table{i, !is_gathered, has_dense_gradient(program, i)};
    if (table.is_pulled || table.is_pushed) found.push_back(table);
  }
  return found;
}

}  // namespace cohort::function
