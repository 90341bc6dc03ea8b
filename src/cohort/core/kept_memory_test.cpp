// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/kept_memory.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>

namespace cohort {
namespace {

TEST(KeptMemory, TensorsAreNotMappedAnew) {
  keep_freed_memory();
  const std::size_t mapped = ::mallinfo2().hblks;
  void* const tensor = std::malloc(16 << 20);
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(::mallinfo2().hblks, mapped);
  std::free(tensor);
  const std::size_t held = ::mallinfo2().arena;
  void* const next = std::malloc(16 << 20);
  EXPECT_EQ(::mallinfo2().arena, held) << "the freed one serves";
  std::free(next);
}

}  // namespace
}  // namespace cohort
