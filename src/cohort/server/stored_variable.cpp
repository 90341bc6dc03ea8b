// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/stored_variable.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include "cohort/core/error.h"

namespace cohort::server {
namespace {

// More readers than this at once make a further version cost a fresh allocation.
constexpr std::size_t kSparesMax = 3;

}  // namespace

StoredVariable::StoredVariable(const rpc::VariableSpec& spec)
    : name_(spec.name),
      spec_(spec.spec),
      value_(at::zeros(*spec.spec.sizes, at::TensorOptions(spec.spec.dtype))) {}

at::Tensor StoredVariable::snapshot() const {
  const Lock lock(mutex_);
  return value_;
}

void StoredVariable::check_apply(const UpdateRule& rule, const at::Tensor& gradient,
                                 std::span<const double> hyper) const {
  check_update(rule, snapshot(), gradient, hyper, name_);
}

void StoredVariable::check_assign(const at::Tensor& value) const {
  const TensorSpec got = TensorSpec::of(value);
  COHORT_CHECK(got == spec_, ErrorCode::invalid_argument, "[server.assign] expected ",
               spec_.to_string(), ", got ", got.to_string(), " (variable '", name_,
               "'); assign a value of the variable's own dtype and shape");
}

void StoredVariable::check_rows(const at::Tensor& ids, const at::Tensor& rows) const {
  std::vector<std::int64_t> expected = *spec_.sizes;
  const bool is_table =
      !expected.empty() && ids.dim() == 1 && ids.scalar_type() == at::ScalarType::Long;
  if (is_table) expected[0] = ids.numel();
  COHORT_CHECK(is_table && rows.sizes().vec() == expected && rows.scalar_type() == spec_.dtype,
               ErrorCode::invalid_argument,
               "[server.scatter_add] expected int64 ids [n] and rows of ", spec_.to_string(),
               ", got ids ", TensorSpec::of(ids).to_string(), " and rows ",
               TensorSpec::of(rows).to_string(), " (variable '", name_, "')");
  const std::int64_t* id = ids.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    COHORT_CHECK(id[i] >= 0 && id[i] < (*spec_.sizes)[0], ErrorCode::out_of_range,
                 "[server.scatter_add] expected row ids in [0, ", (*spec_.sizes)[0], "), got ",
                 id[i], " (variable '", name_, "')");
  }
}

void StoredVariable::apply(const UpdateRule& rule, std::string_view slots_of,
                           const at::Tensor& gradient, std::span<const double> hyper) {
  const Lock lock(mutex_);
  auto found = slots_.find(slots_of);
  if (found == slots_.end()) {
    found = slots_.emplace(std::string(slots_of), rule.create_slots(value_, hyper)).first;
  }
  const at::Tensor dense = gradient.contiguous();
  if (!is_shared()) {
    rule.update(value_, value_, found->second, dense, hyper);
    return;
  }
  at::Tensor next = take_spare();
  rule.update(next, value_, found->second, dense, hyper);
  replace(std::move(next));
}

void StoredVariable::assign(AssignKind kind, const at::Tensor& value) {
  const Lock lock(mutex_);
  at::Tensor next = is_shared() ? take_spare() : value_;
  switch (kind) {
    case AssignKind::assign:
      next.copy_(value);
      break;
    case AssignKind::add:
      at::add_out(next, value_, value);
      break;
    case AssignKind::sub:
      at::sub_out(next, value_, value);
      break;
  }
  if (!next.is_same(value_)) replace(std::move(next));
}

void StoredVariable::scatter_add(const at::Tensor& ids, const at::Tensor& rows) {
  const Lock lock(mutex_);
  if (is_shared()) {
    at::Tensor next = take_spare();
    next.copy_(value_);
    replace(std::move(next));
  }
  value_.index_add_(0, ids, rows);
}

bool StoredVariable::is_shared() const { return value_.use_count() > 1; }

at::Tensor StoredVariable::take_spare() {
  for (std::size_t i = 0; i < retired_.size(); ++i) {
    if (retired_[i].use_count() > 1) continue;
    at::Tensor spare = std::move(retired_[i]);
    retired_.erase(retired_.begin() + static_cast<std::ptrdiff_t>(i));
    return spare;
  }
  return at::empty(*spec_.sizes, at::TensorOptions(spec_.dtype));
}

void StoredVariable::replace(at::Tensor next) {
  if (retired_.size() < kSparesMax) retired_.push_back(value_);
  value_ = std::move(next);
}

}  // namespace cohort::server
