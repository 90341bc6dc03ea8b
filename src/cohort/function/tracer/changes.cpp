// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/changes.h"

#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>

#include "cohort/core/random.h"
#include "cohort/core/string_tensor.h"

namespace cohort::function {
namespace {

constexpr double kStep = 1.0 / 64;

template <class T>
std::span<T> values_of(const at::Tensor& tensor) {
  return {static_cast<T*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel())};
}

template <class T>
bool has_same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class T>
T rounded(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return static_cast<T>(static_cast<float>(value));
  }
}

// The value that replaces a zero: 1/64 of the largest absolute value, negative if no value is
// positive.
template <class T>
T step_from_zero(std::span<const T> values) {
  double largest = 0;
  bool is_positive = false;
  for (const T value : values) {
    const auto real = static_cast<double>(value);
    if (!std::isfinite(real)) continue;
    largest = std::max(largest, std::abs(real));
    is_positive = is_positive || real > 0;
  }
  if (largest == 0) return rounded<T>(kStep);
  return rounded<T>(is_positive ? largest * kStep : -largest * kStep);
}

template <class T>
void change_reals(std::span<const T> first, std::span<T> values, Change how) {
  if (how == Change::beside) std::reverse(values.begin(), values.end());
  const T from_zero = step_from_zero(first);
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto real = static_cast<double>(values[i]);
    if (!std::isfinite(real)) continue;
    values[i] = real == 0 ? from_zero : rounded<T>(real * (1 - kStep));
    // The changed value may happen to be the value that was here.
    if (has_same_bits(values[i], first[i])) values[i] = rounded<T>(real * (1 - 2 * kStep));
  }
}

template <class T>
std::uint64_t sum_of(std::span<const T> values) {
  std::uint64_t sum = 0;
  for (const T value : values) sum += static_cast<std::uint64_t>(value);
  return sum;
}

// A draw from [low, high] other than `excluded`; the range has two values or more.
template <class T>
T draw_other(T low, T high, T excluded, std::uint64_t counter) {
  const auto begin = static_cast<std::uint64_t>(low);
  const std::uint64_t span = static_cast<std::uint64_t>(high) - begin;  // the values but one
  const std::uint64_t number = mix_seed(0, counter);
  if (excluded < low || excluded > high) {
    return static_cast<T>(begin + (span == ~0ULL ? number : number % (span + 1)));
  }
  const std::uint64_t offset = number % span;
  const std::uint64_t gap = static_cast<std::uint64_t>(excluded) - begin;
  return static_cast<T>(begin + offset + (offset >= gap ? 1 : 0));
}

// Every value differs from the one that was there, and so do the smallest, the largest and the sum
// where the range allows it.
template <class T>
void redraw(std::span<const T> first, std::span<T> values, T low, T high) {
  const bool is_wide =
      static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low) >= std::uint64_t{3};
  const T from = is_wide ? static_cast<T>(low + 1) : low;
  const T to = is_wide ? static_cast<T>(high - 1) : high;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = draw_other(from, to, first[i], i);
  if (values.size() > 1 && sum_of<T>(values) == sum_of<T>(first)) {
    values[0] = draw_other(low, high, values[0], values.size());
  }
}

// As `first`, but with other numbers between its ends.
template <class T>
void redraw_sorted(std::span<const T> first, std::span<T> values, bool is_rising) {
  const T low = std::min(first.front(), first.back());
  const T high = std::max(first.front(), first.back());
  for (std::size_t i = 1; i + 1 < values.size(); ++i)
    values[i] = draw_other(low, high, first[i], i);
  if (is_rising) {
    std::sort(values.begin(), values.end());
  } else {
    std::sort(values.rbegin(), values.rend());
  }
}

template <class T>
void change_integers(std::span<const T> first, std::span<T> values, std::span<const T> other,
                     Change how) {
  const auto [low, high] = std::minmax_element(first.begin(), first.end());
  if (*low == *high) {
    if (!std::equal(first.begin(), first.end(), other.begin())) {
      std::copy(other.begin(), other.end(), values.begin());
    } else if (how == Change::beside) {
      const T value = *low;
      std::fill(values.begin(), values.end(), static_cast<T>(value > 0 ? value - 1 : value + 1));
    }
    return;
  }
  if (how == Change::beside) return redraw(first, values, *low, *high);
  const bool is_rising = std::is_sorted(first.begin(), first.end());
  if (is_rising || std::is_sorted(first.rbegin(), first.rend())) {
    return redraw_sorted(first, values, is_rising);
  }
  std::reverse(values.begin(), values.end());
}

void change_bools(std::span<const bool> first, std::span<bool> values, Change how) {
  if (how == Change::within) return std::reverse(values.begin(), values.end());
  std::transform(first.begin(), first.end(), values.begin(), [](bool value) { return !value; });
  const auto before = std::count(first.begin(), first.end(), true);
  if (values.size() > 1 && std::count(values.begin(), values.end(), true) == before) {
    values[0] = first[0];
  }
}

template <class... Types, class Work>
void visit_type_among(c10::ScalarType dtype, const Work& work) {
  ((dtype == c10::CppTypeToScalarType<Types>::value ? work(Types()) : void()), ...);
}

// Calls `work` with a zero of the type in which the values of `dtype` are changed: floating-point,
// integer or bool. Does nothing for other kinds.
template <class Work>
void visit_type(c10::ScalarType dtype, const Work& work) {
  visit_type_among<float, double, c10::Half, c10::BFloat16, std::uint8_t, std::int8_t, std::int16_t,
                   std::int32_t, std::int64_t, bool>(dtype, work);
}

template <class T>
constexpr bool kIsReal = !std::is_integral_v<T>;

at::Tensor as_reals(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

// For a floating-point type T, as integers: the bits of the exponent, the bit of the fraction that
// is worth 2^-6, and the number 2^-6.
template <class T>
struct Bits;
template <>
struct Bits<float> {
  using Word = std::uint32_t;
  static constexpr Word kExponent = 0x7f800000, kFraction = 1U << 17, kStepWord = 0x3c800000;
};
template <>
struct Bits<double> {
  using Word = std::uint64_t;
  static constexpr Word kExponent = 0x7ff0000000000000, kFraction = Word{1} << 46,
                        kStepWord = 0x3f90000000000000;
};
template <>
struct Bits<c10::Half> {
  using Word = std::uint16_t;
  static constexpr Word kExponent = 0x7c00, kFraction = 1U << 4, kStepWord = 0x2400;
};
template <>
struct Bits<c10::BFloat16> {
  using Word = std::uint16_t;
  static constexpr Word kExponent = 0x7f80, kFraction = 1U << 1, kStepWord = 0x3c80;
};

// Exchanges zero and 2^-6, and flips one bit of other numbers. The number that would become 2^-6
// does not change, so that a second call restores every number.
template <class T>
typename Bits<T>::Word toggled(typename Bits<T>::Word word) {
  using B = Bits<T>;
  using Word = typename B::Word;
  constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  const Word size = word & static_cast<Word>(~kSign);
  if ((size & B::kExponent) == B::kExponent) return word;  // NaN, infinity
  if (size == 0 || size == B::kStepWord) return static_cast<Word>(word ^ B::kStepWord);
  if (size == (B::kStepWord ^ B::kFraction)) return word;
  return static_cast<Word>(word ^ B::kFraction);
}

template <class T>
void toggle_values(const at::Tensor& flat, Change how) {
  if constexpr (kIsReal<T>) {
    for (auto& word : values_of<typename Bits<T>::Word>(flat)) word = toggled<T>(word);
  } else {
    const std::span<T> values = values_of<T>(flat);
    if (how == Change::reals || values.empty()) return;
    if constexpr (std::is_same_v<T, bool>) {
      if (how == Change::within) return std::reverse(values.begin(), values.end());
      for (bool& value : values) value = !value;
    } else if (how == Change::beside) {
      for (T& value : values) value = static_cast<T>(value ^ 1);
    } else {
      const auto [low, high] = std::minmax_element(values.begin(), values.end());
      const auto sum = static_cast<std::uint64_t>(*low) + static_cast<std::uint64_t>(*high);
      for (T& value : values) value = static_cast<T>(sum - static_cast<std::uint64_t>(value));
    }
  }
}

}  // namespace

at::Tensor changed(const at::Tensor& first, const at::Tensor& other, Change how) {
  if (how == Change::none) return first;
  const bool is_plain = first.defined() && !StringTensor::is(first) &&
                        first.layout() == c10::kStrided && first.device().is_cpu();
  if (how == Change::rolled || !is_plain) return other;
  if (first.numel() == 0) return first;
  const at::Tensor before = as_reals(first.detach().resolve_conj().resolve_neg().contiguous());
  const at::Tensor known = as_reals(other.detach().resolve_conj().resolve_neg().contiguous());
  at::Tensor after = before.clone();
  visit_type(before.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const std::span<const T> old = values_of<T>(before);
    const std::span<T> values = values_of<T>(after);
    if constexpr (kIsReal<T>) {
      change_reals<T>(old, values, how);
    } else if (how == Change::reals) {
      return;
    } else if constexpr (std::is_same_v<T, bool>) {
      change_bools(old, values, how);
    } else {
      change_integers<T>(old, values, values_of<T>(known), how);
    }
  });
  if (first.is_complex()) after = at::view_as_complex(after);
  return after.requires_grad_(first.requires_grad());
}

void toggle(const at::Tensor& flat, Change how) {
  if (how == Change::none || how == Change::rolled) return;
  const at::Tensor values = as_reals(flat);
  visit_type(values.scalar_type(), [&](auto zero) { toggle_values<decltype(zero)>(values, how); });
}

}  // namespace cohort::function
