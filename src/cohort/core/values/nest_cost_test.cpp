// SPDX-License-Identifier: Apache-2.0
// The cost of looking up entries, in allocations: this program counts those of each thread.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>

#include "cohort/core/nest.h"

namespace {

thread_local std::size_t allocations = 0;

}  // namespace

void* operator new(std::size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace cohort {
namespace {

// The text of the error was made at each lookup, from the keys before the one that was found.
TEST(NestCost, LookingUpAllEntriesIsLinearInTheirNumber) {
  const auto counted = [](int entries) {
    Nest::Map map;
    const auto key = [](int i) { return "a key that is no short string " + std::to_string(i); };
    for (int i = 0; i < entries; ++i) map.emplace(key(i), i);
    const Nest nest = Nest::map(std::move(map));
    const std::size_t before = allocations;
    std::int64_t sum = 0;
    for (int i = 0; i < entries; ++i) sum += nest.entry(key(i)).integer();
    EXPECT_EQ(sum, std::int64_t{entries} * (entries - 1) / 2);
    return allocations - before;
  };
  const std::size_t few = counted(100);
  EXPECT_GE(few, 100U);  // the key of the lookup
  EXPECT_LE(counted(1000), 12 * few);
}

}  // namespace
}  // namespace cohort
