// SPDX-License-Identifier: Apache-2.0
// tools/clang_prelude.h renames the standard library's function that fills a std::vector<bool>. The
// linked libraries need it under its original name.
#include <vector>

#if defined(__clang__)
void fill_a1(std::_Bit_iterator first, std::_Bit_iterator last,
             const bool& value) __asm__("_ZSt9__fill_a1St13_Bit_iteratorS_RKb");
void fill_a1(std::_Bit_iterator first, std::_Bit_iterator last, const bool& value) {
  std::fill_bits(first, last, value);
}
#endif
