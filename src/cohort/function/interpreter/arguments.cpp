// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/interpreter/arguments.h"

#include <ATen/core/jit_type.h>

#include <algorithm>

#include "cohort/function/program/wire_format.h"

namespace cohort::function {
namespace {

using Kind = Arg::Kind;
using c10::TypeKind;

Source constant(c10::IValue value) { return {.constant = std::move(value)}; }

// Enumerations are plain integers on the stack, which kernels cast without a check.
bool is_valid_enumerator(TypeKind real_type, std::int64_t value) {
  constexpr std::int64_t kLayoutMax = 1;        // strided, sparse COO
  constexpr std::int64_t kMemoryFormatMax = 3;  // contiguous to channels-last 3d
  if (real_type == TypeKind::ScalarTypeType) {
    return value >= 0 && value <= 127 && wire::is_portable(static_cast<at::ScalarType>(value));
  }
  if (real_type == TypeKind::LayoutType) return value >= 0 && value <= kLayoutMax;
  if (real_type == TypeKind::MemoryFormatType) return value >= 0 && value <= kMemoryFormatMax;
  return true;
}

c10::TypePtr without_optional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

std::optional<Source> boolean_source(const Arg& arg) {
  if (arg.kind != Kind::boolean_false && arg.kind != Kind::boolean_true) return std::nullopt;
  return constant(arg.kind == Kind::boolean_true);
}

std::optional<Source> number_source(const Arg& arg) {
  if (arg.kind != Kind::integer && arg.kind != Kind::real && arg.kind != Kind::complex)
    return boolean_source(arg);
  return constant(arg.constant);
}

bool is_list(Kind kind) {
  return kind == Kind::values || kind == Kind::integers || kind == Kind::reals ||
         kind == Kind::booleans || kind == Kind::scalars;
}

std::size_t length(const Arg& arg) {
  return arg.kind == Kind::values ? arg.ids.size() : arg.constant.toListRef().size();
}

std::optional<Source> float_list(const Arg& arg) {
  c10::List<double> values;
  if (arg.kind == Kind::reals) return constant(arg.constant);
  if (arg.kind != Kind::integers) return std::nullopt;
  for (const c10::IValue& value : arg.constant.toListRef()) {
    values.push_back(static_cast<double>(value.toInt()));
  }
  return constant(values);
}

std::optional<Source> scalar_list(const Arg& arg) {
  if (arg.kind == Kind::values) return std::nullopt;
  c10::List<at::Scalar> values;
  for (const c10::IValue& value : arg.constant.toListRef()) values.push_back(value.toScalar());
  return constant(values);
}

// An empty list fits every element type, whatever its kind.
std::optional<Source> list_source(const Arg& arg, const c10::TypePtr& element) {
  if (!is_list(arg.kind)) return std::nullopt;
  const bool is_empty = length(arg) == 0;
  switch (element->kind()) {
    case TypeKind::TensorType:
      if (std::count(arg.ids.begin(), arg.ids.end(), -1) > 0) return std::nullopt;
      if (arg.kind != Kind::values && !is_empty) return std::nullopt;
      return Source{.kind = Source::Kind::list, .ids = arg.ids};
    case TypeKind::OptionalType:
      if (without_optional(element)->kind() != TypeKind::TensorType) return std::nullopt;
      if (arg.kind != Kind::values && !is_empty) return std::nullopt;
      return Source{.kind = Source::Kind::optional_list, .ids = arg.ids};
    case TypeKind::IntType:
      if (is_empty) return constant(c10::List<std::int64_t>());
      return arg.kind == Kind::integers ? std::optional(constant(arg.constant)) : std::nullopt;
    case TypeKind::FloatType:
      if (is_empty) return constant(c10::List<double>());
      return float_list(arg);
    case TypeKind::BoolType:
      if (is_empty) return constant(c10::List<bool>());
      return arg.kind == Kind::booleans ? std::optional(constant(arg.constant)) : std::nullopt;
    case TypeKind::NumberType:
      if (is_empty) return constant(c10::List<at::Scalar>());
      return scalar_list(arg);
    default:
      return std::nullopt;
  }
}

std::optional<Source> none_source(const c10::TypePtr& type, const c10::TypePtr& inner) {
  if (inner->kind() == TypeKind::GeneratorType) return Source{.kind = Source::Kind::generator};
  if (type->kind() == TypeKind::OptionalType) return constant({});
  if (type->kind() == TypeKind::TensorType) return constant(at::Tensor());
  return std::nullopt;
}

std::optional<Source> integer_source(const Arg& arg, const c10::Argument& expected) {
  if (arg.kind != Kind::integer) return std::nullopt;
  const TypeKind real_type = without_optional(expected.real_type())->kind();
  if (!is_valid_enumerator(real_type, arg.constant.toInt())) return std::nullopt;
  return constant(arg.constant);
}

std::optional<Source> float_source(const Arg& arg) {
  if (arg.kind == Kind::real) return constant(arg.constant);
  if (arg.kind == Kind::integer) return constant(static_cast<double>(arg.constant.toInt()));
  return std::nullopt;
}

}  // namespace

std::optional<Source> source_of(const Arg& arg, const c10::Argument& expected) {
  const c10::TypePtr type = expected.type();
  const c10::TypePtr inner = without_optional(type);
  if (arg.kind == Kind::none) return none_source(type, inner);
  switch (inner->kind()) {
    case TypeKind::TensorType:
      if (arg.kind != Kind::value) return std::nullopt;
      return Source{.kind = Source::Kind::value, .id = arg.id};
    case TypeKind::ListType:
      return list_source(arg, inner->castRaw<c10::ListType>()->getElementType());
    case TypeKind::IntType:
      return integer_source(arg, expected);
    case TypeKind::FloatType:
      return float_source(arg);
    case TypeKind::BoolType:
      return boolean_source(arg);
    case TypeKind::NumberType:
      return number_source(arg);
    case TypeKind::StringType:
      return arg.kind == Kind::text ? std::optional(constant(arg.constant)) : std::nullopt;
    case TypeKind::DeviceObjType:
      // The device of the trace does not matter here: programs run on the CPU.
      return arg.kind == Kind::device ? std::optional(constant(c10::Device(c10::kCPU)))
                                      : std::nullopt;
    default:
      return std::nullopt;
  }
}

std::optional<Source> default_source(const c10::Argument& expected) {
  const auto& value = expected.default_value();
  if (!value) return std::nullopt;
  if (value->isNone()) return source_of(Arg{}, expected);
  return constant(*value);
}

}  // namespace cohort::function
