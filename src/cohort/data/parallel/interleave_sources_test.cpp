// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/parallel/interleave_sources.h"

#include <gtest/gtest.h>

namespace cohort::data {
namespace {

constexpr std::int64_t kElementsEach = 3;

// Reads `cycle` datasets, all open at a time, of which the first is ten times as long. Returns how
// often a slot was looked at for each element.
double looks_per_element(std::int64_t cycle, bool is_deterministic) {
  InterleaveSources sources({.order = {.cycle_length = cycle, .block_length = 1},
                             .is_deterministic = is_deterministic,
                             .upcoming_max = static_cast<std::size_t>(cycle),
                             .on_room = [] {}});
  for (std::int64_t i = 0; i < cycle; ++i) sources.add(std::make_shared<InterleaveSource>());
  sources.end_input();
  std::int64_t taken = 0;
  Item item;
  while (true) {
    const InterleaveSources::Taken next = sources.take(item);
    if (next == InterleaveSources::Taken::end) break;
    if (next == InterleaveSources::Taken::element) {
      ++taken;
      continue;
    }
    const InterleaveSources::SourcePtr source = sources.wanted();
    if (source == nullptr) ADD_FAILURE() << "nothing to read after " << taken;
    if (source == nullptr) break;
    sources.begin_reading(*source);
    const std::int64_t count = source->index == 0 ? 10 * cycle : kElementsEach;
    source->is_ended = true;
    sources.end_reading(*source, std::vector<Item>(static_cast<std::size_t>(count)));
  }
  EXPECT_EQ(taken, 10 * cycle + kElementsEach * (cycle - 1));
  return static_cast<double>(sources.noted_count()) / static_cast<double>(taken);
}

// Each element once looked at every slot of the cycle: 10,000 datasets took 5.5 seconds.
TEST(InterleaveSources, LookAtAFewSlotsForAnElementHoweverLongTheCycleIs) {
  for (const bool is_deterministic : {true, false}) {
    for (const std::int64_t cycle : {10, 1'000, 10'000}) {
      EXPECT_LE(looks_per_element(cycle, is_deterministic), 4) << cycle;
    }
  }
}

}  // namespace
}  // namespace cohort::data
