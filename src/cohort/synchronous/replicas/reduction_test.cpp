// SPDX-License-Identifier: Apache-2.0
// reduce() along dimensions. The comment above a test names the rows of the specification.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cohort/collective/group.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;
using Values = PerReplica<at::Tensor>;

class ReduceAlong : public ::testing::Test {
 protected:
  static double number(const at::Tensor& value) { return value.item<double>(); }
  MirroredStrategy two_{{"CPU:0", "CPU:1"}};
};

// RED-03, RED-05, RED-08
TEST_F(ReduceAlong, WeighsUnevenBatchesByTheirSizes) {
  const Values uneven({at::tensor({1.0, 2.0, 3.0, 4.0}), at::tensor({5.0, 9.0})});
  EXPECT_EQ(number(two_.reduce("SUM", uneven, 0)), 24);
  EXPECT_EQ(number(two_.reduce("Mean", uneven, 0)), 4);
  EXPECT_EQ(number(two_.reduce("mean", uneven, -1)), 4);
  const Values one_empty({at::zeros({0}, at::kDouble), at::tensor({2.0, 4.0})});
  EXPECT_EQ(number(two_.reduce("mean", one_empty, 0)), 3);
  EXPECT_TRUE(std::isnan(number(two_.reduce("mean", Values({at::zeros({0}), at::zeros({0})}), 0))));
}

// RED-09
TEST_F(ReduceAlong, TakesSeveralAxes) {
  const at::Tensor x = at::arange(6, at::kDouble).view({2, 3});
  const Values both({x, x.add(10)});
  EXPECT_EQ(number(two_.reduce(ReduceOp::sum, both, {0, 1})), 2 * 15 + 60);
  EXPECT_EQ(number(two_.reduce(ReduceOp::mean, both, {1, 0})), 7.5);
  EXPECT_TRUE(two_.reduce(ReduceOp::mean, both, 1).equal(at::tensor({6.0, 9.0})));
}

// RED-13
TEST_F(ReduceAlong, AMeanOfIntegersIsExact) {
  const Values bytes({at::full({2}, 120, at::kChar), at::full({1}, 121, at::kChar)});
  const at::Tensor mean = two_.reduce(ReduceOp::mean, bytes, 0);
  EXPECT_EQ(mean.scalar_type(), at::kFloat);
  EXPECT_FLOAT_EQ(mean.item<float>(), 361.0F / 3);
  EXPECT_EQ(two_.reduce(ReduceOp::mean,
                        Values({at::full({1}, 1, at::kInt), at::full({1}, 2, at::kInt)}), 0)
                .scalar_type(),
            at::kDouble);
  const Values halves({at::full({3000}, 1, at::kHalf), at::full({1}, 1, at::kHalf)});
  EXPECT_EQ(number(two_.reduce(ReduceOp::mean, halves, 0)), 1) << "counts above 2048";
}

// Regression: sums of narrow integers wrapped without a word: 255 + 255 of uint8 was 254.
TEST_F(ReduceAlong, ASumThatItsTypeCannotHoldIsRefused) {
  const auto twice = [](at::ScalarType type, double value) {
    return Values({at::full({2}, value, type), at::full({2}, value, type)});
  };
  const auto refused = [&](const Values& values, const Axes& axis, const std::string& words) {
    EXPECT_THAT([&] { two_.reduce("sum", values, axis); },
                throws_error(ErrorCode::invalid_argument, words));
  };
  refused(twice(at::kByte, 255), Axes::none(), "a sum that uint8 can hold, from 0 to 255, got 510");
  refused(twice(at::kByte, 100), 0, "got 400; convert the values before they are added");
  refused(twice(at::kChar, -100), Axes::none(), "int8 can hold, from -128 to 127, got -200");
  refused(twice(at::kShort, 30000), Axes::none(), "int16 can hold");
  refused(twice(at::kInt, 2e9), Axes::none(), "got 4000000000");
  EXPECT_EQ(number(two_.reduce("sum", twice(at::kLong, 2e9), 0)), 8e9);
  const at::Tensor most = two_.reduce("sum", twice(at::kByte, 127));
  EXPECT_EQ(most.scalar_type(), at::kByte);
  EXPECT_TRUE(most.equal(at::full({2}, 254, at::kByte)));
  const Values cancelling({at::full({2}, 100, at::kChar), at::full({2}, -100, at::kChar)});
  EXPECT_EQ(number(two_.reduce("sum", cancelling, 0)), 0) << "200 is no result";
  EXPECT_EQ(number(two_.reduce("mean", twice(at::kByte, 255), 0)), 255);
  EXPECT_EQ(two_.reduce("sum", Values({at::zeros({0, 2}, at::kByte), at::zeros({0, 2}, at::kByte)}))
                .size(1),
            2);
  EXPECT_THAT(
      [&] { OneDeviceStrategy().reduce("sum", Values::bare(at::full({4}, 200, at::kByte)), 0); },
      throws_error(ErrorCode::invalid_argument, "got 800"));
}

TEST_F(ReduceAlong, ASumOverWorkersThatItsTypeCannotHoldIsRefused) {
  InProcessWorkers workers(2);
  testing::on_workers<int>(2, [&](int rank) {
    MultiWorkerMirroredStrategy strategy(workers.group(rank), {.devices = {"CPU:0"}});
    const auto sum_of = [&](double value) {
      return strategy.reduce("sum", Values({at::full({1}, value, at::kByte)}));
    };
    EXPECT_THAT([&] { sum_of(200); }, throws_error(ErrorCode::invalid_argument, "got 400"));
    const at::Tensor fits = sum_of(100);
    EXPECT_EQ(fits.scalar_type(), at::kByte);
    EXPECT_EQ(number(fits), 200);
    return 0;
  });
}

TEST_F(ReduceAlong, ASumOfSparseRowsThatItsTypeCannotHoldIsRefused) {
  const auto rows = [](std::int64_t index) {
    return at::sparse_coo_tensor(at::full({1, 1}, index, at::kLong), at::full({1}, 200, at::kByte),
                                 {3});
  };
  EXPECT_THAT(
      [&] {
        two_.reduce("sum", Values({rows(1), rows(1)}));
      },
      throws_error(ErrorCode::invalid_argument, "got 400"));
  EXPECT_EQ(number(two_.reduce("sum", Values({rows(1), rows(2)})).to_dense().max()), 200);
}

// RED-10
TEST_F(ReduceAlong, RefusesAnAxisThatIsNotThere) {
  const Values values({at::zeros({2}), at::zeros({2})});
  EXPECT_THAT([&] { two_.reduce(ReduceOp::mean, values, 1); },
              throws_error(ErrorCode::invalid_argument, "an axis of float32[2], got 1"));
  EXPECT_THAT(
      [&] {
        two_.reduce(ReduceOp::sum, values, {0, -1});
      },
      throws_error(ErrorCode::invalid_argument, "each axis once"));
  EXPECT_THAT([&] { two_.reduce("max", values); },
              throws_error(ErrorCode::invalid_argument, "\"SUM\" or \"MEAN\", got \"max\""));
}

// RED-19
TEST_F(ReduceAlong, OfOneReplicaIsLocal) {
  OneDeviceStrategy one("CPU:0");
  const auto range = Values::bare(at::arange(10));
  EXPECT_EQ(one.reduce(ReduceOp::sum, range).size(0), 10);
  EXPECT_EQ(number(one.reduce(ReduceOp::sum, range, 0)), 45);
  EXPECT_EQ(number(default_strategy().reduce(ReduceOp::mean, range, 0)), 4.5);
}

TEST_F(ReduceAlong, AValueOfAllReplicasCountsOnceForEach) {
  const auto value = Values::bare(at::tensor({1.0, 3.0}));
  EXPECT_EQ(number(two_.reduce(ReduceOp::sum, value, 0)), 8);
  EXPECT_EQ(number(two_.reduce(ReduceOp::mean, value, 0)), 2);
  const auto mirrored = Values::mirrored({at::tensor({2.0}), at::tensor({2.0})});
  EXPECT_EQ(number(two_.reduce(ReduceOp::mean, mirrored)), 2);
  EXPECT_THAT([&] { two_.reduce(ReduceOp::sum, mirrored); },
              throws_error(ErrorCode::invalid_argument, "the same for all"));
}

TEST_F(ReduceAlong, WorkersReduceTogether) {
  InProcessWorkers workers(2);
  const std::vector<double> means = testing::on_workers<double>(2, [&](int rank) {
    MultiWorkerMirroredStrategy strategy(workers.group(rank), {.devices = {"CPU:0"}});
    const Values own({rank == 0 ? at::tensor({1.0, 2.0, 6.0}) : at::tensor({7.0})});
    return number(strategy.reduce(ReduceOp::mean, own, 0));
  });
  EXPECT_EQ(means, (std::vector<double>{4, 4}));
}

// 2.3, RED-051
TEST_F(ReduceAlong, PlainValuesAreTheSameForAllReplicas) {
  const at::Tensor value = at::tensor({2.0, 3.0});
  EXPECT_EQ(number(two_.reduce("sum", value, 0)), 10);
  EXPECT_EQ(number(two_.reduce("mean", value, 0)), 2.5);
  EXPECT_TRUE(two_.reduce("mean", value).is_same(value));
  EXPECT_THAT([&] { two_.reduce("sum", value); },
              throws_error(ErrorCode::invalid_argument, "the same for all 2"));
  EXPECT_EQ(two_.reduce("mean", Nest(5.0)).real(), 5);
  EXPECT_EQ(two_.reduce("sum", Nest(0.0)).real(), 0) << "the host value 0";
  EXPECT_EQ(two_.reduce("sum", Nest(0)).integer(), 0);
  EXPECT_THAT([&] { two_.reduce("sum", Nest(1)); },
              throws_error(ErrorCode::invalid_argument, "the same for all 2"));
  EXPECT_THAT([&] { two_.reduce("sum", at::zeros({1})); },
              throws_error(ErrorCode::invalid_argument, "the same for all 2"));
  EXPECT_TRUE(two_.gather(value, 0).is_same(value));
  EXPECT_EQ(two_.gather(Nest(3), 0).integer(), 3);
  EXPECT_EQ(OneDeviceStrategy().reduce("sum", Nest(7)).integer(), 7);
  EXPECT_TRUE(default_strategy().reduce("sum", value).is_same(value));
}

// 2.3: each leaf of a nest by its own kind.
TEST_F(ReduceAlong, LeavesOfANestMayBeTheSameInAllReplicas) {
  const at::Tensor shared = at::tensor({1.0, 3.0});
  const auto results = two_.run([&] {
    const int id = get_replica_context()->replica_id_in_sync_group();
    return Nest::map({{"each", at::full({2}, id + 1.0)},
                      {"number", Nest(id + 1)},
                      {"shared", shared},
                      {"zero", Nest(0)}});
  });
  const Nest mean = two_.reduce("mean", results);
  EXPECT_EQ(number(mean.entry("each").tensor()[0]), 1.5);
  EXPECT_EQ(mean.entry("number").tensor().scalar_type(), at::kDouble);
  EXPECT_TRUE(mean.entry("shared").tensor().is_same(shared));
  EXPECT_EQ(number(mean.entry("zero").tensor()), 0);
  EXPECT_THAT([&] { two_.reduce("sum", results); },
              throws_error(ErrorCode::invalid_argument, "the same for all 2"));
  const auto numbers = two_.run([] {
    return Nest::tuple({Nest(get_replica_context()->replica_id_in_sync_group() + 1), Nest(0)});
  });
  EXPECT_EQ(two_.reduce("sum", numbers).items()[0].tensor().item<std::int64_t>(), 3);
  EXPECT_EQ(two_.reduce("sum", numbers).items()[1].tensor().item<std::int64_t>(), 0);
  const Nest rows = two_.gather(two_.run([&] {
    return Nest::list({at::ones({1, 2}), shared});
  }),
                                0);
  EXPECT_EQ(rows.items()[0].tensor().size(0), 2);
  EXPECT_TRUE(rows.items()[1].tensor().is_same(shared));
  const Values wrapped({shared, shared});
  EXPECT_EQ(number(two_.reduce("sum", wrapped)[1]), 6) << "given as two components";
}

// Regression: replicas with equally many rows counted as one value, which has no sum, or which was
// added once for each worker.
TEST_F(ReduceAlong, ASumOfNumbersDoesNotDependOnHowEvenTheyAre) {
  const std::vector<std::vector<std::int64_t>> rows = {{4, 4}, {5, 3}, {8, 0}, {0, 0}};
  for (const std::vector<std::int64_t>& each : rows) {
    const auto count = [&] {
      return Nest(
          each.at(static_cast<std::size_t>(get_replica_context()->replica_id_in_sync_group() % 2)));
    };
    const auto counts = two_.run(count);
    EXPECT_EQ(counts.size(), 2) << each[0];
    const Nest sum = two_.reduce("sum", counts);
    EXPECT_EQ(sum.tensor().item<std::int64_t>(), each[0] + each[1]);
    EXPECT_EQ(number(two_.reduce("mean", counts).tensor()),
              static_cast<double>(each[0] + each[1]) / 2);
    const Nest nested = two_.reduce("sum", two_.run([&] {
      return Nest::map({{"loss", at::ones({})}, {"rows", count()}});
    }));
    EXPECT_EQ(nested.entry("rows").tensor().item<std::int64_t>(), each[0] + each[1]);
    const auto of_workers = testing::on_workers<std::int64_t>(2, [&, workers = InProcessWorkers(2)](
                                                                     int rank) {
      MultiWorkerMirroredStrategy strategy(workers.group(rank), {.devices = {"CPU:0", "CPU:1"}});
      return strategy.reduce("sum", strategy.run(count)).tensor().item<std::int64_t>();
    });
    EXPECT_THAT(of_workers, ::testing::Each(2 * (each[0] + each[1])));
  }
}

// RED-069, COL-041
TEST_F(ReduceAlong, TheRowsOfSparseTensorsAreCollected) {
  const auto rows = [](const std::vector<std::int64_t>& indices, const at::Tensor& values) {
    return at::sparse_coo_tensor(at::tensor(indices, at::kLong).unsqueeze(0), values, {3, 2});
  };
  const Values values({rows({1}, at::full({1, 2}, 2.0)), rows({1, 2}, at::full({2, 2}, 4.0))});
  EXPECT_TRUE(two_.reduce("sum", values)
                  .to_dense()
                  .equal(at::tensor({0.F, 0.F, 6.F, 6.F, 4.F, 4.F}).view({3, 2})));
  EXPECT_TRUE(two_.reduce("mean", values)
                  .to_dense()
                  .equal(at::tensor({0.F, 0.F, 3.F, 3.F, 2.F, 2.F}).view({3, 2})));
  EXPECT_THAT([&] { two_.reduce("sum", values, 0); },
              throws_error(ErrorCode::unimplemented, "dense tensors with an axis"));
  EXPECT_THAT([&] { two_.gather(values, 0); }, throws_error(ErrorCode::unimplemented, "dense"));
  EXPECT_THAT([&] { two_.gather(values[0], 0); }, throws_error(ErrorCode::unimplemented, "dense"));
  EXPECT_THAT([&] { OneDeviceStrategy().gather(values[0], 0); },
              throws_error(ErrorCode::unimplemented, "dense"));
  EXPECT_THAT(
      [&] {
        two_.reduce("sum", Values({values[0], at::ones({3, 2})}));
      },
      throws_error(ErrorCode::invalid_argument, "got sparse float32[3, 2] and float32[3, 2]"));
  EXPECT_THAT(
      [&] {
        two_.reduce("sum", Values({at::ones({3, 2}).to_sparse_csr(), values[1]}));
      },
      throws_error(ErrorCode::invalid_argument, "layout SparseCsr"));
}

// 2.7: "single component: returned without reduction, also for MEAN"
TEST_F(ReduceAlong, TheOnlyComponentIsItsOwnReduction) {
  MirroredStrategy one({"CPU:0"});
  const at::Tensor value = at::full({2}, 3, at::kInt);
  EXPECT_TRUE(one.reduce("mean", Values({value})).is_same(value));
  EXPECT_THAT(
      [&] {
        one.reduce("mean", Values({value, value}));
      },
      throws_error(ErrorCode::invalid_argument, "expected 1 component, got 2"));
  EXPECT_THAT(
      [&] {
        one.gather(Values({value, value}), 0);
      },
      throws_error(ErrorCode::invalid_argument, "expected 1 component, got 2"));
}

// Half precision is added in float32 and rounded once.
TEST_F(ReduceAlong, ASumOfHalfPrecisionIsRoundedOnce) {
  MirroredStrategy three({"CPU:0", "CPU:1", "CPU:2"});
  const auto half = [](double value) { return at::full({}, value, at::kHalf); };
  EXPECT_EQ(number(three.reduce("sum", Values({half(2048), half(1), half(1)}))), 2050);
}

// RED-17
TEST_F(ReduceAlong, APlainValueOfEachWorkerIsReducedOverTheWorkers) {
  InProcessWorkers workers(2);
  const auto sums = testing::on_workers<std::vector<double>>(2, [&](int rank) {
    MultiWorkerMirroredStrategy strategy(workers.group(rank), {.devices = {"CPU:0", "CPU:1"}});
    const auto shared = at::full({}, rank + 1.0);
    const Nest nest = strategy.reduce("sum", strategy.run([&] {
      return Nest::list({shared, at::ones({})});
    }));
    return std::vector<double>{number(strategy.reduce("sum", at::full({}, rank + 1.0))),
                               number(strategy.reduce("sum", at::full({2}, 1.0), 0)),
                               number(nest.items()[0].tensor()), number(nest.items()[1].tensor())};
  });
  for (const std::vector<double>& each : sums)
    EXPECT_EQ(each, (std::vector<double>{3, 2 * 4, 3, 4})) << "once for each worker";
}

// RED-18
TEST_F(ReduceAlong, APlainValueOfEachWorkerGoesToADevice) {
  InProcessWorkers workers(2);
  const auto sums = testing::on_workers<std::vector<double>>(2, [&](int rank) {
    MultiWorkerMirroredStrategy strategy(workers.group(rank), {.devices = {"CPU:0"}});
    const at::Tensor one = at::full({}, 1.0);
    std::vector<double> all{number(strategy.extended().reduce_to("sum", one, "CPU:0"))};
    for (const auto& each : strategy.extended().batch_reduce_to(
             "sum", {{Values::bare(one), "CPU:0"}, {Values::bare(one), "CPU:0"}}))
      all.push_back(number(each));
    return all;
  });
  for (const std::vector<double>& each : sums) EXPECT_EQ(each, (std::vector<double>{2, 2, 2}));
}

}  // namespace
}  // namespace cohort
