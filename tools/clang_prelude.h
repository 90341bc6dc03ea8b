// SPDX-License-Identifier: Apache-2.0
// Included before every source in the clang checks. With the constexpr std::vector of C++20, clang
// 14 (Debian 12's) wants c10::IValue complete within its own definition; here the vector is not
// constexpr.
#pragma once

#include <memory>
#include <string>

#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR
// Declared constexpr before; nothing is linked, so its definition may bear another name.
#define __fill_a1 fill_bits
#include <vector>
#undef __fill_a1
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR constexpr
