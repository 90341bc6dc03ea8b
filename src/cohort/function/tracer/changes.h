// SPDX-License-Identifier: Apache-2.0
// Changes values for the second pass of a trace, so that a number that the body reads on the host
// differs between the passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace cohort::function {

// How much the values differ from those of the first pass. A body may throw for values that it does
// not expect; the trace then tries the next kind.
// - beside: real numbers in reverse order and times 1 - 2^-6; integers redrawn inside their range;
//   where all of them are equal, the caller's other values or, if those are the same, the next
//   integer; bools negated.
// - within: the same, but real numbers keep their places; integers that are sorted stay sorted,
//   others come in reverse order, and equal ones stay if the caller has no other values; bools come
//   in reverse order.
// - rolled: the caller's other values; variables do not change.
// - reals: real numbers as in `within`, everything else as in the first pass.
enum class Change : std::uint8_t { none, beside, within, rolled, reals };
inline constexpr std::array<Change, 4> kChanges = {Change::beside, Change::within, Change::rolled,
                                                   Change::reals};

// Returns `first` with changed values. `other` has the same spec and holds values that the caller
// knows to be valid. NaN and infinity do not change. Deterministic. The result may be `first` or
// `other` itself.
at::Tensor changed(const at::Tensor& first, const at::Tensor& other, Change how);
// Changes all values of `flat`, a dense tensor of one dimension, in place, without a copy of them
// and more simply than changed(). A second call restores the values.
void toggle(const at::Tensor& flat, Change how);

}  // namespace cohort::function
