// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/row_reads.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

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

}  // namespace

std::vector<std::size_t> variables_read_by_rows(std::span<const std::byte> bytes) {
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
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < program.variables.size(); ++i) {
    const Reads& of = reads[program.variables[i].id];
    if (of.by_rows && !of.otherwise) found.push_back(i);
  }
  return found;
}

}  // namespace cohort::function
