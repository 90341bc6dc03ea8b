// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/effect_kinds.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <atomic>
#include <string>
#include <type_traits>

#include "cohort/core/error.h"
#include "cohort/variable/rows.h"

namespace cohort::variable {
namespace {

using internal::Effect;

// On the CPU, LibTorch cannot add or subtract every dtype.
bool can_add(at::ScalarType dtype, bool subtracts) {
  static std::array<std::array<std::atomic<int>, 2>,
                    static_cast<std::size_t>(at::ScalarType::NumOptions)>
      known{};
  std::atomic<int>& answer = known.at(static_cast<std::size_t>(dtype)).at(subtracts ? 1 : 0);
  if (answer == 0) {
    try {
      const at::Tensor one = at::zeros({1}, at::TensorOptions(dtype));
      at::Tensor result = at::empty({1}, at::TensorOptions(dtype));
      subtracts ? at::sub_out(result, one, one) : at::add_out(result, one, one);
      answer = 1;
    } catch (const c10::Error&) {
      answer = 2;
    }
  }
  return answer == 1;
}

void check_addable(const TensorSpec& spec, bool subtracts, std::string_view where,
                   std::string_view variable) {
  COHORT_CHECK(can_add(spec.dtype, subtracts), ErrorCode::invalid_argument, "[server.", where,
               "] expected a dtype that LibTorch can ", subtracts ? "subtract" : "add",
               " on the CPU, got ", spec.to_string(), " (variable '", variable,
               "'); assign the whole value");
}

void check_values(const Effect& effect, const TensorSpec& spec, std::string_view where,
                  std::string_view variable) {
  for (const at::Tensor& value : effect.tensors) {
    const TensorSpec got = TensorSpec::of(value);
    const bool is_dense = value.layout() == at::kStrided && value.device().is_cpu();
    COHORT_CHECK(got == spec && is_dense, ErrorCode::invalid_argument, "[server.", where,
                 "] expected ", spec.to_string(), ", got ",
                 is_dense ? "" : "one that is sparse or not on the CPU, ", got.to_string(),
                 " (variable '", variable,
                 "'); assign a value of the variable's own dtype and "
                 "shape");
  }
}

void check_assign(const Effect& effect, const TensorSpec& spec, std::string_view variable) {
  check_values(effect, spec, "assign", variable);
}
void check_add(const Effect& effect, const TensorSpec& spec, std::string_view variable) {
  check_values(effect, spec, "assign", variable);
  check_addable(spec, false, "assign", variable);
}
void check_sub(const Effect& effect, const TensorSpec& spec, std::string_view variable) {
  check_values(effect, spec, "assign", variable);
  check_addable(spec, true, "assign", variable);
}

void check_rows_of(const Effect& effect, const TensorSpec& spec, std::string_view variable) {
  if (effect.row_ids.defined())
    check_rows(effect.kind, variable, spec, effect.row_ids, effect.tensors[0]);
}

void check_average(const Effect& effect, const TensorSpec& spec, std::string_view variable) {
  check_values(effect, spec, "merge_average", variable);
  const bool is_average =
      spec.dtype == at::ScalarType::Float || spec.dtype == at::ScalarType::Double ||
      spec.dtype == at::ScalarType::Half || spec.dtype == at::ScalarType::BFloat16;
  const double momentum = effect.hyper[0];
  COHORT_CHECK(is_average && momentum > 0 && momentum <= 1, ErrorCode::invalid_argument,
               "[server.merge_average] expected a floating-point variable and a momentum in (0, 1],"
               " got ",
               spec.to_string(), " and ", momentum, " (variable '", variable, "')");
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

void move_average(at::Tensor& next, const at::Tensor& value, const Effect& effect,
                  bool is_current) {
  const at::Tensor& statistic = effect.tensors[1];
  if (is_current) {
    next.copy_(effect.tensors[0]);
    return;
  }
  switch (value.scalar_type()) {
    case at::ScalarType::Float:
      return move_elements<float>(next, value, statistic, effect.hyper[0]);
    case at::ScalarType::Half:
      return move_elements<at::Half>(next, value, statistic, effect.hyper[0]);
    case at::ScalarType::BFloat16:
      return move_elements<at::BFloat16>(next, value, statistic, effect.hyper[0]);
    default:
      return move_elements<double>(next, value, statistic, effect.hyper[0]);
  }
}

void assign(at::Tensor& next, const at::Tensor&, const Effect& effect, bool) {
  next.copy_(effect.tensors[0]);
}
void add(at::Tensor& next, const at::Tensor& value, const Effect& effect, bool) {
  at::add_out(next, value, effect.tensors[0]);
}
void subtract(at::Tensor& next, const at::Tensor& value, const Effect& effect, bool) {
  at::sub_out(next, value, effect.tensors[0]);
}
void change_rows(at::Tensor& next, const at::Tensor& value, const Effect& effect, bool) {
  if (!next.is_same(value)) next.copy_(value);
  apply_rows(effect.kind, next, effect.row_ids, effect.tensors[0]);
}

constexpr EffectKind scatter_kind(std::string_view name) {
  return {.name = name,
          .row_ids = EffectKind::RowIds::needed,
          .check = check_rows_of,
          .change = change_rows};
}

// In the order of Effect::Kind.
constexpr std::array<EffectKind, static_cast<std::size_t>(Effect::kLastKind) + 1> kKinds{{
    {.name = "apply", .row_ids = EffectKind::RowIds::possible, .check = check_rows_of},
    {.name = "assign", .check = check_assign, .change = assign},
    {.name = "assign_add", .check = check_add, .change = add},
    {.name = "assign_sub", .check = check_sub, .change = subtract},
    scatter_kind("scatter_add"),
    {.name = "merge_average",
     .num_tensors = 2,
     .num_hyper = 1,
     .check = check_average,
     .change = move_average},
    scatter_kind("scatter_sub"),
    scatter_kind("scatter_mul"),
    scatter_kind("scatter_div"),
    scatter_kind("scatter_min"),
    scatter_kind("scatter_max"),
    scatter_kind("scatter_update"),
}};

}  // namespace

const EffectKind& effect_kind(Effect::Kind kind) {
  return kKinds.at(static_cast<std::size_t>(kind));
}

std::string call_name(Effect::Kind kind) {
  return "variable." + std::string(effect_kind(kind).name);
}

void change_in_place(const at::Tensor& value, Effect effect) {
  for (at::Tensor& tensor : effect.tensors)
    if (tensor.is_alias_of(value)) tensor = tensor.clone();
  if (effect.row_ids.defined() && effect.row_ids.is_alias_of(value))
    effect.row_ids = effect.row_ids.clone();
  at::Tensor next = value;
  effect_kind(effect.kind).change(next, value, effect, /*is_current=*/true);
}

void check_effect(const Effect& effect, const TensorSpec& spec, std::string_view variable) {
  const EffectKind& kind = effect_kind(effect.kind);
  COHORT_CHECK(effect.tensors.size() == kind.num_tensors, ErrorCode::invalid_argument,
               "[server.push] expected ", kind.num_tensors, " tensors for an update of '", variable,
               "', got ", effect.tensors.size());
  const bool needs_ids = kind.row_ids == EffectKind::RowIds::needed;
  COHORT_CHECK(
      kind.row_ids == EffectKind::RowIds::possible || effect.row_ids.defined() == needs_ids,
      ErrorCode::invalid_argument, "[server.push] expected an update of '", variable, "' ",
      needs_ids ? "with" : "without", " row ids, got one ", needs_ids ? "without" : "with",
      " them (", kind.name, ")");
  const bool is_step = effect.kind == Effect::Kind::apply;  // its rule has numbers of its own
  COHORT_CHECK(is_step || effect.hyper.size() == kind.num_hyper, ErrorCode::invalid_argument,
               "[server.push] expected ", kind.num_hyper, " numbers for an update of '", variable,
               "', got ", effect.hyper.size(), " (", kind.name, ")");
  kind.check(effect, spec, variable);
}

}  // namespace cohort::variable
