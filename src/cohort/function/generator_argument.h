// SPDX-License-Identifier: Apache-2.0
// Which operators of LibTorch take a generator.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

namespace cohort::function {

// `Generator` or `Generator?`.
inline bool is_generator(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.type();
  if (type->kind() == c10::TypeKind::GeneratorType) return true;
  return type->kind() == c10::TypeKind::OptionalType &&
         type->expectRef<c10::OptionalType>().getElementType()->kind() ==
             c10::TypeKind::GeneratorType;
}

}  // namespace cohort::function
