// SPDX-License-Identifier: Apache-2.0
// The numbers that encode.cpp and decode.cpp share (docs/formats/function.md).
#pragma once

#include <c10/core/ScalarType.h>

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
  switch (dtype) {
    case at::ScalarType::Byte:
    case at::ScalarType::Char:
    case at::ScalarType::Short:
    case at::ScalarType::Int:
    case at::ScalarType::Long:
    case at::ScalarType::Half:
    case at::ScalarType::Float:
    case at::ScalarType::Double:
    case at::ScalarType::ComplexFloat:
    case at::ScalarType::ComplexDouble:
    case at::ScalarType::Bool:
    case at::ScalarType::BFloat16:
      return true;
    default:
      return false;
  }
}

}  // namespace cohort::function::wire
