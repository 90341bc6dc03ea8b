// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/stored_variable.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <type_traits>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::parameter_server {
namespace {

// If more readers than this hold old versions, a new version needs a new allocation.
constexpr std::size_t kSparesMax = 3;

bool is_average(at::ScalarType dtype) {
  return dtype == at::ScalarType::Float || dtype == at::ScalarType::Double ||
         dtype == at::ScalarType::Half || dtype == at::ScalarType::BFloat16;
}

// Computes in float64. If value and statistic are not negative, the result is not negative either:
// it is at least v - m * v, with m at most 1.
template <class T>
void move_elements(const at::Tensor& next, const at::Tensor& value, const at::Tensor& statistic,
                   double momentum) {
  T* out = next.data_ptr<T>();
  const T* from = value.data_ptr<T>();
  const T* to = statistic.data_ptr<T>();
  using Narrow = std::conditional_t<std::is_same_v<T, double>, double, float>;
  for (std::int64_t i = 0; i < value.numel(); ++i) {
    const auto old = static_cast<double>(from[i]);
    const double moved = old + momentum * (static_cast<double>(to[i]) - old);
    out[i] = static_cast<T>(static_cast<Narrow>(moved));
  }
}

void move_average(const at::Tensor& next, const at::Tensor& value, const at::Tensor& statistic,
                  double momentum) {
  switch (value.scalar_type()) {
    case at::ScalarType::Float:
      return move_elements<float>(next, value, statistic, momentum);
    case at::ScalarType::Half:
      return move_elements<at::Half>(next, value, statistic, momentum);
    case at::ScalarType::BFloat16:
      return move_elements<at::BFloat16>(next, value, statistic, momentum);
    default:
      return move_elements<double>(next, value, statistic, momentum);
  }
}

}  // namespace

StoredVariable::StoredVariable(std::string name, at::Tensor value)
    : name_(std::move(name)),
      spec_(TensorSpec::of(value)),
      can_add_{can_add(spec_.dtype, false), can_add(spec_.dtype, true)},
      state_(std::move(value)) {
  retired_.reserve(kSparesMax);
}

StoredVariable::Version StoredVariable::snapshot() const {
  const Lock lock(mutex_);
  return {state_.value(), version_};
}

void StoredVariable::check_spec(std::string_view what, const at::Tensor& value) const {
  const TensorSpec got = TensorSpec::of(value);
  const bool is_dense = value.layout() == at::kStrided && value.device().is_cpu();
  COHORT_CHECK(got == spec_ && is_dense, ErrorCode::invalid_argument, "[server.", what,
               "] expected ", spec_.to_string(), ", got ",
               is_dense ? "" : "one that is sparse or not on the CPU, ", got.to_string(),
               " (variable '", name_, "'); assign a value of the variable's own dtype and shape");
}

StoredVariable::Reserve StoredVariable::reserve(const at::Tensor& given) {
  Reserve made{.given = given.contiguous(), .statistic = {}, .spare = {}, .slots = {}};
  const Lock lock(mutex_);
  made.spare = take_spare();
  return made;
}

StoredVariable::Reserve StoredVariable::reserve_apply(const SlotKey& key,
                                                      const at::Tensor& gradient,
                                                      std::span<const double> hyper) {
  const Lock lock(mutex_);
  variable::check_update(key.rule, state_.value(), gradient, hyper, name_);
  return {.given = gradient.contiguous(),
          .statistic = {},
          .spare = take_spare(),
          .slots = state_.reserve(key, hyper, name_)};
}

// On the CPU, LibTorch cannot add or subtract every dtype.
bool StoredVariable::can_add(at::ScalarType dtype, bool subtracts) {
  try {
    const at::Tensor one = at::zeros({1}, at::TensorOptions(dtype));
    at::Tensor result = at::empty({1}, at::TensorOptions(dtype));
    subtracts ? at::sub_out(result, one, one) : at::add_out(result, one, one);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

StoredVariable::Reserve StoredVariable::reserve_assign(internal::AssignKind kind,
                                                       const at::Tensor& value) {
  check_spec("assign", value);
  COHORT_CHECK(kind == internal::AssignKind::assign || can_add_[kind == internal::AssignKind::sub],
               ErrorCode::invalid_argument, "[server.assign] expected a dtype that LibTorch can ",
               kind == internal::AssignKind::add ? "add" : "subtract", " on the CPU, got ",
               spec_.to_string(), " (variable '", name_, "'); assign the whole value");
  return reserve(value);
}

StoredVariable::Reserve StoredVariable::reserve_rows(const at::Tensor& ids,
                                                     const at::Tensor& rows) {
  check_rows(ids, rows);
  return reserve(rows);
}

StoredVariable::Reserve StoredVariable::reserve_average(const at::Tensor& value,
                                                        const at::Tensor& statistic,
                                                        double momentum) {
  check_spec("merge_average", value);
  check_spec("merge_average", statistic);
  COHORT_CHECK(is_average(spec_.dtype) && momentum > 0 && momentum <= 1,
               ErrorCode::invalid_argument,
               "[server.merge_average] expected a floating-point variable and a momentum in (0, 1],"
               " got ",
               spec_.to_string(), " and ", momentum, " (variable '", name_, "')");
  Reserve made = reserve(value);
  made.statistic = statistic.contiguous();
  return made;
}

void StoredVariable::check_rows(const at::Tensor& ids, const at::Tensor& rows) const {
  std::vector<std::int64_t> expected = *spec_.sizes;
  const bool is_table =
      !expected.empty() && ids.dim() == 1 && ids.scalar_type() == at::ScalarType::Long;
  if (is_table) expected[0] = ids.numel();
  COHORT_CHECK(can_add_[false], ErrorCode::invalid_argument,
               "[server.scatter_add] expected a dtype that LibTorch can add on the CPU, got ",
               spec_.to_string(), " (variable '", name_, "'); assign the whole value");
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

void StoredVariable::apply(const SlotKey& key, std::span<const double> hyper, Reserve reserve) {
  const Lock lock(mutex_);
  at::Tensor next = target(reserve);
  state_.apply(key, std::move(reserve.slots), next, reserve.given, hyper);
  finish(std::move(next), reserve);
}

void StoredVariable::assign(internal::AssignKind kind, Reserve reserve) {
  const Lock lock(mutex_);
  at::Tensor next = target(reserve);
  switch (kind) {
    case internal::AssignKind::assign:
      next.copy_(reserve.given);
      break;
    case internal::AssignKind::add:
      at::add_out(next, state_.value(), reserve.given);
      break;
    case internal::AssignKind::sub:
      at::sub_out(next, state_.value(), reserve.given);
      break;
  }
  finish(std::move(next), reserve);
}

void StoredVariable::scatter_add(const at::Tensor& ids, Reserve reserve) {
  const Lock lock(mutex_);
  at::Tensor next = target(reserve);
  if (!next.is_same(state_.value())) next.copy_(state_.value());
  next.index_add_(0, ids, reserve.given);
  finish(std::move(next), reserve);
}

void StoredVariable::merge_average(double momentum, std::uint64_t version, Reserve reserve) {
  const Lock lock(mutex_);
  at::Tensor next = target(reserve);
  if (version_ == version) {
    next.copy_(reserve.given);
  } else {
    move_average(next, state_.value(), reserve.statistic, momentum);
  }
  finish(std::move(next), reserve);
}

at::Tensor StoredVariable::target(Reserve& reserve) {
  return state_.value().use_count() > 1 ? std::move(reserve.spare) : state_.value();
}

void StoredVariable::finish(at::Tensor next, Reserve& reserve) {
  ++version_;
  if (reserve.spare.defined()) return keep_spare(std::move(reserve.spare));
  keep_spare(state_.exchange(std::move(next)));
}

at::Tensor StoredVariable::take_spare() {
  for (std::size_t i = 0; i < retired_.size(); ++i) {
    if (retired_[i].use_count() > 1) continue;
    at::Tensor spare = std::move(retired_[i]);
    retired_.erase(retired_.begin() + static_cast<std::ptrdiff_t>(i));
    return spare;
  }
  return at::empty(*spec_.sizes, at::TensorOptions(spec_.dtype));
}

// Keeps at most kSparesMax buffers; others are freed.
void StoredVariable::keep_spare(at::Tensor spare) {
  if (retired_.size() < kSparesMax) retired_.push_back(std::move(spare));
}

}  // namespace cohort::parameter_server
