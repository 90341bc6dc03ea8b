// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/hyperparameter.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

TEST(Hyperparameter, IsAScalarOfFloat64) {
  const at::Tensor rate = make_hyperparameter(0.1);
  EXPECT_EQ(rate.dim(), 0);
  EXPECT_EQ(rate.scalar_type(), at::kDouble);
  EXPECT_EQ(rate.item<double>(), 0.1);
}

TEST(Hyperparameter, ASnapshotKeepsTheValueItWasTakenAt) {
  const at::Tensor rate = make_hyperparameter(0.1);
  const at::Tensor before = hyperparameter_snapshot(rate);
  set_hyperparameter(rate, 0.5);
  EXPECT_EQ(hyperparameter_value(before), 0.1);
  EXPECT_EQ(hyperparameter_value(rate), 0.5);
}

TEST(Hyperparameter, ASnapshotOfAnotherTensorIsACopy) {
  at::Tensor batch = at::ones({2});
  const at::Tensor before = hyperparameter_snapshot(batch);
  batch.zero_();
  EXPECT_EQ(before.sum().item<double>(), 2);
}

TEST(Hyperparameter, HasItsValuesOfBefore) {
  const at::Tensor rate = make_hyperparameter(0.1);
  const at::Tensor other = make_hyperparameter(7);
  const std::uint64_t first = hyperparameter_time();
  set_hyperparameter(rate, 0.2);
  const std::uint64_t second = hyperparameter_time();
  set_hyperparameter(other, 8);
  set_hyperparameter(rate, 0.3);
  const std::uint64_t third = hyperparameter_time();
  const auto at = [](const at::Tensor& value, std::uint64_t time) {
    return hyperparameter_value(hyperparameter_snapshot(value, time));
  };
  EXPECT_EQ(at(rate, first), 0.1);
  EXPECT_EQ(at(rate, second), 0.2);
  EXPECT_EQ(at(rate, third), 0.3);
  EXPECT_EQ(at(other, second), 7);
  EXPECT_EQ(at(other, third), 8);
}

TEST(Hyperparameter, ForgetsWhatWasBeforeItsLast4096Changes) {
  const at::Tensor rate = make_hyperparameter(0);
  const std::uint64_t first = hyperparameter_time();
  set_hyperparameter(rate, 1);
  const std::uint64_t second = hyperparameter_time();
  for (int i = 0; i < 4096; ++i) set_hyperparameter(rate, 2 + i);
  EXPECT_FALSE(hyperparameter_snapshot(rate, first).defined());
  EXPECT_EQ(hyperparameter_value(hyperparameter_snapshot(rate, second)), 1);
}

TEST(Hyperparameter, ScalarsOfOtherDtypesAreRead) {
  EXPECT_EQ(hyperparameter_value(at::full({}, 3, at::TensorOptions(at::kLong))), 3.0);
  EXPECT_EQ(hyperparameter_value(at::full({}, 0.5, at::TensorOptions(at::kFloat))), 0.5);
}

TEST(Hyperparameter, ATensorThatIsNoScalarIsRefused) {
  EXPECT_THAT([] { hyperparameter_value(at::ones({2})); },
              throws_error(ErrorCode::invalid_argument,
                           "expected hyperparameters as scalar tensors, got float32[2]"));
  EXPECT_THAT([] { hyperparameter_value(at::Tensor()); },
              throws_error(ErrorCode::invalid_argument, "undefined"));
}

// For ThreadSanitizer: the writer and the readers share no lock.
TEST(Hyperparameter, IsReadWhileItIsWritten) {
  const at::Tensor rate = make_hyperparameter(1);
  std::thread writer([&] {
    for (int i = 0; i < 1000; ++i) set_hyperparameter(rate, i % 2 == 0 ? 2 : 1);
  });
  bool is_whole = true;
  for (int i = 0; i < 1000; ++i) {
    const double value = hyperparameter_value(hyperparameter_snapshot(rate));
    is_whole = is_whole && (value == 1 || value == 2);
  }
  writer.join();
  EXPECT_TRUE(is_whole);
}

std::vector<double> values_of_step(const std::vector<at::Tensor>& hyperparameters,
                                   CountedUpdates& counted) {
  std::vector<double> values;
  for (const at::Tensor& value : hyperparameters_of_step(hyperparameters, counted))
    values.push_back(hyperparameter_value(value));
  return values;
}
std::vector<double> values_of_step(const std::vector<at::Tensor>& hyperparameters) {
  CountedUpdates counted;
  std::vector<double> values = values_of_step(hyperparameters, counted);
  counted.keep();
  return values;
}

TEST(UpdateCounters, HaveTheValueOfTheCount) {
  UpdateCounter counter([](std::int64_t count) { return 10.0 + static_cast<double>(count); });
  const at::Tensor first = counter.hyperparameter(0), second = counter.hyperparameter(1);
  EXPECT_TRUE(first.is_same(counter.hyperparameter(0)));
  EXPECT_EQ(hyperparameter_value(first), 10);
  EXPECT_EQ(hyperparameter_value(second), 11);
  counter.add_one();
  EXPECT_EQ(hyperparameter_value(second), 12);
  counter.set_count(5);
  EXPECT_EQ(hyperparameter_value(first), 15);
  EXPECT_EQ(counter.value(), 15);
  counter.set_value([](std::int64_t) { return 0.5; });
  EXPECT_EQ(hyperparameter_value(first), 0.5);
}

TEST(UpdateCounters, GoOnByTheUpdatesOfAStep) {
  UpdateCounter counter([](std::int64_t count) { return static_cast<double>(count); });
  UpdateCounter other([](std::int64_t count) { return 100.0 + static_cast<double>(count); });
  const std::vector<at::Tensor> step{counter.hyperparameter(0), make_hyperparameter(7),
                                     other.hyperparameter(0), counter.hyperparameter(1)};
  EXPECT_EQ(values_of_step(step), (std::vector<double>{0, 7, 100, 1}));
  EXPECT_EQ(values_of_step(step), (std::vector<double>{2, 7, 101, 3}));
  EXPECT_EQ(counter.count(), 4);
  EXPECT_EQ(other.count(), 2);
}

// The count went back, so that the next step had the number of one that runs.
TEST(UpdateCounters, LeaveTheNumbersOfAStepThatDidNotRunToTheNextOnes) {
  UpdateCounter counter([](std::int64_t count) { return static_cast<double>(count); });
  const std::vector<at::Tensor> step{counter.hyperparameter(0), counter.hyperparameter(1)};
  EXPECT_EQ(values_of_step(step), (std::vector<double>{0, 1}));
  {
    CountedUpdates dropped;
    EXPECT_EQ(values_of_step(step, dropped), (std::vector<double>{2, 3}));
    EXPECT_EQ(values_of_step({step[0]}), (std::vector<double>{4}));
    EXPECT_EQ(counter.count(), 5);
  }
  EXPECT_EQ(counter.count(), 3);
  EXPECT_EQ(counter.value(), 2);
  counter.add_one();
  EXPECT_EQ(values_of_step(step), (std::vector<double>{3, 5}));
  EXPECT_EQ(counter.count(), 6);
}

TEST(UpdateCounters, AStepMayTakeANumberLater) {
  UpdateCounter counter([](std::int64_t count) { return static_cast<double>(count); });
  const at::Tensor hyperparameter = counter.hyperparameter(0);
  {
    CountedUpdates counted;
    counted.take_also(make_hyperparameter(7));
    counted.take_also(hyperparameter);
    EXPECT_EQ(counter.count(), 1);
    EXPECT_EQ(counter.value(), 1);
  }
  EXPECT_EQ(counter.count(), 0) << "the step did not run";
}

TEST(UpdateCounters, ForgetWhatWasTakenBeforeTheCountWasSet) {
  UpdateCounter counter([](std::int64_t count) { return static_cast<double>(count); });
  const std::vector<at::Tensor> step{counter.hyperparameter(0)};
  {
    CountedUpdates dropped;
    values_of_step(step, dropped);
    counter.set_count(7);
  }
  EXPECT_EQ(counter.count(), 7);
  EXPECT_EQ(values_of_step(step), std::vector<double>{7});
}

TEST(UpdateCounters, GiveNoTwoStepsTheSameCount) {
  constexpr int kCalls = 2000;
  UpdateCounter counter([](std::int64_t count) { return static_cast<double>(count); });
  const std::vector<at::Tensor> step{counter.hyperparameter(0)};
  std::vector<std::vector<double>> seen(2);
  std::vector<std::thread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) mine.push_back(values_of_step(step).front());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<double> all(seen[0].begin(), seen[0].end());
  all.insert(seen[1].begin(), seen[1].end());
  EXPECT_EQ(all.size(), 2U * kCalls);
  EXPECT_EQ(*all.rbegin(), 2.0 * kCalls - 1);
}

// The coordinator may keep a program that captured the tensor.
TEST(UpdateCounters, LeaveTheirLastValueBehind) {
  std::vector<at::Tensor> step;
  {
    UpdateCounter counter([](std::int64_t count) { return static_cast<double>(count); });
    step.push_back(counter.hyperparameter(0));
    EXPECT_EQ(values_of_step(step), std::vector<double>{0});
  }
  EXPECT_EQ(hyperparameter_value(step[0]), 1);
  EXPECT_EQ(values_of_step(step), std::vector<double>{1});
}

TEST(UpdateCounters, ThrowWhatTheirFunctionThrowsWhereTheValueIsNeeded) {
  UpdateCounter counter([](std::int64_t count) {
    if (count > 0) throw std::runtime_error("no value");
    return 0.0;
  });
  const std::vector<at::Tensor> step{counter.hyperparameter(0)};
  EXPECT_EQ(values_of_step(step), std::vector<double>{0});
  EXPECT_THAT([&] { values_of_step(step); }, throws_error(ErrorCode::unknown, "no value"));
  EXPECT_EQ(counter.count(), 1);
}

// Regression: the first optimizer counted a step that the second one's function refused.
TEST(UpdateCounters, DoNotCountAStepThatAnotherOneHasNoValueFor) {
  UpdateCounter counter([](std::int64_t count) { return static_cast<double>(count); });
  UpdateCounter picky([](std::int64_t count) {
    if (count > 0) throw std::runtime_error("no value");
    return 0.0;
  });
  const std::vector<at::Tensor> step{counter.hyperparameter(0), picky.hyperparameter(0)};
  EXPECT_EQ(values_of_step(step), (std::vector<double>{0, 0}));
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT([&] { values_of_step(step); }, throws_error(ErrorCode::unknown, "no value"));
  EXPECT_EQ(counter.count(), 1);
  EXPECT_EQ(picky.count(), 1);
}

// Regression: a step with one update was refused for the value of a second one.
TEST(UpdateCounters, NeedTheValuesOfTheStepAlone) {
  UpdateCounter counter([](std::int64_t count) {
    if (count > 1) throw std::runtime_error("no value");
    return static_cast<double>(count);
  });
  counter.hyperparameter(1);
  const std::vector<at::Tensor> step{counter.hyperparameter(0)};
  EXPECT_EQ(values_of_step(step), std::vector<double>{0});
  EXPECT_EQ(counter.value(), 1);
  EXPECT_EQ(values_of_step(step), std::vector<double>{1});
  EXPECT_THAT([&] { values_of_step(step); }, throws_error(ErrorCode::unknown, "no value"));
}

}  // namespace
}  // namespace cohort
