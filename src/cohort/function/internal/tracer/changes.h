// SPDX-License-Identifier: Apache-2.0
// Other values for the second pass of a trace: a number that the body reads on the host then
// differs between the passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace cohort::function {

// How far the values go from those of the first pass. A body may throw for values that it does not
// expect; the trace then tries the next one.
// - beside: real numbers in reverse order and times 1 - 2^-6; integers redrawn inside their range;
//   where all of them are equal, the value beside; bools negated.
// - within: the same, but real numbers keep their places; integers that are sorted stay sorted,
//   others come in reverse order, and equal ones stay.
// - rolled: the other values that the caller has; variables as they are.
// - reals: real numbers as in `within`, everything else as in the first pass.
enum class Change : std::uint8_t { none, beside, within, rolled, reals };
inline constexpr std::array<Change, 4> kChanges = {Change::beside, Change::within, Change::rolled,
                                                   Change::reals};

// `first`, changed. `other` has the same spec: values that the caller knows to be possible. NaN and
// infinity stay what they are. Deterministic. The result may be `first` or `other` itself.
at::Tensor changed(const at::Tensor& first, const at::Tensor& other, Change how);
// Changes all values of `flat` in place, without a copy of them; the second call undoes the first.
// Dense tensors of one dimension only.
void toggle(const at::Tensor& flat, Change how);

}  // namespace cohort::function
