// SPDX-License-Identifier: Apache-2.0
// Costs that must not grow faster than the work, compared for two sizes.
#include "cohort/function/program/work.h"

#include <gmock/gmock.h>

#include <vector>

#include "cohort/function/tracer/cases_for_tests.h"
#include "cohort/function/tracer/content_hash.h"

namespace cohort::function {
namespace {

using ::testing::Gt;
using ::testing::Lt;

class WorkTest : public TraceCase {
 protected:
  // The amount that `act` adds to a count of the work.
  template <class Act>
  static double counted(std::uint64_t Work::*count, const Act& act) {
    const std::uint64_t before = work_of_thread().*count;
    act();
    return static_cast<double>(work_of_thread().*count - before);
  }
};

// Each result was compared with each input, variable and constant.
TEST_F(WorkTest, ARunComparesItsResultsInALittleMoreThanLinearTime) {
  const auto comparisons = [this](std::int64_t count) {
    const Tensors inputs(static_cast<std::size_t>(count), normal({2}, 1));
    const Traced made = traced(inputs, inputs, [](const Tensors& in) {
      Tensors results;
      for (const at::Tensor& each : in) results.push_back(each.add(1));
      return results;
    });
    const auto program = PreparedProgram::decode(made.bytes);
    return counted(&Work::comparisons, [&] { program->run(inputs, {}, host_, 1); });
  };
  const double few = comparisons(100), many = comparisons(1000);
  EXPECT_THAT(few, Gt(100));
  EXPECT_THAT(many, Lt(20 * few));
}

// Each variable that a step used was looked for among all variables of the strategy.
TEST_F(WorkTest, ATraceFindsItsVariablesInLinearTime) {
  int made = 0;
  const auto comparisons = [&](int count) {
    options_.variables.clear();
    for (int i = 0; i < count; ++i) parameter("v" + std::to_string(made++), {2}, false);
    return counted(&Work::comparisons, [&] {
      traced([&](const Tensors&) {
        at::Tensor sum = options_.variables.front();
        for (const at::Tensor& each : options_.variables) sum = sum + each;
        return Tensors{sum};
      });
    });
  };
  const double few = comparisons(100), many = comparisons(1000);
  EXPECT_THAT(few, Gt(100));
  EXPECT_THAT(many, Lt(20 * few));  // memory addresses decide how many keys share a bucket
}

// The whole memory of each result was hashed when it was made, and at each use.
TEST_F(WorkTest, ATraceReadsLargeResultsInPart) {
  const auto bytes = [this](std::int64_t mebibytes) {
    const Tensors inputs = {normal({mebibytes, 1 << 18}, 1)};
    return counted(&Work::hashed_bytes, [&] {
      traced(inputs, inputs, [](const Tensors& in) {
        at::Tensor x = in[0];
        for (int i = 0; i < 5; ++i) x = x.mul(2);
        return Tensors{x.sum()};
      });
    });
  };
  const double few = bytes(1), many = bytes(10);
  EXPECT_THAT(few, Gt(1 << 20));
  EXPECT_THAT(many, Lt(2 * few));
}

TEST(ContentHash, NoticesRowsAndColumnsOfALargeMemory) {
  std::vector<std::byte> memory(24 << 20);
  ContentHash hash;
  hash.note(memory, {0, memory.size()}, Coverage::sample);
  const auto notices = [&](std::size_t begin, std::size_t end, std::size_t step) {
    for (std::size_t i = begin; i < end; i += step) memory[i] ^= std::byte{1};
    const bool is_noticed = !hash.matches(memory, {0, memory.size()});
    for (std::size_t i = begin; i < end; i += step) memory[i] ^= std::byte{1};
    return is_noticed;
  };
  EXPECT_FALSE(notices(0, 0, 1));
  EXPECT_TRUE(notices(0, 1, 1)) << "the first byte";
  EXPECT_TRUE(notices(memory.size() - 1, memory.size(), 1)) << "the last byte";
  EXPECT_TRUE(notices(10 << 20, (10 << 20) + 4096, 1)) << "a row";
  EXPECT_TRUE(notices(20, memory.size(), 4096)) << "a column";
}

}  // namespace
}  // namespace cohort::function
