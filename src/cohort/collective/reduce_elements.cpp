// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/reduce_elements.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <type_traits>

namespace cohort::collective {
namespace {

// The sums of a block stay in the first-level cache. Longer blocks keep the processor from reading
// ahead in the memory of several members.
constexpr std::int64_t kBlockElements = 256;

template <class T>
const T* values(const std::byte* bytes) {
  return reinterpret_cast<const T*>(bytes);
}
template <class T>
T* values(std::byte* bytes) {
  return reinterpret_cast<T*>(bytes);
}

// The usual case, two members whose tensors get the sum in place: a single pass without a block.
template <class T>
[[gnu::always_inline]] inline void add_pair(T* __restrict a, T* __restrict b, std::int64_t count,
                                            T divisor) noexcept {
  if (divisor == T(1)) {
    for (std::int64_t i = 0; i < count; ++i) a[i] = b[i] = static_cast<T>(a[i] + b[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) a[i] = b[i] = static_cast<T>((a[i] + b[i]) / divisor);
  }
}

bool is_pair_in_place(const Reduction& reduction) {
  return reduction.inputs.size() == 2 && reduction.outputs.size() == 2 &&
         reduction.inputs[0] != reduction.inputs[1] &&
         reduction.inputs[0] == reduction.outputs[0] && reduction.inputs[1] == reduction.outputs[1];
}

// The sums of subtrees, of which there is one for each bit of the number of inputs.
constexpr int kLevels = 32;
template <class Sum>
using Levels = Sum[kLevels][kBlockElements];

template <class Sum>
[[gnu::always_inline]] inline void add_level(Sum* __restrict to, const Sum* __restrict from,
                                             std::int64_t length) noexcept {
  for (std::int64_t i = 0; i < length; ++i) to[i] = static_cast<Sum>(to[i] + from[i]);
}

// Adds a block of all inputs into levels[0], in a balanced tree. The sums of subtrees wait in the
// levels until their right neighbour, of the same size, is complete.
template <class T, class Sum>
[[gnu::always_inline]] inline void add_block(const Reduction& reduction, std::int64_t first,
                                             std::int64_t length, Levels<Sum>& levels) noexcept {
  int depth = 0;
  bool is_empty[kLevels] = {};  // a level whose values are in the one before
  const auto merge = [&] {
    if (!is_empty[depth - 1]) add_level(levels[depth - 2], levels[depth - 1], length);
    --depth;
  };
  for (std::size_t rank = 0; rank < reduction.inputs.size(); ++rank) {
    const bool is_in_another = reduction.inputs[rank] == nullptr;
    const T* input = is_in_another ? nullptr : values<T>(reduction.inputs[rank]) + first;
    if (rank % 2 == 0) {
      is_empty[depth] = is_in_another;
      Sum* const level = levels[depth++];
      if (is_in_another) continue;
      for (std::int64_t i = 0; i < length; ++i) level[i] = static_cast<Sum>(input[i]);
      continue;
    }
    Sum* const level = levels[depth - 1];
    for (std::int64_t i = 0; i < (is_in_another ? 0 : length); ++i)
      level[i] = static_cast<Sum>(level[i] + static_cast<Sum>(input[i]));
    for (int merges = std::countr_one(rank) - 1; merges > 0; --merges) merge();
  }
  while (depth > 1) merge();
}

// T: the type in memory; Sum: the type in which it is added.
template <class T, class Sum>
[[gnu::always_inline]] inline void reduce_loop(const Reduction& reduction) noexcept {
  const auto divisor =
      static_cast<Sum>(reduction.op == ReduceOp::mean ? reduction.inputs.size() : std::size_t{1});
  if constexpr (std::is_same_v<T, Sum>) {
    if (is_pair_in_place(reduction)) {
      add_pair(values<T>(reduction.outputs[0]), values<T>(reduction.outputs[1]), reduction.count,
               divisor);
      return;
    }
  }
  Levels<Sum> levels;
  Sum* const sums = levels[0];
  for (std::int64_t first = 0; first < reduction.count; first += kBlockElements) {
    const std::int64_t length = std::min(kBlockElements, reduction.count - first);
    add_block<T, Sum>(reduction, first, length, levels);
    if (divisor != Sum(1)) {
      for (std::int64_t i = 0; i < length; ++i) sums[i] = static_cast<Sum>(sums[i] / divisor);
    }
    for (std::byte* const bytes : reduction.outputs) {
      T* const output = values<T>(bytes) + first;
      for (std::int64_t i = 0; i < length; ++i) output[i] = static_cast<T>(sums[i]);
    }
  }
}

// Wider vectors move almost twice the bytes per second from the caches. Each element is computed as
// without them.
#if defined(__x86_64__)
template <class T, class Sum>
[[gnu::target("avx2")]] void reduce_with_avx2(const Reduction& reduction) noexcept {
  reduce_loop<T, Sum>(reduction);
}
#endif

template <class T, class Sum>
void reduce_as(const Reduction& reduction) noexcept {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return reduce_with_avx2<T, Sum>(reduction);
#endif
  reduce_loop<T, Sum>(reduction);
}

// A complex number is added as its two parts.
Reduction of_parts(Reduction reduction) {
  reduction.count *= 2;
  return reduction;
}

}  // namespace

bool is_added_as_float(at::ScalarType dtype) {
  return dtype == at::ScalarType::Half || dtype == at::ScalarType::BFloat16;
}

void widen(at::ScalarType dtype, const std::byte* from, float* to, std::int64_t count) noexcept {
  if (dtype == at::ScalarType::Half) {
    std::copy_n(values<c10::Half>(from), count, to);
  } else {
    std::copy_n(values<c10::BFloat16>(from), count, to);
  }
}

void round_to(at::ScalarType dtype, const float* from, std::byte* to, std::int64_t count) noexcept {
  if (dtype == at::ScalarType::Half) {
    std::copy_n(from, count, values<c10::Half>(to));
  } else {
    std::copy_n(from, count, values<c10::BFloat16>(to));
  }
}

bool has_mean(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Half:
    case at::ScalarType::BFloat16:
    case at::ScalarType::Float:
    case at::ScalarType::Double:
    case at::ScalarType::ComplexFloat:
    case at::ScalarType::ComplexDouble:
      return true;
    default:
      return false;
  }
}

bool has_sum(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Byte:
    case at::ScalarType::Char:
    case at::ScalarType::Short:
    case at::ScalarType::Int:
    case at::ScalarType::Long:
      return true;
    default:
      return has_mean(dtype);
  }
}

void reduce_elements(const Reduction& reduction) noexcept {
  switch (reduction.dtype) {
    case at::ScalarType::Float:
      return reduce_as<float, float>(reduction);
    case at::ScalarType::Double:
      return reduce_as<double, double>(reduction);
    case at::ScalarType::ComplexFloat:
      return reduce_as<float, float>(of_parts(reduction));
    case at::ScalarType::ComplexDouble:
      return reduce_as<double, double>(of_parts(reduction));
    case at::ScalarType::Half:
      return reduce_as<c10::Half, float>(reduction);
    case at::ScalarType::BFloat16:
      return reduce_as<c10::BFloat16, float>(reduction);
    // Unsigned, since their sums wrap by definition.
    case at::ScalarType::Byte:
    case at::ScalarType::Char:
      return reduce_as<std::uint8_t, std::uint8_t>(reduction);
    case at::ScalarType::Short:
      return reduce_as<std::uint16_t, std::uint16_t>(reduction);
    case at::ScalarType::Int:
      return reduce_as<std::uint32_t, std::uint32_t>(reduction);
    case at::ScalarType::Long:
      return reduce_as<std::uint64_t, std::uint64_t>(reduction);
    default:
      return;  // Call::add has refused all others
  }
}

}  // namespace cohort::collective
