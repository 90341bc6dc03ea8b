// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/arguments.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include "cohort/function/tracer/refusal.h"

namespace cohort::function {
namespace {

using Kind = Arg::Kind;

Arg constant_argument(Kind kind, const c10::IValue& value) {
  return {.kind = kind, .constant = value};
}

// The element type of a list argument, without "optional" around the list or the element.
c10::TypePtr element_type(c10::TypePtr type) {
  auto unwrapped = [](c10::TypePtr wrapped) {
    auto optional = wrapped->cast<c10::OptionalType>();
    return optional ? optional->getElementType() : wrapped;
  };
  auto list = unwrapped(std::move(type))->cast<c10::ListType>();
  return list ? unwrapped(list->getElementType()) : c10::TypePtr();
}

Arg encode_list(const c10::Argument& argument, const c10::IValue& value,
                const NumberOf& number_of) {
  c10::TypePtr element = element_type(argument.real_type());
  if (element && element->kind() == c10::TypeKind::TensorType) {
    std::vector<int> ids;
    for (const c10::IValue& item : value.toListRef()) {
      bool is_present = item.isTensor() && item.toTensor().defined();
      ids.push_back(is_present ? number_of(item.toTensor()) : -1);
    }
    return values_argument(std::move(ids));
  }
  if (value.isIntList()) return constant_argument(Kind::integers, value);
  if (value.isDoubleList()) return constant_argument(Kind::reals, value);
  if (value.isBoolList()) return constant_argument(Kind::booleans, value);
  if (element && element->kind() == c10::TypeKind::NumberType) {
    return constant_argument(Kind::scalars, value);
  }
  refuse("argument '", argument.name(), "' of type ", argument.real_type()->str(),
         " cannot be part of a program");
}

}  // namespace

Arg value_argument(int id) { return {.kind = Kind::value, .id = id}; }

Arg values_argument(std::vector<int> ids) { return {.kind = Kind::values, .ids = std::move(ids)}; }

Arg integer_argument(std::int64_t value) { return constant_argument(Kind::integer, value); }

Arg integers_argument(const std::vector<std::int64_t>& values) {
  return constant_argument(Kind::integers, c10::IValue(values));
}

Arg real_argument(double value) { return constant_argument(Kind::real, value); }

Arg boolean_argument(bool value) {
  return {.kind = value ? Kind::boolean_true : Kind::boolean_false};
}

Arg text_argument(std::string value) {
  return constant_argument(Kind::text, c10::IValue(std::move(value)));
}

Arg encode_argument(const c10::Argument& argument, const c10::IValue& value,
                    const NumberOf& number_of) {
  if (value.isNone()) return {};
  if (value.isTensor()) {
    // An undefined tensor and None mean the same to a schema's reader.
    return value.toTensor().defined() ? value_argument(number_of(value.toTensor())) : Arg();
  }
  if (value.isInt()) return constant_argument(Kind::integer, value);
  if (value.isDouble()) return constant_argument(Kind::real, value);
  if (value.isBool()) return boolean_argument(value.toBool());
  if (value.isComplexDouble()) return constant_argument(Kind::complex, value);
  if (value.isString()) return constant_argument(Kind::text, value);
  if (value.isDevice()) return constant_argument(Kind::device, value);
  if (value.isList()) return encode_list(argument, value, number_of);
  if (value.isGenerator()) {
    if (value.toGenerator() == at::detail::getDefaultCPUGenerator()) return {};
    refuse("argument '", argument.name(),
           "' is a generator of your own, which a server does not have; use the default one: every "
           "run of a traced function gets its own seed");
  }
  refuse("argument '", argument.name(), "' of type ", argument.real_type()->str(),
         " cannot be part of a program");
}

void for_each_tensor(const c10::IValue& value,
                     const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
    }
  }
}

}  // namespace cohort::function
