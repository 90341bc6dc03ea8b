// SPDX-License-Identifier: Apache-2.0
// An initializer in numbers, so that a task can make an initial value itself instead of receiving
// it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "cohort/core/export.h"
#include "cohort/variable/initializer.h"

namespace cohort {

struct COHORT_API InitializerRecipe {
  std::uint8_t kind = 0;  // 0 constant, 1 uniform, 2 normal, 3 glorot_uniform
  double first = 0;       // the constant, the minimum or the mean
  double second = 0;      // the maximum or the standard deviation

  // Not Initializer::function(), whose values only its own process can make.
  static bool has_numbers(const Initializer& initializer);
  static InitializerRecipe of(const Initializer& initializer);
  // The same values on every task. invalid_argument for numbers that no initializer has.
  Initializer initializer() const;

  // Throws what Initializer::make() would throw.
  static void check(const Initializer& initializer, const TensorSpec& spec, std::string_view name);
  // Writes the value of make() into a contiguous tensor on the CPU.
  static void fill(const Initializer& initializer, at::Tensor value, std::string_view name,
                   std::uint64_t seed);

  // The same for a table whose rows have any keys: throws invalid_argument for an initializer whose
  // values depend on the number of rows. `row`: the spec of some rows.
  static void check_rows(const Initializer& initializer, const TensorSpec& row,
                         std::string_view name);
  // Writes the first values of these keys' rows into a contiguous tensor on the CPU, [keys, …].
  // Rows 0 to n - 1 have the bits of make() for a variable of n rows.
  static void fill_rows(const Initializer& initializer, at::Tensor rows,
                        std::span<const std::int64_t> keys, std::string_view name,
                        std::uint64_t seed);
};

}  // namespace cohort
