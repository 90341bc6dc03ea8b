// SPDX-License-Identifier: Apache-2.0
// The numbers that encode.cpp and decode.cpp share (docs/formats/function.md).
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cohort::function::wire {

inline constexpr std::string_view kMagic = "CHFN";
inline constexpr std::uint8_t kVersion = 2;
inline constexpr std::uint8_t kProgramIsRandom = 1;
inline constexpr std::uint8_t kVariableIsRead = 1;
inline constexpr std::uint8_t kVariableIsHandleOnly = 2;
inline constexpr std::uint8_t kConstantIsWrapped = 1;
inline constexpr std::uint8_t kOpFlags = 15;

// A step function has a few kilobytes; anything near this is a mistake or an attack.
inline constexpr std::size_t kProgramBytesMax = std::size_t{256} << 20;
inline constexpr std::size_t kArgumentsMax = 255;
// The limit of an operator's name with its overload: each op of a program has a copy of it.
inline constexpr std::size_t kNameBytesMax = 128;
inline constexpr std::size_t kRankMax = 64;

// Plain numbers only: no quantized, no undefined dtypes.
constexpr bool is_portable(at::ScalarType dtype) {
  using enum at::ScalarType;
  constexpr std::array kPortable{Byte,  Char,   Short,        Int,           Long, Half,
                                 Float, Double, ComplexFloat, ComplexDouble, Bool, BFloat16};
  return std::find(kPortable.begin(), kPortable.end(), dtype) != kPortable.end();
}

}  // namespace cohort::function::wire
