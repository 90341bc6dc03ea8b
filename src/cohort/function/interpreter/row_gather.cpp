// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/interpreter/row_gather.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/function/interpreter/run_values.h"

namespace cohort::function {
namespace {

// Numbers ids from 0 on, in the order in which they first occur. Used only inside RowGather::add().
class Numbering {
 public:
  explicit Numbering(std::size_t count_max)
      : keys_(std::bit_ceil(2 * count_max + 2), kFree),
        numbers_(keys_.size()),
        shift_(64 - std::countr_zero(keys_.size())) {}

  std::int32_t number_of(std::int64_t id) {
    // The upper bits of this product depend on all bits of the id.
    std::size_t place = (static_cast<std::uint64_t>(id) * 0x9E3779B97F4A7C15U) >> shift_;
    while (keys_[place] != kFree && keys_[place] != id) place = (place + 1) & (keys_.size() - 1);
    if (keys_[place] == kFree) {
      keys_[place] = id;
      numbers_[place] = static_cast<std::int32_t>(ids_.size());
      ids_.push_back(id);
    }
    return numbers_[place];
  }
  const std::vector<std::int64_t>& ids() const { return ids_; }

 private:
  static constexpr std::int64_t kFree = internal::kNoRow;
  std::vector<std::int64_t> keys_;
  std::vector<std::int32_t> numbers_;
  std::vector<std::int64_t> ids_;
  int shift_;
};

at::Tensor tensor_of(std::size_t count) {
  return at::empty({static_cast<std::int64_t>(count)}, at::TensorOptions(at::kLong));
}

template <class T>
at::Tensor places_of(const at::Tensor& like, std::span<const std::int32_t> numbers,
                     std::span<const std::int32_t> places) {
  const at::Tensor all = at::empty(like.sizes(), at::TensorOptions(like.scalar_type()));
  T* const out = all.data_ptr<T>();
  for (std::size_t i = 0; i < numbers.size(); ++i)
    out[i] = static_cast<T>(places[static_cast<std::size_t>(numbers[i])]);
  return all;
}

void check_ids(const at::Tensor& ids, const std::string& variable) {
  const bool are_ids = ids.defined() && ids.is_cpu() && ids.layout() == at::kStrided &&
                       (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt);
  COHORT_CHECK(are_ids, ErrorCode::invalid_argument,
               "[function.run] expected ids of int64 or int32 on the CPU for variable '", variable,
               "', got ", ids.defined() ? TensorSpec::of(ids).to_string() : "none");
}

constexpr std::int64_t kAnyKey = -1;

// `rows`: the number of rows, or kAnyKey.
void check_id(std::int64_t id, std::int64_t rows, const std::string& variable, std::size_t place) {
  if (rows == kAnyKey) {
    COHORT_CHECK(id != internal::kNoRow, ErrorCode::invalid_argument,
                 "[function.run] expected keys of table '", variable, "' above ", id,
                 ", which stands for no key, got it at position ", place);
    return;
  }
  COHORT_CHECK(id >= 0 && id < rows, ErrorCode::invalid_argument,
               "[function.run] expected ids of the ", rows, " rows of variable '", variable,
               "', got ", id, " at position ", place);
}

}  // namespace

RowGather::RowGather(std::span<const c10::IValue> arguments, const ProgramInfo& info)
    : info_(info), variables_(arguments[4].toIntVector()) {
  const std::vector<std::int64_t> tables = arguments[0].toIntVector();
  const std::vector<std::int64_t> paddings = arguments[1].toIntVector();
  const std::vector<std::int64_t> counts = arguments[2].toIntVector();
  const std::vector<at::Tensor> ids = arguments[3].toTensorVector();
  std::span<const at::Tensor> rest = ids;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const auto count = static_cast<std::size_t>(counts[i]);
    add(rest.first(count), tables[i], paddings[i],
        info.variables[static_cast<std::size_t>(tables[i])]);
    rest = rest.subspan(count);
  }
}

void RowGather::add(std::span<const at::Tensor> ids, std::int64_t variable, std::int64_t padding,
                    const ProgramInfo::Variable& table) {
  // A table has no rows here; any number but one is a key of it.
  const std::int64_t rows = table.spec.sizes->front();
  const bool is_by_key = rows == 0 && table.is_handle_only;
  const bool has_padding = padding >= 0;
  std::size_t total = has_padding ? 1 : 0;
  for (const at::Tensor& each : ids) {
    check_ids(each, table.name);
    total += static_cast<std::size_t>(each.numel());
  }
  Numbering numbering(total);
  if (has_padding) numbering.number_of(padding);
  std::vector<std::int32_t> numbers;  // of all ids
  numbers.reserve(total);
  for (const at::Tensor& each : ids) {
    const at::Tensor wide = each.to(at::kLong).contiguous();
    const std::span<const std::int64_t> all(wide.data_ptr<std::int64_t>(),
                                            static_cast<std::size_t>(wide.numel()));
    for (std::size_t i = 0; i < all.size(); ++i) {
      check_id(all[i], is_by_key ? kAnyKey : rows, table.name, i);
      numbers.push_back(numbering.number_of(all[i]));
    }
  }
  struct Used {
    std::int64_t id;
    std::size_t number;
  };
  std::vector<Used> used;
  used.reserve(numbering.ids().size());
  for (const std::int64_t id : numbering.ids()) used.push_back({id, used.size()});
  std::sort(used.begin() + (has_padding ? 1 : 0), used.end(),
            [](const Used& a, const Used& b) { return a.id < b.id; });
  reads_.push_back({variable, tensor_of(used.size())});
  row_ids_.push_back(tensor_of(total));
  std::vector<std::int32_t> places(used.size());  // by number
  auto* const own = reads_.back().ids.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < used.size(); ++i) {
    own[i] = used[i].id;
    places[used[i].number] = static_cast<std::int32_t>(i);
  }
  auto* const row_ids = row_ids_.back().data_ptr<std::int64_t>();
  std::fill(std::copy(own, own + used.size(), row_ids), row_ids + total, internal::kNoRow);
  if (has_padding) row_ids[0] = internal::kNoRow;
  std::span<const std::int32_t> rest = numbers;
  for (const at::Tensor& each : ids) {
    const auto own_numbers = rest.first(static_cast<std::size_t>(each.numel()));
    rest = rest.subspan(own_numbers.size());
    places_.push_back(each.scalar_type() == at::kLong
                          ? places_of<std::int64_t>(each, own_numbers, places)
                          : places_of<std::int32_t>(each, own_numbers, places));
  }
}

std::vector<at::Tensor> RowGather::results(std::vector<at::Tensor> rows) {
  COHORT_CHECK(rows.size() == reads_.size(), ErrorCode::internal, "[function.run] expected ",
               reads_.size(), " tables, got ", rows.size());
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < reads_.size(); ++i) {
    const auto variable = static_cast<std::size_t>(reads_[i].variable);
    TensorSpec expected = info_.variables[variable].spec;
    expected.sizes->front() = reads_[i].ids.numel();
    check_spec(expected, rows[i], "rows of variable", variable,
               " '" + info_.variables[variable].name + "'");
    results.push_back(row_major(rows[i]));
    results.push_back(std::move(row_ids_[i]));
  }
  std::ranges::move(places_, std::back_inserter(results));
  return results;
}

void drop_unused(at::Tensor& row_ids, at::Tensor& rows) {
  const std::span<const std::int64_t> all(row_ids.data_ptr<std::int64_t>(),
                                          static_cast<std::size_t>(row_ids.numel()));
  const auto is_used = [](std::int64_t id) { return id != internal::kNoRow; };
  const auto first = std::ranges::find_if(all, is_used);
  const auto last = std::find_if_not(first, all.end(), is_used);
  if (std::any_of(last, all.end(), is_used)) {
    const at::Tensor used = row_ids.ne(at::Scalar(internal::kNoRow)).nonzero().squeeze(1);
    row_ids = row_ids.index_select(0, used);
    rows = rows.index_select(0, used);
    return;
  }
  const std::int64_t begin = first - all.begin();
  row_ids = row_ids.narrow(0, begin, last - first);
  rows = rows.narrow(0, begin, last - first);
}

}  // namespace cohort::function
