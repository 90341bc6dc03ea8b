// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/manifest_shares.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::checkpoint {
namespace {

// The tensors that have as many rows as their writers have keys.
std::set<std::string> tensors_of_tables(const Manifest& share) {
  std::set<std::string> names;
  for (const VariableEntry& variable : share.variables) {
    if (!variable.is_table()) continue;
    names.insert({variable.name, variable.keys, variable.counted_keys, variable.counts});
    for (const SlotsEntry& slots : variable.slots)
      names.insert(slots.tensors.begin(), slots.tensors.end());
  }
  return names;
}

// The spec of a table's tensor without its rows.
TensorSpec spec_of_row(TensorSpec spec) {
  if (!spec.sizes->empty()) spec.sizes->front() = 1;
  return spec;
}

template <class... Parts>
[[noreturn]] void fail_for(const std::string& writer, const Parts&... parts) {
  internal::throw_error(ErrorCode::data_loss, "[checkpoint.write] expected the share of ", writer,
                        " to fit those of the other writers, got ", parts...);
}

}  // namespace

void add_tensors_of_share(Manifest& whole, const Manifest& share, const std::string& writer) {
  const std::set<std::string> grown = tensors_of_tables(share);
  for (const auto& [name, tensor] : share.tensors) {
    const bool is_grown = grown.contains(name);
    if (is_grown && tensor.spec.sizes->empty()) fail_for(writer, "'", name, "' without rows");
    auto [known, is_new] = whole.tensors.try_emplace(name, TensorEntry{tensor.spec, tensor.file});
    TensorEntry& all = known->second;
    const bool fits =
        is_grown ? spec_of_row(all.spec) == spec_of_row(tensor.spec) : all.spec == tensor.spec;
    if (!fits) {
      fail_for(writer, "'", name, "' ", tensor.spec.to_string(), ", which is ",
               all.spec.to_string(), " elsewhere");
    }
    const std::int64_t before = is_grown && !is_new ? all.spec.sizes->front() : 0;
    if (is_grown &&
        __builtin_add_overflow(before, tensor.spec.sizes->front(), &all.spec.sizes->front()))
      fail_for(writer, "'", name, "' with more than 2^63 rows");
    for (PartEntry part : tensor.parts) {
      part.first_row += before;
      part.file = tensor.file;
      all.parts.push_back(std::move(part));
    }
  }
}

void order_rows(Manifest& whole) {
  for (auto& [name, tensor] : whole.tensors) {
    std::ranges::stable_sort(tensor.parts, {}, &PartEntry::first_row);
    const std::int64_t rows = tensor.spec.sizes->empty() ? 1 : tensor.spec.sizes->front();
    std::int64_t next = 0;
    bool is_once = true;
    for (const PartEntry& part : tensor.parts) {
      is_once = is_once && part.first_row == next;
      next = part.first_row + part.rows;
    }
    COHORT_CHECK(is_once && next == rows, ErrorCode::data_loss,
                 "[checkpoint.write] expected each row of tensor '", name,
                 "' from one writer, got other parts of its ", rows, " rows");
  }
}

}  // namespace cohort::checkpoint
