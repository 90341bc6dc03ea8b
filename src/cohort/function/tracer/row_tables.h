// SPDX-License-Identifier: Apache-2.0
// Which variables a program reads by rows alone, and which gradients of them are zero elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cohort/core/tensor_spec.h"
#include "cohort/function/interpreter/aliases.h"
#include "cohort/function/program/program.h"

namespace cohort::function {

inline constexpr std::size_t kNoArgument = std::numeric_limits<std::size_t>::max();

// An operator that reads rows of a table; the places of its arguments.
struct RowReader {
  std::string_view name;
  std::size_t table;
  std::size_t ids;
  std::size_t padding = kNoArgument;  // the row that counts as zero
  std::size_t axis = kNoArgument;     // must be 0
};
// An operator that makes the dense gradient of a table from the gradients of rows.
struct RowGradient {
  std::string_view name;
  std::size_t ids;
  std::size_t rows;  // the number of rows of the table
  std::size_t padding;
  std::size_t sparse = kNoArgument;  // must be false: the result is dense
};
// nullptr for other operators.
const RowReader* row_reader(const Op& op);
const RowReader* row_reader(std::string_view name, std::string_view overload);
const RowGradient* row_gradient(const Op& op);

// A variable whose rows are gathered. Operators are named by their places in the program.
struct RowTable {
  std::size_t variable = 0;
  std::vector<int> ids;  // the values by which its rows are read, each once
  std::vector<std::size_t> readers;
  std::vector<std::size_t> gradients;  // those whose result becomes one of rows, and their sums
  std::vector<std::size_t> updates;    // those that take such a result
  std::int64_t padding = -1;
  std::int64_t rows_max = 0;  // the number of ids, and one for the padding
  // The new values.
  int rows = -1;
  int row_ids = -1;
  std::vector<int> local_ids;  // for each of `ids`

  int local(int id) const {
    const auto at = std::find(ids.begin(), ids.end(), id);
    return at == ids.end() ? -1 : local_ids[static_cast<std::size_t>(at - ids.begin())];
  }
  std::int64_t local_padding() const { return padding < 0 ? -1 : 0; }
};

// Thread-compatible. The program must not change meanwhile.
class RowTables {
 public:
  RowTables(const Program& program, std::span<const std::optional<TensorSpec>> specs);

  // The variables for which it is worth it to gather their rows.
  std::vector<RowTable> find() const;

  // The operators that give or take a value, in the order of the program.
  std::span<const std::size_t> makers(int id) const { return all_of(makers_, id); }
  std::span<const std::size_t> takers(int id) const { return all_of(takers_, id); }
  // Whether some operator writes to its memory.
  bool is_written(int id) const { return aliases_.is_written(id); }

 private:
  using Places = std::map<int, std::vector<std::size_t>>;
  static std::span<const std::size_t> all_of(const Places& places, int id);
  const Op& op(std::size_t place) const { return program_.ops[place]; }
  std::optional<RowTable> table_of(std::size_t index) const;
  bool is_used_otherwise(std::size_t index) const;
  void find_gradients(RowTable& table, std::vector<std::int64_t>& paddings) const;
  bool has_own_maxima(const RowTable& table) const;
  bool is_of_rows(const RowTable& table, int id, std::size_t taker,
                  std::vector<std::size_t>& gradients) const;
  bool is_output(int id) const;
  bool count_rows(RowTable& table) const;

  const Program& program_;
  const std::span<const std::optional<TensorSpec>> specs_;
  AliasClasses aliases_;
  Places makers_;
  Places takers_;
};

}  // namespace cohort::function
