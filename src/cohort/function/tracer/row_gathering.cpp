// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/row_gathering.h"

#include <algorithm>
#include <utility>

#include "cohort/function/tracer/arguments.h"
#include "cohort/function/tracer/row_tables.h"

namespace cohort::function {
namespace {

// Used only inside gather_rows().
class RowGathering {
 public:
  RowGathering(Program& program, std::vector<std::optional<TensorSpec>>& specs)
      : program_(program), specs_(specs), facts_(program, specs) {}

  void run() {
    place(facts_.find());
    for (std::vector<RowTable>* const group : {&early_, &late_})
      for (RowTable& table : *group) use(table);
    if (!early_.empty() || !late_.empty()) rebuild();
  }

 private:
  // Where the ids are known: before everything that is pulled, or later.
  void place(std::vector<RowTable> tables) {
    start_ = program_.ops.size();
    for (const ProgramVariable& variable : program_.variables) {
      if (!variable.is_read) continue;
      const auto takers = facts_.takers(variable.id);
      if (!takers.empty()) start_ = std::min(start_, takers.front());
    }
    for (RowTable& table : tables) {
      std::vector<std::size_t> moved;
      const bool is_early = std::all_of(table.ids.begin(), table.ids.end(),
                                        [&](int id) { return is_known_at_start(id, moved); });
      if (is_early) {
        moved_.insert(moved_.end(), moved.begin(), moved.end());
        early_.push_back(std::move(table));
        continue;
      }
      const std::size_t first = table.readers.front();
      const bool is_known = std::all_of(table.ids.begin(), table.ids.end(), [&](int id) {
        const auto makers = facts_.makers(id);
        return makers.empty() || makers.back() < first;
      });
      if (is_known) late_.push_back(std::move(table));
    }
    std::sort(moved_.begin(), moved_.end());
    moved_.erase(std::unique(moved_.begin(), moved_.end()), moved_.end());
  }

  // Adds the operators that must move to the start for it, which have no other effect there.
  bool is_known_at_start(int id, std::vector<std::size_t>& moved) const {
    const bool is_variable = std::any_of(program_.variables.begin(), program_.variables.end(),
                                         [&](const auto& each) { return each.id == id; });
    if (is_variable || facts_.is_written(id)) return false;
    const auto makers = facts_.makers(id);
    if (makers.empty() || makers.back() < start_) return true;
    const std::size_t maker = makers.front();
    if (std::find(moved.begin(), moved.end(), maker) != moved.end()) return true;
    constexpr int kHasEffects = Op::writes | Op::random | Op::effect;
    if (makers.size() > 1 || (program_.ops[maker].flags & kHasEffects) != 0) return false;
    bool are_known = true;
    for (const Arg& arg : program_.ops[maker].args) {
      for_each_value(arg,
                     [&](int each) { are_known = are_known && is_known_at_start(each, moved); });
    }
    moved.push_back(maker);
    return are_known;
  }

  int new_value(std::optional<TensorSpec> spec) {
    specs_.push_back(std::move(spec));
    return program_.value_count++;
  }

  // Makes the table's operators use the gathered rows.
  void use(RowTable& table) {
    ProgramVariable& variable = program_.variables[table.variable];
    variable.is_read = false;
    variable.is_handle_only = true;
    table.rows = new_value(std::nullopt);
    table.row_ids = new_value(TensorSpec{at::kLong, {{table.rows_max}}});
    for (const int id : table.ids)
      table.local_ids.push_back(new_value(specs_[static_cast<std::size_t>(id)]));
    for (const std::size_t place : table.readers) {
      Op& reader = program_.ops[place];
      const RowReader& row = *row_reader(reader);
      reader.args[row.table] = value_argument(table.rows);
      reader.args[row.ids] = value_argument(table.local(reader.args[row.ids].id));
      if (row.padding < reader.args.size())
        reader.args[row.padding] = integer_argument(table.local_padding());
    }
    for (const std::size_t place : table.gradients) {
      Op& gradient = program_.ops[place];
      TensorSpec spec = variable.spec;
      spec.sizes->front() = table.rows_max;
      specs_[static_cast<std::size_t>(gradient.outs[0].ids[0])] = spec;
      const RowGradient* const row = row_gradient(gradient);
      if (row == nullptr) continue;
      gradient.args[row->ids] = value_argument(table.local(gradient.args[row->ids].id));
      gradient.args[row->rows] = integer_argument(table.rows_max);
      if (row->padding < gradient.args.size())
        gradient.args[row->padding] = integer_argument(table.local_padding());
    }
    for (const std::size_t place : table.updates) {
      Op& update = program_.ops[place];
      update.name = "cohort::apply_rows";
      update.args.insert(update.args.begin() + 3, value_argument(table.row_ids));
      // The function's own gradient is dense, and lazy_rows does not concern dense ones.
      constexpr std::size_t kWithoutLazyRows = 6;
      update.args.resize(std::min(update.args.size(), kWithoutLazyRows));
    }
  }

  Op gather_op(const std::vector<RowTable>& tables,
               const std::vector<std::int64_t>& variables) const {
    std::vector<std::int64_t> indices, paddings, counts;
    std::vector<int> ids;
    Out out{.is_list = true, .ids = {}};
    for (const RowTable& table : tables) {
      indices.push_back(static_cast<std::int64_t>(table.variable));
      paddings.push_back(table.padding);
      counts.push_back(static_cast<std::int64_t>(table.ids.size()));
      ids.insert(ids.end(), table.ids.begin(), table.ids.end());
      out.ids.insert(out.ids.end(), {table.rows, table.row_ids});
    }
    for (const RowTable& table : tables)
      out.ids.insert(out.ids.end(), table.local_ids.begin(), table.local_ids.end());
    return {
        .name = "cohort::gather",
        .args = {integers_argument(indices), integers_argument(paddings), integers_argument(counts),
                 values_argument(std::move(ids)), integers_argument(variables)},
        .outs = {std::move(out)},
        .flags = Op::effect};
  }

  // The variables that are pulled with the first rows.
  std::vector<std::int64_t> pulled_with_rows() {
    std::vector<std::int64_t> pulled;
    for (std::size_t i = 0; i < program_.variables.size(); ++i) {
      if (!program_.variables[i].is_read) continue;
      program_.variables[i].is_read = false;
      pulled.push_back(static_cast<std::int64_t>(i));
    }
    return pulled;
  }

  void rebuild() {
    std::vector<Op> ops;
    for (std::size_t i = 0; i <= program_.ops.size(); ++i) {
      if (i == start_ && !early_.empty()) {
        for (const std::size_t place : moved_) ops.push_back(std::move(program_.ops[place]));
        ops.push_back(gather_op(early_, pulled_with_rows()));
      }
      if (i == program_.ops.size()) break;
      for (const RowTable& table : late_)
        if (table.readers.front() == i) ops.push_back(gather_op({table}, {}));
      if (!std::binary_search(moved_.begin(), moved_.end(), i))
        ops.push_back(std::move(program_.ops[i]));
    }
    program_.ops = std::move(ops);
  }

  Program& program_;
  std::vector<std::optional<TensorSpec>>& specs_;
  const RowTables facts_;           // about the program as it was
  std::size_t start_ = 0;           // the first operator that reads a variable
  std::vector<std::size_t> moved_;  // operators after it that go to the start
  std::vector<RowTable> early_;
  std::vector<RowTable> late_;
};

}  // namespace

void gather_rows(Program& program, std::vector<std::optional<TensorSpec>>& specs) {
  RowGathering(program, specs).run();
}

}  // namespace cohort::function
