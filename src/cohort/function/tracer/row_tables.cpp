// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/row_tables.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

namespace cohort::function {
namespace {

constexpr auto kReaders = std::to_array<RowReader>({
    {"aten::embedding", 0, 1},
    {"aten::_embedding_bag", 0, 1, 8},
    {"aten::_embedding_bag_forward_only", 0, 1, 8},
    {"aten::_embedding_bag_per_sample_weights_backward", 1, 2, 6},
    {"aten::index_select", 0, 2, kNoArgument, 1},
});

constexpr auto kGradients = std::to_array<RowGradient>({
    {"aten::embedding_dense_backward", 1, 2, 3},
    {"aten::_embedding_bag_dense_backward", 1, 5, 9},
    {"aten::_embedding_bag_backward", 1, 6, 11, 9},  // as LibTorch 2 records it
});

template <class Table>
const typename Table::value_type* find_row(const Table& table, std::string_view name,
                                           std::string_view overload) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.name == name; });
  return found == table.end() || !overload.empty() ? nullptr : &*found;
}

bool is_value(const Op& op, std::size_t place) {
  return place < op.args.size() && op.args[place].kind == Arg::Kind::value;
}

std::int64_t integer_at(const Op& op, std::size_t place, std::int64_t missing) {
  const bool is_given = place < op.args.size() && op.args[place].kind == Arg::Kind::integer;
  return is_given ? op.args[place].constant.toInt() : missing;
}

bool reads_rows(const RowReader& reader, const Op& op, int table) {
  if (!is_value(op, reader.table) || op.args[reader.table].id != table) return false;
  if (!is_value(op, reader.ids) || op.args[reader.ids].id == table) return false;
  return reader.axis == kNoArgument || integer_at(op, reader.axis, -1) == 0;
}

bool is_sparse(const RowGradient& gradient, const Op& op) {
  return gradient.sparse < op.args.size() &&
         op.args[gradient.sparse].kind != Arg::Kind::boolean_false;
}

template <class List, class Item>
bool contains(const List& list, const Item& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace

const RowReader* row_reader(std::string_view name, std::string_view overload) {
  return find_row(kReaders, name, overload);
}
const RowReader* row_reader(const Op& op) { return row_reader(op.name, op.overload); }
const RowGradient* row_gradient(const Op& op) { return find_row(kGradients, op.name, op.overload); }

RowTables::RowTables(const Program& program, std::span<const std::optional<TensorSpec>> specs)
    : program_(program), specs_(specs), aliases_(aliases_of(program)) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    for (const Out& out : op(i).outs)
      for (const int id : out.ids)
        if (id != -1) makers_[id].push_back(i);
    for (const Arg& arg : op(i).args)
      for_each_value(arg, [&](int id) { takers_[id].push_back(i); });
  }
}

std::span<const std::size_t> RowTables::all_of(const Places& places, int id) {
  const auto found = places.find(id);
  if (found == places.end()) return {};
  return found->second;
}

std::vector<RowTable> RowTables::find() const {
  std::vector<RowTable> tables;
  for (std::size_t i = 0; i < program_.variables.size(); ++i)
    if (std::optional<RowTable> table = table_of(i)) tables.push_back(std::move(*table));
  return tables;
}

// Whether the program reads the variable by rows alone.
std::optional<RowTable> RowTables::table_of(std::size_t index) const {
  const ProgramVariable& variable = program_.variables[index];
  if (!variable.is_read || variable.is_handle_only || variable.spec.sizes->empty())
    return std::nullopt;
  RowTable table{.variable = index};
  std::vector<std::int64_t> paddings;
  for (const std::size_t taker : takers(variable.id)) {
    const RowReader* const reader = row_reader(op(taker));
    if (reader == nullptr || !reads_rows(*reader, op(taker), variable.id)) return std::nullopt;
    const int ids = op(taker).args[reader->ids].id;
    if (!contains(table.ids, ids)) table.ids.push_back(ids);
    table.readers.push_back(taker);
    if (reader->padding != kNoArgument)
      paddings.push_back(integer_at(op(taker), reader->padding, -1));
  }
  if (table.readers.empty() || is_used_otherwise(index)) return std::nullopt;
  find_gradients(table, paddings);
  if (!has_own_maxima(table)) return std::nullopt;
  if (!paddings.empty()) {
    if (std::adjacent_find(paddings.begin(), paddings.end(), std::not_equal_to()) != paddings.end())
      return std::nullopt;
    table.padding = paddings.front();
  }
  if (!count_rows(table)) return std::nullopt;
  return table;
}

// As a result of the program, or pulled again after an update.
bool RowTables::is_used_otherwise(std::size_t index) const {
  if (is_output(program_.variables[index].id)) return true;
  return std::any_of(program_.ops.begin(), program_.ops.end(), [&](const Op& op) {
    if (op.name != "cohort::next_segment") return false;
    return contains(op.args.at(0).constant.toIntVector(), static_cast<std::int64_t>(index));
  });
}

// The updates of the table with gradients of its rows alone.
void RowTables::find_gradients(RowTable& table, std::vector<std::int64_t>& paddings) const {
  for (std::size_t i = 0; i < program_.ops.size(); ++i) {
    if (op(i).name != "cohort::apply" || !is_value(op(i), 3) ||
        integer_at(op(i), 2, -1) != static_cast<std::int64_t>(table.variable))
      continue;
    std::vector<std::size_t> gradients;
    if (!is_of_rows(table, op(i).args[3].id, i, gradients)) continue;
    table.updates.push_back(i);
    for (const std::size_t gradient : gradients) {
      table.gradients.push_back(gradient);
      if (const RowGradient* const row = row_gradient(op(gradient)))
        paddings.push_back(integer_at(op(gradient), row->padding, -1));
    }
  }
}

// A bag whose rows are reduced to their maximum also gives the ids of these rows. Whether only
// gradients that become gradients of rows use them.
bool RowTables::has_own_maxima(const RowTable& table) const {
  constexpr std::int64_t kMax = 2;
  return std::all_of(table.readers.begin(), table.readers.end(), [&](std::size_t place) {
    const Op& reader = op(place);
    if (reader.name != "aten::_embedding_bag" || integer_at(reader, 4, 0) != kMax) return true;
    const int maxima = reader.outs.at(3).ids.at(0);
    return !is_output(maxima) && std::ranges::all_of(takers(maxima), [&](std::size_t taker) {
      return contains(table.gradients, taker);
    });
  });
}

// Whether the value, which only `taker` and additions to it use, is zero but for rows that the
// program reads. Adds the operators that make it.
bool RowTables::is_of_rows(const RowTable& table, int id, std::size_t taker,
                           std::vector<std::size_t>& gradients) const {
  const std::span<const std::size_t> makers = this->makers(id);
  std::vector<std::size_t> takers(makers.begin() + (makers.empty() ? 0 : 1), makers.end());
  takers.push_back(taker);
  if (makers.empty() || is_output(id) || !std::ranges::equal(this->takers(id), takers))
    return false;
  // A table that is read several times: autograd adds the gradients, as a new tensor or in place.
  const auto is_sum_of_rows = [&](std::size_t place, std::size_t first_argument) {
    const Op& sum = op(place);
    if (sum.name != (first_argument == 0 ? "aten::add" : "aten::add_") || sum.overload != "Tensor")
      return false;
    for (std::size_t i = first_argument; i < 2; ++i)
      if (!is_value(sum, i) || !is_of_rows(table, sum.args[i].id, place, gradients)) return false;
    gradients.push_back(place);
    return true;
  };
  for (const std::size_t place : makers.subspan(1)) {
    if (!is_value(op(place), 0) || op(place).args[0].id != id || !is_sum_of_rows(place, 1))
      return false;
  }
  const Op& maker = op(makers.front());
  const RowGradient* const gradient = row_gradient(maker);
  if (gradient == nullptr) return is_sum_of_rows(makers.front(), 0);
  const TensorSpec& spec = program_.variables[table.variable].spec;
  if (is_sparse(*gradient, maker) || integer_at(maker, gradient->rows, -1) != spec.sizes->front() ||
      !is_value(maker, gradient->ids) || !contains(table.ids, maker.args[gradient->ids].id))
    return false;
  gradients.push_back(makers.front());
  return true;
}

bool RowTables::is_output(int id) const { return contains(program_.outputs, id); }

// Returns false if it is not worth it.
bool RowTables::count_rows(RowTable& table) const {
  table.rows_max = table.padding < 0 ? 0 : 1;
  for (const int id : table.ids) {
    const std::optional<TensorSpec>& spec = specs_[static_cast<std::size_t>(id)];
    if (!spec || !spec->sizes || is_written(id)) return false;
    std::int64_t count = 1;
    for (const std::int64_t size : *spec->sizes) count *= size;
    table.rows_max += count;
  }
  const std::int64_t rows = program_.variables[table.variable].spec.sizes->front();
  return table.padding < rows && 2 * table.rows_max <= rows;
}

}  // namespace cohort::function
