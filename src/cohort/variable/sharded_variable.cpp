// SPDX-License-Identifier: Apache-2.0
// One variable of several, which are its shards.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/variable/row_lookup.h"
#include "cohort/variable/rows.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using internal::throw_error;
using variable::RowsOfPart;

std::int64_t rows_of(const Variable& shard) { return shard.spec().sizes->front(); }

std::vector<std::int64_t> first_rows_of(std::span<const Variable> shards) {
  std::vector<std::int64_t> first_rows;
  std::int64_t next = 0;
  for (const Variable& shard : shards) {
    first_rows.push_back(next);
    next += rows_of(shard);
  }
  return first_rows;
}

[[noreturn]] void refuse_in_step(std::string_view call, const std::string& name) {
  throw_error(ErrorCode::failed_precondition, "[", call, "] expected a shard, got variable '", name,
              "', which is several variables as one; use its shards()");
}

// The variable that ShardedVariable's constructor makes of others. Immutable.
class VariableOfShards final : public VariableImpl {
 public:
  VariableOfShards(std::string name, std::vector<Variable> shards)
      : name_(std::move(name)), shards_(std::move(shards)), spec_(shards_.front().spec()) {
    spec_.sizes->front() = 0;
    for (const Variable& shard : shards_) spec_.sizes->front() += rows_of(shard);
  }

  const std::string& name() const override { return name_; }
  const TensorSpec& spec() const override { return spec_; }
  bool is_trainable() const override { return shards_.front().is_trainable(); }
  VariableReplication replication() const override { return shards_.front().impl()->replication(); }
  const at::Tensor& tensor() const override { refuse_in_step("variable.tensor", name_); }
  bool is_tensor_current() const override { return false; }
  void check_tensor_is_current(std::string_view call) const override {
    refuse_in_step(call, name_);
  }
  at::Tensor copy() const override { return {}; }
  std::shared_ptr<VariableHome> home() const override;
  std::span<const Variable> shards() const override { return shards_; }

 private:
  const std::string name_;
  const std::vector<Variable> shards_;
  TensorSpec spec_;
};

// The part of `tensor` that belongs to rows from `first`; all of it if it has no rows.
at::Tensor part_of(const at::Tensor& tensor, const TensorSpec& whole, std::int64_t first,
                   std::int64_t rows) {
  const bool has_rows = tensor.dim() > 0 && tensor.size(0) == whole.sizes->front();
  return has_rows ? tensor.narrow(0, first, rows) : tensor;
}

// The home of all variables that are made of shards: it asks the homes of these.
class HomeOfShards final : public VariableHome {
 public:
  void check_use(std::string_view, std::string_view) const override {}
  bool assigns_by_parts() const override { return true; }

  std::vector<at::Tensor> read(std::span<const Variable> variables) const override {
    std::vector<Variable> all;
    for (const Variable& each : variables) {
      const std::span<const Variable> shards = each.impl()->shards();
      all.insert(all.end(), shards.begin(), shards.end());
    }
    const std::vector<at::Tensor> parts = read_values(all);
    std::vector<at::Tensor> values;
    auto next = parts.begin();
    for (const Variable& each : variables) {
      const auto end = next + static_cast<std::ptrdiff_t>(each.impl()->shards().size());
      values.push_back(at::cat(std::vector<at::Tensor>(next, end), 0));
      next = end;
    }
    return values;
  }

  at::Tensor read_rows(const Variable& variable, const at::Tensor& ids) const override {
    const std::span<const Variable> shards = variable.impl()->shards();
    const auto split = variable::split_rows(first_rows_of(shards), ids);
    std::vector<at::Tensor> rows;
    for (const RowsOfPart& each : split)
      rows.push_back(variable::rows_of(shards[each.part], each.ids));
    if (split.size() == 1) return rows.front();
    std::vector<at::Tensor> places;
    for (const RowsOfPart& each : split) places.push_back(each.places);
    // The opposite order, by operators that have gradients.
    return at::cat(rows, 0).index_select(0, at::cat(places, 0).argsort());
  }

  void export_state(std::span<const Variable> variables, const StateWalk& walk,
                    const TakeRecord& take) const override {
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const Variable& whole = variables[i];
      const std::span<const Variable> shards = whole.impl()->shards();
      const std::vector<std::int64_t> first_rows = first_rows_of(shards);
      cohort::export_state(shards, walk, [&](std::size_t shard, VariableRecord record) {
        record.name = whole.name();
        record.spec = whole.spec();
        record.first_row += first_rows[shard];
        take(i, std::move(record));
      });
    }
  }

  void import_state(const Variable& variable, const VariableRecord& record) override {
    std::int64_t first = 0;
    for (const Variable& shard : variable.impl()->shards()) {
      VariableRecord part{.name = shard.name(), .spec = shard.spec(), .values = record.values};
      for (VariableRecord::Value& value : part.values) {
        value.tensor = part_of(value.tensor, record.spec, first, rows_of(shard));
        for (internal::OptimizerSlots& slots : value.slots)
          for (at::Tensor& slot : slots.tensors)
            slot = part_of(slot, record.spec, first, rows_of(shard));
      }
      cohort::import_state(shard, part);
      first += rows_of(shard);
    }
  }

  void write(std::span<const VariableWrite> writes) override {
    for (const VariableWrite& write : writes) {
      if (write.row_ids.defined()) {
        write_rows(write);
      } else {
        assign(write);
      }
    }
  }

  std::vector<at::Tensor> memory_of(const Variable& variable) const override {
    std::vector<at::Tensor> memory;
    for (const Variable& shard : variable.impl()->shards()) {
      const std::vector<at::Tensor> own = shard.impl()->home()->memory_of(shard);
      memory.insert(memory.end(), own.begin(), own.end());
    }
    return memory;
  }

  void apply(const SlotKey& /*key*/, std::span<const Update> updates,
             std::span<const double> /*hyper*/) override {
    refuse_in_step("optimizer.apply_gradients", updates.front().variable.name());
  }

 private:
  // One shard after the other, as in tf; a shard refuses what does not fit it.
  static void assign(const VariableWrite& write) {
    const TensorSpec& spec = write.variable.spec();
    const std::int64_t rows = write.value.dim() == 0 ? 0 : write.value.size(0);
    COHORT_CHECK(write.value.dim() > 0 && rows <= spec.sizes->front(), ErrorCode::invalid_argument,
                 "[variable.assign] expected ", spec.to_string(), ", got ",
                 TensorSpec::of(write.value).to_string(), " (variable '", write.variable.name(),
                 "'); assign a value of the variable's own dtype and shape");
    std::int64_t first = 0;
    for (const Variable& shard : write.variable.impl()->shards()) {
      const std::int64_t begin = std::min(first, rows);
      first += rows_of(shard);
      VariableWrite part = write;
      part.variable = shard;
      part.value = write.value.narrow(0, begin, std::min(first, rows) - begin);
      write_values({&part, 1});
    }
  }

  static void write_rows(const VariableWrite& write) {
    const std::span<const Variable> shards = write.variable.impl()->shards();
    variable::check_divided_evenly(write.variable, "variable.scatter");
    for (const RowsOfPart& each : variable::split_rows(first_rows_of(shards), write.row_ids)) {
      VariableWrite part = write;
      part.variable = shards[each.part];
      part.row_ids = each.ids;
      if (each.places.defined()) part.value = variable::rows_at(write.value, each.places);
      write_values({&part, 1});
    }
  }
};

std::shared_ptr<VariableHome> VariableOfShards::home() const {
  static const auto kHome = std::make_shared<HomeOfShards>();
  return kHome;
}

void check_shards(std::span<const Variable> shards, const std::string& name) {
  COHORT_CHECK(!shards.empty(), ErrorCode::invalid_argument,
               "[variable.sharded] expected at least one shard of variable '", name, "', got none");
  const TensorSpec& first = shards.front().spec();
  for (const Variable& shard : shards) {
    const TensorSpec& spec = shard.spec();
    const bool fits = spec.dtype == first.dtype && !spec.sizes->empty() &&
                      std::equal(spec.sizes->begin() + 1, spec.sizes->end(),
                                 first.sizes->begin() + 1, first.sizes->end());
    COHORT_CHECK(fits, ErrorCode::invalid_argument, "[variable.sharded] expected shards like '",
                 shards.front().name(), "' ", first.to_string(), ", with any number of rows, got '",
                 shard.name(), "' ", spec.to_string(), " (variable '", name, "')");
  }
}

// Guards the containers of all variables.
Mutex& containers() {
  static Mutex mutex;
  return mutex;
}

}  // namespace

std::span<const Variable> VariableImpl::shards() const { return {}; }

std::shared_ptr<const VariableImpl> VariableImpl::container() const {
  const Lock lock(containers());
  return container_.lock();
}

bool VariableImpl::set_container(const std::shared_ptr<const VariableImpl>& container) const {
  const Lock lock(containers());
  if (!container_.expired()) return false;
  container_ = container;
  return true;
}

ShardedVariable::ShardedVariable(std::string name, std::vector<Variable> shards)
    : variable_(nullptr) {
  check_shards(shards, name);
  auto whole = std::make_shared<VariableOfShards>(std::move(name), std::move(shards));
  for (const Variable& shard : whole->shards()) {
    COHORT_CHECK(shard.impl()->set_container(whole), ErrorCode::invalid_argument,
                 "[variable.sharded] expected variables that are no shards, got '", shard.name(),
                 "', which is one of '", shard.impl()->container()->name(), "' (variable '",
                 whole->name(), "')");
  }
  variable_ = Variable(std::move(whole));
}

std::vector<Variable> ShardedVariable::shards() const {
  const std::span<const Variable> shards = variable_.impl()->shards();
  if (shards.empty()) return {variable_};
  return {shards.begin(), shards.end()};
}

std::vector<std::int64_t> ShardedVariable::offsets() const {
  const std::span<const Variable> shards = variable_.impl()->shards();
  if (shards.empty()) return {0};
  return first_rows_of(shards);
}

at::Tensor ShardedVariable::operator[](std::int64_t row) const {
  const std::int64_t rows = variable_.spec().sizes->empty() ? 0 : rows_of(variable_);
  COHORT_CHECK(row >= -rows && row < rows, ErrorCode::out_of_range,
               "[variable.row] expected a row from ", -rows, " to ", rows - 1, ", got ", row,
               " (variable '", variable_.name(), "')");
  const std::int64_t index = row < 0 ? row + rows : row;
  return variable::rows_of(variable_, at::arange(index, index + 1, at::kLong)).squeeze(0);
}

at::Tensor ShardedVariable::slice(std::optional<std::int64_t> start,
                                  std::optional<std::int64_t> stop, std::int64_t step) const {
  COHORT_CHECK(step != 0, ErrorCode::invalid_argument,
               "[variable.slice] expected a step other than 0 (variable '", variable_.name(), "')");
  COHORT_CHECK(!variable_.spec().sizes->empty(), ErrorCode::invalid_argument,
               "[variable.slice] expected a variable with rows, got the number '", variable_.name(),
               "'");
  const std::int64_t rows = rows_of(variable_);
  const std::int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? rows : rows - 1;
  const auto within = [&](std::optional<std::int64_t> bound, std::int64_t missing) {
    if (!bound) return missing;
    return std::clamp(*bound < 0 ? *bound + rows : *bound, lowest, highest);
  };
  const std::int64_t begin = within(start, step > 0 ? lowest : highest);
  const std::int64_t end = within(stop, step > 0 ? highest : lowest);
  const bool is_empty = step > 0 ? begin >= end : begin <= end;
  const at::Tensor ids =
      is_empty ? at::arange(0, at::kLong) : at::arange(begin, end, step, at::kLong);
  return variable::rows_of(variable_, ids);
}

at::Tensor ShardedVariable::sparse_read(const at::Tensor& indices) const {
  variable::check_indices("variable.sparse_read", variable_.name(), variable_.spec(), indices);
  variable::check_divided_evenly(variable_, "variable.sparse_read");
  return variable::rows_of(variable_, indices);
}

}  // namespace cohort
