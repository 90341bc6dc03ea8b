// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/stored_table.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/parameter_server/store/table_cut.h"
#include "cohort/rpc/pooled_tensor.h"
#include "cohort/variable/effect_kinds.h"
#include "cohort/variable/initializer_recipe.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/variable/rows.h"
#include "cohort/variable/variable_state.h"

namespace cohort::parameter_server {
namespace {

using variable::numbers_of;

template <class Number>
at::Tensor tensor_of(const std::vector<Number>& numbers) {
  const at::Tensor tensor =
      at::empty({static_cast<std::int64_t>(numbers.size())}, at::TensorOptions(at::kLong));
  std::copy(numbers.begin(), numbers.end(), tensor.data_ptr<std::int64_t>());
  return tensor;
}

std::uint64_t row_bytes_of(const TensorSpec& spec) {
  TensorSpec row = spec;
  row.sizes->front() = 1;
  return static_cast<std::uint64_t>(row.byte_count());
}

// A segment has about 512 KiB of values: little against a table of a million rows, so that memory
// which waits for rows does not count, and a table of 100 million rows has some ten thousand.
int shift_for(std::uint64_t row_bytes, std::uint64_t capacity) {
  constexpr std::uint64_t kSegmentBytes = std::uint64_t{512} << 10;
  std::uint64_t rows = kSegmentBytes / std::max<std::uint64_t>(1, row_bytes);
  if (capacity != 0) rows = std::min(rows, capacity);
  return static_cast<int>(std::bit_width(std::max<std::uint64_t>(1, rows))) - 1;
}

const rpc::VariableSpec& checked(const rpc::VariableSpec& table) {
  const std::optional<std::vector<std::int64_t>>& sizes = table.spec.sizes;
  const bool is_of_rows =
      sizes && sizes->size() >= 2 && sizes->front() == -1 &&
      std::all_of(sizes->begin() + 1, sizes->end(), [](std::int64_t size) { return size > 0; });
  const bool is_real = table.spec.dtype == at::kFloat || table.spec.dtype == at::kDouble;
  COHORT_CHECK(is_of_rows && is_real && table.table && table.initial, ErrorCode::invalid_argument,
               "[server.create_variables] expected a table of float32 or float64 rows [?, …] with "
               "an initializer, got ",
               table.spec.to_string(), " (table '", table.name, "')");
  return table;
}

Initializer initializer_of(const rpc::VariableSpec& table) {
  const rpc::InitialValue& initial = *checked(table).initial;
  Initializer initializer =
      InitializerRecipe{initial.kind, initial.first, initial.second}.initializer();
  TensorSpec row = table.spec;
  row.sizes->front() = 1;
  InitializerRecipe::check_rows(initializer, row, table.name);
  return initializer;
}

}  // namespace

StoredTable::StoredTable(const rpc::VariableSpec& spec, std::size_t hot_rows)
    : name_(spec.name),
      spec_(spec.spec),
      initializer_(initializer_of(spec)),
      seed_(spec.initial->seed),
      shift_(shift_for(row_bytes_of(spec_), spec.table->capacity)),
      statistics_(hot_rows),
      directory_(name_, *spec.table, shift_),
      values_(row_tensor(1), shift_),
      slots_(name_, at::zeros_like(row_tensor(1)), shift_) {}

StoredTable::~StoredTable() = default;

at::Tensor StoredTable::row_tensor(std::int64_t rows) const {
  std::vector<std::int64_t> sizes = *spec_.sizes;
  sizes.front() = rows;
  return at::empty(sizes, at::TensorOptions(spec_.dtype));
}

void StoredTable::check_keys(std::string_view call, const at::Tensor& keys) const {
  const bool are_keys = keys.defined() && keys.scalar_type() == at::kLong && keys.dim() == 1 &&
                        keys.layout() == at::kStrided && keys.is_cpu();
  COHORT_CHECK(are_keys, ErrorCode::invalid_argument, "[", call,
               "] expected keys int64[n] on the CPU, got ",
               keys.defined() ? TensorSpec::of(keys).to_string() : "an undefined tensor",
               " (table '", name_, "')");
  const at::Tensor plain = keys.contiguous();
  const auto all = numbers_of(plain);
  COHORT_CHECK(std::find(all.begin(), all.end(), kNoKey) == all.end(), ErrorCode::invalid_argument,
               "[", call, "] expected keys above ", kNoKey, ", which stands for no key, got it at ",
               "position ", std::find(all.begin(), all.end(), kNoKey) - all.begin(), " (table '",
               name_, "')");
}

void StoredTable::write_first_rows(at::Tensor& rows, std::span<const std::int64_t> keys) const {
  InitializerRecipe::fill_rows(initializer_, rows, keys, name_, seed_);
}

StoredVariable::Version StoredTable::snapshot() const {
  internal::throw_error(ErrorCode::unimplemented, "[server.pull] expected keys of table '", name_,
                        "', got a read of all its rows; look keys up, or export its state");
}

StoredVariable::Version StoredTable::rows(const at::Tensor& keys) {
  check_keys("server.pull", keys);
  const at::Tensor plain = keys.contiguous();
  const auto all = numbers_of(plain);
  std::vector<std::int64_t> sizes = *spec_.sizes;
  sizes.front() = plain.numel();
  StoredVariable::Version version{rpc::pooled_tensor(sizes, spec_.dtype), 0};
  RowDirectory::Found found;
  {
    const ExportLock lock(mutex_);
    found = directory_.find(all);
    values_.copy_to(version.value, found.rows, found.places);
    version.number = version_;
  }
  if (found.absent.empty()) return version;
  std::vector<std::int64_t> absent;
  absent.reserve(found.absent.size());
  for (const std::uint32_t place : found.absent) absent.push_back(all[place]);
  at::Tensor first = row_tensor(static_cast<std::int64_t>(absent.size()));
  write_first_rows(first, absent);
  variable::replace_rows(version.value, tensor_of(found.absent), first);
  return version;
}

std::shared_ptr<StoredTable> StoredTable::frozen() const {
  constexpr std::int64_t kRowsAtOnce = 1 << 16;
  const auto [kind, first, second] = InitializerRecipe::of(initializer_);
  const rpc::InitialValue initial{
      .kind = kind, .first = first, .second = second, .seed = seed_, .name = name_};
  // Never evicts.
  auto copy = std::make_shared<StoredTable>(rpc::VariableSpec{
      .name = name_, .spec = spec_, .initial = initial, .table = rpc::TableSpec()});
  rpc::StateRange range{.rows = kRowsAtOnce};
  std::int64_t end = 0;
  for (; range.first_row == 0 || range.first_row < end; range.first_row += kRowsAtOnce) {
    rpc::StateOfRange state = export_state(range, /*has_slots=*/false);
    end = static_cast<std::int64_t>(state.table->rows_end);
    copy->import_state({std::move(state)});
  }
  return copy;
}

void StoredTable::check_effect(const internal::Effect& effect,
                               const variable::UpdateRule* rule) const {
  COHORT_CHECK(rule != nullptr && effect.row_ids.defined() && effect.tensors.size() == 1,
               ErrorCode::unimplemented,
               "[server.push] expected a step of an optimizer with the gradient of some keys, got ",
               variable::effect_kind(effect.kind).name, " of ",
               effect.row_ids.defined() ? "some" : "all", " rows (table '", name_,
               "'); a table is changed by an optimizer, or by importing its state");
  check_keys("server.push", effect.row_ids);
  const at::Tensor& gradient = effect.tensors[0];
  TensorSpec expected = spec_;
  expected.sizes->front() = effect.row_ids.numel();
  const bool fits = gradient.defined() && gradient.layout() == at::kStrided && gradient.is_cpu() &&
                    TensorSpec::of(gradient) == expected;
  COHORT_CHECK(fits, ErrorCode::invalid_argument, "[server.push] expected a gradient of ",
               expected.to_string(), ", got ",
               gradient.defined() ? TensorSpec::of(gradient).to_string() : "an undefined tensor",
               " (table '", name_, "'); a gradient has one row for each key");
  variable::check_hyperparameters(*rule, effect.hyper, name_);
}

StoredTable::Reserve StoredTable::reserve(internal::Effect effect,
                                          const variable::UpdateRule* rule) {
  check_effect(effect, rule);
  Reserve reserve{.effect = std::move(effect), .rule = rule};
  variable::GradientRows sums{reserve.effect.row_ids.contiguous(),
                              reserve.effect.tensors[0].contiguous()};
  if (!variable::are_summed(sums.ids)) sums = variable::sum_rows(sums);
  const auto keys = numbers_of(sums.ids);
  reserve.keys.assign(keys.begin(), keys.end());
  reserve.gradient = sums.values;
  const ExportLock lock(mutex_);
  slots_.make(reserve.effect.optimizer, *rule, reserve.effect.hyper, directory_.rows_end());
  add_rows(reserve.keys, /*at_once=*/false);
  return reserve;
}

void StoredTable::add_rows(std::span<const std::int64_t> keys, bool at_once) {
  const RowDirectory::Admission added = directory_.prepare(keys, at_once);
  values_.grow_to(added.rows_end);
  slots_.grow_to(added.rows_end);
  if (!added.keys.empty()) {
    if (cut_ != nullptr) cut_->rows.keep(added.rows, /*must=*/true);
    at::Tensor first = row_tensor(static_cast<std::int64_t>(added.keys.size()));
    write_first_rows(first, added.keys);
    values_.copy_from(first, added.rows);
    slots_.reset(added.rows);
  }
  directory_.publish(added);
}

void StoredTable::apply(Reserve reserve) {
  const ExportLock lock(mutex_);
  const internal::Effect& effect = reserve.effect;
  const RowDirectory::Found found = directory_.find(reserve.keys);
  at::Tensor gradient = reserve.gradient;
  if (!found.absent.empty()) {
    gradient = row_tensor(static_cast<std::int64_t>(found.rows.size()));
    variable::copy_rows(gradient, reserve.gradient, tensor_of(found.places));
  }
  const std::size_t count = found.rows.size();
  const auto in_cache = static_cast<std::size_t>(rows_in_cache(row_bytes_of(spec_)));
  const std::size_t at_once =
      slots_.are_of_rows(effect.optimizer) ? std::min(count, in_cache) : count;
  // Once also without rows, since a rule may count its steps.
  for (std::size_t begin = 0; begin < count || begin == 0;
       begin += std::max<std::size_t>(1, at_once)) {
    const std::size_t rows = std::min(at_once, count - begin);
    update_rows(
        reserve, std::span(found.rows).subspan(begin, rows),
        gradient.narrow(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(rows)));
  }
  ++version_;
}

void StoredTable::update_rows(const Reserve& reserve, std::span<const std::uint32_t> rows,
                              const at::Tensor& gradient) {
  if (cut_ != nullptr) cut_->rows.keep(rows, /*must=*/true);
  at::Tensor value = row_tensor(static_cast<std::int64_t>(rows.size()));
  values_.copy_to(value, rows);
  slots_.update(reserve.effect.optimizer, rows, [&](std::span<at::Tensor> slots) {
    reserve.rule->update(value, value, slots, gradient, reserve.effect.hyper);
  });
  values_.copy_from(value, rows);
}

void StoredTable::check_range(const rpc::StateRange& range) const {
  COHORT_CHECK(range.first_row >= 0 && (range.is_whole() || range.rows >= 0),
               ErrorCode::invalid_argument, "[server.state] expected rows of table '", name_,
               "', got ", range.rows, " from row ", range.first_row);
}

rpc::StateOfRange StoredTable::export_state(const rpc::StateRange& range, bool has_slots) const {
  check_range(range);
  const ExportLock lock(mutex_);
  return range.is_of_counts ? export_counts(range) : export_rows(range, has_slots);
}

rpc::StateOfRange StoredTable::export_rows(const rpc::StateRange& range, bool has_slots) const {
  const auto end = static_cast<std::int64_t>(directory_.rows_end());
  const std::int64_t first = std::min(range.first_row, end);
  const std::int64_t count = range.is_whole() ? end - first : std::min(range.rows, end - first);
  std::vector<std::uint32_t> rows;
  std::vector<std::int64_t> keys;
  for (std::int64_t i = first; i < first + count; ++i) {
    const auto row = static_cast<std::uint32_t>(i);
    if (directory_.key_of(row) == kNoKey) continue;
    rows.push_back(row);
    keys.push_back(directory_.key_of(row));
  }
  const auto num_rows = static_cast<std::int64_t>(rows.size());
  rpc::StateOfRange state{.range = range, .version = version_, .value = row_tensor(num_rows)};
  state.table = {tensor_of(keys), directory_.rows_end(), use_now()};
  values_.copy_to(state.value, rows);
  if (has_slots) state.slots = slots_.export_rows(rows);
  return state;
}

rpc::StateOfRange StoredTable::export_counts(const rpc::StateRange& range) const {
  const RowDirectory::Counts counts = directory_.counts(
      range.first_row, range.is_whole() ? std::numeric_limits<std::int64_t>::max() : range.rows);
  rpc::StateOfRange state{.range = range, .version = version_, .value = tensor_of(counts.updates)};
  state.table = {tensor_of(counts.keys), counts.parts_end, use_now()};
  return state;
}

void StoredTable::check_imported_keys(const rpc::StateOfRange& state) const {
  const at::Tensor& keys = state.table->keys;
  check_keys("server.import_state", keys);
  const at::Tensor plain = keys.contiguous();
  std::vector<std::int64_t> all(numbers_of(plain).begin(), numbers_of(plain).end());
  std::sort(all.begin(), all.end());
  const auto twice = std::adjacent_find(all.begin(), all.end());
  COHORT_CHECK(twice == all.end(), ErrorCode::invalid_argument,
               "[server.import_state] expected each key once for table '", name_, "', got ", *twice,
               " twice");
  if (state.range.is_of_counts) return;
  const ExportLock lock(mutex_);
  const std::uint64_t capacity = directory_.capacity();
  COHORT_CHECK(capacity == 0 || all.size() <= capacity, ErrorCode::resource_exhausted,
               "[server.import_state] expected at most ", capacity,
               " rows, which is the capacity of table '", name_, "' on this server, got ",
               all.size(), "; give EmbeddingTableOptions a larger capacity");
}

void StoredTable::check_counts(const rpc::StateOfRange& state, std::string_view name) {
  const TensorSpec expected{at::kLong, {{state.table->keys.numel()}}};
  const bool fits =
      state.value.defined() && TensorSpec::of(state.value) == expected && state.slots.empty();
  COHORT_CHECK(fits, ErrorCode::invalid_argument, "[server.import_state] expected counts of ",
               expected.to_string(), " without slots for table '", name, "', got ",
               state.value.defined() ? TensorSpec::of(state.value).to_string() : "none", " and ",
               state.slots.size(), " slots");
  const at::Tensor counts = state.value.contiguous();
  for (const std::int64_t count : numbers_of(counts)) {
    COHORT_CHECK(count >= 1 && count <= RowDirectory::kUpdatesMax, ErrorCode::invalid_argument,
                 "[server.import_state] expected counts of 1 to ", RowDirectory::kUpdatesMax,
                 " for table '", name, "', got ", count);
  }
}

StoredTable::Import StoredTable::prepare_import(rpc::StateOfRange state) const {
  COHORT_CHECK(state.table.has_value(), ErrorCode::invalid_argument,
               "[server.import_state] expected rows with keys for table '", name_,
               "', got rows without keys");
  check_imported_keys(state);
  if (state.range.is_of_counts) {
    check_counts(state, name_);
    return {std::move(state)};
  }
  TensorSpec expected = spec_;
  expected.sizes->front() = state.table->keys.numel();
  COHORT_CHECK(state.value.defined() && TensorSpec::of(state.value) == expected,
               ErrorCode::invalid_argument, "[server.import_state] expected values of ",
               expected.to_string(), " for table '", name_, "', got ",
               state.value.defined() ? TensorSpec::of(state.value).to_string() : "none");
  check_imported_slots(state.slots, state.value, "table '" + name_ + "'");
  return {std::move(state)};
}

void StoredTable::import_state(Import import) {
  const rpc::StateOfRange& state = import.state;
  const at::Tensor keys = state.table->keys.contiguous(), value = state.value.contiguous();
  const auto all = numbers_of(keys);
  const ExportLock lock(mutex_);
  if (state.range.is_of_counts) return directory_.set_counts(all, numbers_of(value));
  if (state.range.first_row == 0) {
    directory_.clear();
    slots_.clear();
  }
  slots_.make_imported(state.slots, directory_.rows_end());
  add_rows(all, /*at_once=*/true);
  const std::vector<std::uint32_t> rows = directory_.find(all).rows;
  values_.copy_from(value, rows);
  slots_.import_rows(state.slots, rows);
  ++version_;
}

void StoredTable::erase(const at::Tensor& keys) {
  check_keys("server.erase", keys);
  const at::Tensor plain = keys.contiguous();
  const ExportLock lock(mutex_);
  directory_.erase(numbers_of(plain));
  ++version_;
}

rpc::TableUse StoredTable::use() const {
  const ExportLock lock(mutex_);
  return use_now();
}

rpc::TableUse StoredTable::use_now() const {
  return {.rows = directory_.size(),
          .capacity = directory_.capacity(),
          .row_bytes = values_.row_bytes() + slots_.row_bytes(),
          .bytes = directory_.bytes() + values_.bytes() + slots_.bytes(),
          .counted = directory_.num_counted()};
}

std::uint64_t StoredTable::value_bytes() const {
  const ExportLock lock(mutex_);
  return directory_.size() * values_.row_bytes();
}

}  // namespace cohort::parameter_server
