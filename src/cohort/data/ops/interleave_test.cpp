// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "cohort/core/mutex.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/testing/live_threads.h"
#include "cohort/testing/test_seed.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using Lengths = std::vector<std::int64_t>;

Dataset repeats_of(std::int64_t x) {
  return Dataset::from_tensor_slices(at::full({x}, x, at::kLong));
}

// A dataset of x times x for each of them.
Dataset of_lengths(const Lengths& lengths, InterleaveOptions options, std::int64_t repeats = 1) {
  return Dataset::from_tensor_slices(at::tensor(lengths))
      .repeat(repeats)
      .interleave(&repeats_of, options);
}

// Datasets of 100 x + 0, 1, … .
Dataset numbered(Lengths lengths, InterleaveOptions options) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  return rows(count).interleave(
      [lengths](std::int64_t x) {
        return Dataset::range(100 * x + lengths[static_cast<std::size_t>(x)], {.start = 100 * x});
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(
    Interleave, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"InTurn",
                      [] {
                        return of_lengths({4, 5, 6}, {.cycle_length = 2}, 2);
                      },
                      false},
        DatasetOpCase{"Blocks",
                      [] {
                        return numbered({5, 1, 4, 0, 2}, {.cycle_length = 2, .block_length = 2});
                      },
                      false},
        DatasetOpCase{"WideCycle",
                      [] {
                        return numbered({3, 1}, {.cycle_length = 9});
                      },
                      false},
        DatasetOpCase{"Parallel",
                      [] {
                        return numbered(
                            {5, 1, 4, 0, 2},
                            {.cycle_length = 3, .block_length = 2, .num_parallel_calls = 3});
                      },
                      false},
        DatasetOpCase{"TunedInARow",
                      [] {
                        return of_lengths({3, 2, 4},
                                          {.cycle_length = 2, .num_parallel_calls = kAutotune})
                            .interleave(&repeats_of, {.cycle_length = 2, .num_parallel_calls = 1})
                            .prefetch(2);
                      },
                      false},
        DatasetOpCase{.name = "Nothing",
                      .make = [] { return numbered({}, {.cycle_length = 2}); },
                      .can_ship = false,
                      .is_empty = true}));

struct Order {
  std::string name;
  Lengths lengths;
  InterleaveOptions options;
  std::vector<std::int64_t> expected;
};

class InterleaveOrders : public ::testing::TestWithParam<Order> {};

TEST_P(InterleaveOrders, AreThoseOfTheOriginal) {
  const Order& order = GetParam();
  EXPECT_THAT(scalars_of(of_lengths(order.lengths, order.options)),
              ElementsAreArray(order.expected));
}

TEST_P(InterleaveOrders, AreTheSameInParallel) {
  Order order = GetParam();
  for (std::int64_t calls = 1; calls <= order.options.cycle_length; ++calls) {
    order.options.num_parallel_calls = calls;
    EXPECT_THAT(scalars_of(of_lengths(order.lengths, order.options)),
                ElementsAreArray(order.expected));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Interleave, InterleaveOrders,
    ::testing::Values(
        Order{"One", {4, 5, 6}, {.cycle_length = 1}, {4, 4, 4, 4, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6}},
        Order{"Two", {4, 5, 6, 4, 5, 6}, {.cycle_length = 2}, {4, 5, 4, 5, 4, 5, 4, 5, 5, 6,
                                                               6, 4, 6, 4, 6, 4, 6, 4, 6, 5,
                                                               6, 5, 6, 5, 6, 5, 6, 5, 6, 6}},
        Order{"BlocksOfThree",
              {4, 5, 6, 4, 5, 6},
              {.cycle_length = 2, .block_length = 3},
              {4, 4, 4, 5, 5, 5, 4, 5, 5, 6, 6, 6, 4, 4, 4,
               6, 6, 6, 4, 5, 5, 5, 6, 6, 6, 5, 5, 6, 6, 6}},
        Order{
            "AnEmptyOne", {4, 0, 6, 4, 0, 6}, {.cycle_length = 2}, {4, 4, 6, 4, 6, 4, 6, 6, 4, 6,
                                                                    4, 6, 4, 4, 6, 6, 6, 6, 6, 6}},
        Order{"ThreeOpen",
              {1, 2, 3, 4, 5},
              {.cycle_length = 3},
              {1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 5, 4, 5, 5, 5}},
        Order{"MoreSlotsThanDatasets",
              {3, 5, 2},
              {.cycle_length = 5, .block_length = 10},
              {3, 3, 3, 5, 5, 5, 5, 5, 2, 2}}),
    [](const auto& instance) { return instance.param.name; });

std::vector<std::int64_t> sorted(std::vector<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

TEST(Interleave, KeepsTheSequentialOrderForRandomLengths) {
  const testing::TestSeed seed(7);
  std::mt19937 random(seed.value());
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Lengths lengths(random() % 12);
    for (std::int64_t& length : lengths) length = static_cast<std::int64_t>(random() % 40);
    InterleaveOptions options{.cycle_length = 1 + static_cast<std::int64_t>(random() % 6),
                              .block_length = 1 + static_cast<std::int64_t>(random() % 20)};
    const std::vector<std::int64_t> expected = scalars_of(numbered(lengths, options));
    options.num_parallel_calls = 1 + static_cast<std::int64_t>(random()) % options.cycle_length;
    EXPECT_EQ(scalars_of(numbered(lengths, options)), expected);
    options.deterministic = false;
    EXPECT_EQ(sorted(scalars_of(numbered(lengths, options))), sorted(expected));
  }
}

TEST(Interleave, MayGiveUpTheOrderAndLosesNothing) {
  const Dataset dataset =
      of_lengths({4, 5, 6}, {.cycle_length = 2, .block_length = 3, .num_parallel_calls = 2}, 2)
          .with_options({.deterministic = false});
  std::vector<std::int64_t> expected(8, 4);
  expected.insert(expected.end(), 10, 5);
  expected.insert(expected.end(), 12, 6);
  EXPECT_EQ(sorted(scalars_of(dataset)), expected);
}

TEST(Interleave, KeepsTheOrderWhereTheCallSaysSo) {
  const Dataset dataset =
      rows(1'000)
          .interleave([](at::Tensor x) { return Dataset::from_tensor_slices(x.view({1})); },
                      {.cycle_length = 10, .num_parallel_calls = 10, .deterministic = true})
          .with_options({.deterministic = false});
  std::vector<std::int64_t> expected(1'000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(scalars_of(dataset), expected);
}

// Dataset 0 is kept waiting until all of dataset 1 was taken.
TEST(Interleave, HandsOnWhatIsReadyWhereTheOrderIsFree) {
  struct Gate {
    Mutex mutex;
    Condition changed;
    bool is_open COHORT_GUARDED_BY(mutex) = false;
  };
  const auto gate = std::make_shared<Gate>();
  const auto wait = [gate](at::Tensor element) {
    const auto x = element.item<std::int64_t>();
    const Lock lock(gate->mutex);
    gate->changed.wait(gate->mutex, Deadline::after(std::chrono::seconds(30)),
                       [&]() COHORT_REQUIRES(gate->mutex) { return x > 0 || gate->is_open; });
    return at::full({}, x, at::kLong);
  };
  Iterator iterator =
      rows(2)
          .interleave(
              [wait](std::int64_t x) {
                return Dataset::range(10 * x + 3, {.start = 10 * x}).map(Function(wait));
              },
              {.cycle_length = 2, .num_parallel_calls = 2, .deterministic = false})
          .iterator();
  EXPECT_THAT(drain(iterator, 3), ElementsAre("10", "11", "12"));
  {
    const Lock lock(gate->mutex);
    gate->is_open = true;
  }
  gate->changed.notify_all();
  EXPECT_THAT(drain(iterator), ElementsAre("0", "1", "2"));
}

Dataset failing(std::int64_t calls) {
  const auto fail_at = [](std::int64_t bad) {
    return Function([bad](at::Tensor element) {
      const auto x = element.item<std::int64_t>();
      COHORT_CHECK(x != bad, ErrorCode::data_loss, "bad");
      return at::full({}, x, at::kLong);
    });
  };
  return rows(6)
      .map(fail_at(4))
      .interleave(
          [fail_at](std::int64_t x) {
            COHORT_CHECK(x != 1, ErrorCode::not_found, "no dataset");
            return Dataset::range(10 * x + 3, {.start = 10 * x}).map(fail_at(21));
          },
          {.cycle_length = 2, .block_length = 2, .num_parallel_calls = calls});
}

TEST(Interleave, ReportsErrorsInTheirPlaceAndTheyUseUpNoTurn) {
  const auto expected = ElementsAre("0", "1", "error not_found", "20", "error data_loss", "22", "2",
                                    "30", "31", "error data_loss", "50", "51", "32", "52");
  EXPECT_THAT(elements_of(failing(0)), expected);
  EXPECT_THAT(elements_of(failing(1)), expected);
  EXPECT_THAT(elements_of(failing(2)), expected);
}

TEST(Interleave, SavesErrorsThatWereNotReportedYet) {
  const Dataset dataset = failing(2);
  for (std::size_t taken = 0; taken < 14; ++taken) {
    Iterator original = dataset.iterator();
    drain(original, taken);
    Iterator restored = dataset.iterator();
    restored.restore(original.save());
    EXPECT_EQ(drain(restored), drain(original)) << "after " << taken;
  }
}

TEST(Interleave, DoesNotLatchErrorsOfItsInput) {
  const Dataset dataset =
      rows(5)
          .map([](at::Tensor x) {
            COHORT_CHECK(x.item<std::int64_t>() % 2 == 0, ErrorCode::invalid_argument, "odd");
            return x;
          })
          .interleave([](at::Tensor x) { return Dataset::from_tensor_slices(x.view({1})); },
                      {.cycle_length = 1, .block_length = 3});
  EXPECT_THAT(elements_of(dataset),
              ElementsAre("0", "error invalid_argument", "2", "error invalid_argument", "4"));
}

TEST(Interleave, StopsWhenItsIteratorGoes) {
  const testing::LiveThreads threads;
  const auto noted = [threads](at::Tensor x) { return threads.note(), x; };
  for (int taken = 0; taken < 5; ++taken) {
    Iterator iterator =
        rows(1'000'000)
            .interleave([noted](at::Tensor) { return rows(1'000'000).map(noted).prefetch(2); },
                        {.cycle_length = 4, .num_parallel_calls = 3})
            .iterator();
    for (int i = 0; i < taken; ++i) iterator.try_next();
  }
  EXPECT_TRUE(threads.have_been());
  EXPECT_EQ(threads.count(), 0);
}

TEST(Interleave, ReadsNoFurtherAheadThanItsBound) {
  const auto opened = std::make_shared<std::atomic<std::int64_t>>(0);
  Iterator iterator = rows(1'000)
                          .interleave([opened](at::Tensor) { return ++*opened, rows(2); },
                                      {.cycle_length = 3, .num_parallel_calls = 2})
                          .iterator();
  for (std::int64_t taken = 1; taken < 100; ++taken) {
    iterator.try_next();
    EXPECT_LE(opened->load(), taken / 2 + 3 + 2 + 1);
  }
}

TEST(Interleave, IsInfiniteWhereItsInputIs) {
  const InterleaveOptions options{.cycle_length = 1};
  EXPECT_EQ(rows(5).repeat().interleave(&repeats_of, options).cardinality(), kInfiniteCardinality);
  EXPECT_EQ(rows(5).interleave(&repeats_of, options).cardinality(), kUnknownCardinality);
}

TEST(Interleave, RefusesOptionsThatAreNone) {
  const auto message = [](InterleaveOptions options) {
    return error_of([&] { of_lengths({1}, options); }).message();
  };
  EXPECT_THAT(message({.cycle_length = 0}),
              HasSubstr("expected cycle_length > 0 or kAutotune, got 0"));
  EXPECT_THAT(message({.cycle_length = 2, .block_length = 0}),
              HasSubstr("expected block_length > 0, got 0"));
  EXPECT_THAT(message({.cycle_length = 2, .num_parallel_calls = 3}),
              HasSubstr("expected num_parallel_calls of at most cycle_length, 2, got 3"));
  EXPECT_THAT(message({.cycle_length = 2, .num_parallel_calls = -3}),
              HasSubstr("[data.interleave] expected num_parallel_calls >= 0 or kAutotune"));
}

// The shuffles of datasets that were made after the restore took the other number.
TEST(Interleave, GoesOnWithTheSavedPassWhateverPassTheIteratorIsIn) {
  const auto shuffled = [](std::int64_t x) {
    return Dataset::range(100 * x + 30, {.start = 100 * x}).shuffle(30, {.seed = 1});
  };
  const auto nested = [shuffled](std::int64_t x) {
    return rows(2).map([x](at::Tensor y) { return y + x; }).flat_map(shuffled);
  };
  const auto in_turn = [](std::int64_t calls) {
    return InterleaveOptions{.cycle_length = 2, .num_parallel_calls = calls};
  };
  const std::vector<std::function<Dataset()>> pipelines{
      [&] { return rows(5).flat_map(shuffled); },
      [&] { return rows(5).interleave(shuffled, in_turn(0)).repeat(2); },
      [&] { return rows(5).interleave(shuffled, in_turn(2)); },
      [&] { return rows(3).interleave(nested, in_turn(0)).repeat(2); }};
  using Pass = std::optional<std::uint64_t>;
  const std::vector<std::pair<Pass, Pass>> passes{{5, std::nullopt}, {5, 9}, {std::nullopt, 9}};
  for (const std::function<Dataset()>& make : pipelines) {
    for (const auto& [saved, other] : passes) {
      Iterator original = make().iterator({.iteration = saved});
      drain(original, 40);
      const Bytes position = original.save();
      const std::vector<std::string> rest = drain(original);
      Iterator restored = make().iterator({.iteration = other});
      restored.restore(position);
      EXPECT_EQ(drain(restored), rest);
    }
  }
}

}  // namespace
}  // namespace cohort::data
