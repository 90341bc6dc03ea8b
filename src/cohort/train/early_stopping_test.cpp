// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/early_stopping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::throws_error;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The epoch after which it stops; -1: it does not.
std::int64_t epoch_of_stop(EarlyStopping& stopping, const std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto epoch = static_cast<std::int64_t>(i);
    if (stopping.update(epoch, {{"loss", values[i] + 1}, {"val_loss", values[i]}})) return epoch;
  }
  return -1;
}
std::int64_t epoch_of_stop(EarlyStoppingOptions options, const std::vector<double>& values) {
  EarlyStopping stopping(std::move(options));
  return epoch_of_stop(stopping, values);
}

// Each of these was compared with what Keras 3.15 does.
TEST(EarlyStoppingTest, StopsAsKerasDoes) {
  EXPECT_EQ(epoch_of_stop({}, {3, 2, 1, 1, 0}), 3);
  EXPECT_EQ(epoch_of_stop({.patience = 2}, {3, 2, 4, 5, 1}), 3);
  EXPECT_EQ(epoch_of_stop({.patience = 2}, {3, 4, 2, 4, 1}), -1);
  EXPECT_EQ(epoch_of_stop({.min_delta = 0.5}, {3, 2, 1.6, 0}), 2);
  EXPECT_EQ(epoch_of_stop({.mode = MonitorMode::max}, {1, 2, 3, 2.5}), 3);
  EXPECT_EQ(epoch_of_stop({.min_delta = 1, .mode = MonitorMode::max}, {1, 3, 4}), 2);
  EXPECT_EQ(epoch_of_stop({.start_from_epoch = 3}, {1, 2, 3, 9, 10}), 4);
}

TEST(EarlyStoppingTest, CountsEpochsUntilTheBaselineIsSurpassed) {
  EXPECT_EQ(epoch_of_stop({.patience = 3, .baseline = 1}, {5, 4, 6}), 2);
  EXPECT_EQ(epoch_of_stop({.patience = 3, .baseline = 1}, {5, 0.5, 6, 6, 6}), 4);
  // One that is better than before does not stop it, whatever the baseline.
  EXPECT_EQ(epoch_of_stop({.baseline = 0}, {5, 4, 3, 2, 1}), -1);
}

TEST(EarlyStoppingTest, SaysWhyItStopped) {
  EarlyStopping stopping({.patience = 2});
  EXPECT_EQ(stopping.reason(), "");
  EXPECT_EQ(epoch_of_stop(stopping, {3, 0.25, 4, 5}), 3);
  EXPECT_EQ(stopping.reason(), "'val_loss' has not been better than 0.25 of epoch 1 for 2 epochs");
  EXPECT_EQ(stopping.best(), 0.25);
  EXPECT_EQ(stopping.best_epoch(), 1);
  EXPECT_EQ(stopping.stopped_epoch(), 3);
}

TEST(EarlyStoppingTest, StopsAtOnceForNan) {
  testing::Warnings warnings;
  EarlyStopping stopping({.patience = 10});
  EXPECT_EQ(epoch_of_stop(stopping, {3, kNan}), 1);
  EXPECT_EQ(stopping.reason(), "'val_loss' is NaN at epoch 1");
  EXPECT_EQ(stopping.best(), 3);
  EXPECT_EQ(warnings.count("'val_loss' is NaN at epoch 1"), 1);
}

TEST(EarlyStoppingTest, TakesTheModeFromTheName) {
  for (const char* const small : {"loss", "val_loss", "mean_error", "val/mse"}) {
    EarlyStopping stopping({.monitor = small});
    stopping.update(0, {{small, 1.0}});
    EXPECT_FALSE(stopping.update(1, {{small, 0.5}})) << small;
  }
  for (const char* const large : {"accuracy", "val_acc", "auc", "top_k", "val/f1"}) {
    EarlyStopping stopping({.monitor = large});
    stopping.update(0, {{large, 0.5}});
    EXPECT_FALSE(stopping.update(1, {{large, 1.0}})) << large;
  }
  for (const char* const neither : {"pace", "reward", "", "loss_of_accuracy"}) {
    EXPECT_THAT(
        [&] { EarlyStopping({.monitor = neither}); },
        throws_error(ErrorCode::invalid_argument, std::string("got '") + neither + "'; set .mode"));
  }
}

TEST(EarlyStoppingTest, RefusesBadOptions) {
  EXPECT_THAT([] { EarlyStopping({.min_delta = -1}); },
              throws_error(ErrorCode::invalid_argument, "min_delta >= 0, got -1"));
  EXPECT_THAT([] { EarlyStopping({.patience = -1}); },
              throws_error(ErrorCode::invalid_argument, "patience >= 0, got -1"));
  EXPECT_THAT([] { EarlyStopping({.baseline = kNan}); },
              throws_error(ErrorCode::invalid_argument, "baseline, got NaN"));
  EXPECT_THAT([] { EarlyStopping({.mode = static_cast<MonitorMode>(7)}); },
              throws_error(ErrorCode::invalid_argument, "a MonitorMode, got the number 7"));
}

TEST(EarlyStoppingTest, NamesTheMetricsThatThereAre) {
  EarlyStopping stopping;
  EXPECT_THAT(
      [&] {
        stopping.update(0, {{"loss", 1}, {"val_los", 2}});
      },
      throws_error(ErrorCode::not_found,
                   "expected metric 'val_loss', got 'loss', 'val_los'; did you mean "
                   "'val_los'?"));
  EXPECT_THAT([&] { stopping.update(0, {}); },
              throws_error(ErrorCode::not_found, "'val_loss', got no metrics"));
  EXPECT_FALSE(stopping.update(0, {{"val_loss", 1}}));
}

TEST(EarlyStoppingTest, RefusesAnEpochThatItHasSeen) {
  EarlyStopping stopping;
  stopping.update(4, {{"val_loss", 1}});
  EXPECT_THAT(
      [&] {
        stopping.update(4, {{"val_loss", 1}});
      },
      throws_error(ErrorCode::invalid_argument, "an epoch after 4, got 4"));
  EXPECT_THAT(
      [] {
        EarlyStopping().update(-1, {{"val_loss", 1}});
      },
      throws_error(ErrorCode::invalid_argument, "an epoch after -1, got -1"));
}

// Saved and restored after each epoch, it decides as one that was not.
TEST(EarlyStoppingTest, ContinuesFromItsState) {
  for (const std::vector<double>& values :
       {std::vector<double>{kInfinity, 0.1 + 0.2, 4, 0.30000000000000004, 5},
        std::vector<double>{-1, kNan}, std::vector<double>{5, 4, 3}}) {
    EarlyStopping straight({.patience = 3});
    std::string state = EarlyStopping({.patience = 3}).save();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto epoch = static_cast<std::int64_t>(i);
      EarlyStopping next({.patience = 3});
      next.restore(state);
      const MetricValues metrics{{"val_loss", values[i]}};
      EXPECT_EQ(next.update(epoch, metrics), straight.update(epoch, metrics));
      EXPECT_EQ(next.reason(), straight.reason());
      state = next.save();
      EXPECT_EQ(state, straight.save());
    }
  }
}

TEST(EarlyStoppingTest, RefusesOtherStates) {
  EarlyStopping stopping;
  stopping.update(0, {{"val_loss", 1}});
  const std::string own = stopping.save();
  const auto refuses = [&](const std::string& state, const std::string& words) {
    EXPECT_THAT([&] { stopping.restore(state); }, throws_error(ErrorCode::invalid_argument, words));
    EXPECT_EQ(stopping.save(), own);
  };
  refuses("", "got one of kind nothing");
  refuses("[1]", "got one of kind nothing");
  refuses(own.substr(0, own.size() / 2), "got one of kind nothing");
  refuses(BestModel().save(), "got one of kind \"best_model\"");
  refuses(EarlyStopping({.monitor = "loss"}).save(), "of metric 'val_loss' with mode \"min\"");
  refuses(EarlyStopping({.mode = MonitorMode::max}).save(), "with mode \"max\"");
  std::string damaged = own;
  damaged.replace(damaged.find("\"wait\":0"), 8, "\"wait\":[]");
  refuses(damaged, "one that is damaged");
  damaged = own;
  damaged.replace(damaged.find("\"best\":1.0"), 10, "\"best\":\"x\"");
  refuses(damaged, "a number, got \"x\"");
}

TEST(BestModelTest, TellsTheBestEpochs) {
  BestModel best({.monitor = "val_accuracy"});
  const std::vector<double> values{0.5, 0.4, kNan, 0.6, 0.6, 0.7};
  const std::vector<bool> expected{true, false, false, true, false, true};
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(best.update(static_cast<std::int64_t>(i), {{"val_accuracy", values[i]}}), expected[i])
        << i;
  }
  EXPECT_EQ(best.best(), 0.7);
  EXPECT_EQ(best.best_epoch(), 5);
}

TEST(BestModelTest, HasAnEpochThatIsBetterThanTheBaseline) {
  BestModel best({.monitor = "loss", .baseline = 1});
  EXPECT_FALSE(best.update(0, {{"loss", 2}}));
  EXPECT_EQ(best.best(), std::nullopt);
  EXPECT_FALSE(best.update(1, {{"loss", 1}}));
  EXPECT_TRUE(best.update(2, {{"loss", 0.5}}));
}

TEST(BestModelTest, ContinuesFromItsState) {
  BestModel best({.monitor = "loss"});
  best.update(3, {{"loss", 0.25}});
  BestModel next({.monitor = "loss"});
  next.restore(best.save());
  EXPECT_EQ(next.best_epoch(), 3);
  EXPECT_FALSE(next.update(4, {{"loss", 0.5}}));
  EXPECT_TRUE(next.update(5, {{"loss", 0.125}}));
  EXPECT_THAT([&] { next.restore(EarlyStopping({.monitor = "loss"}).save()); },
              throws_error(ErrorCode::invalid_argument, "got one of kind \"early_stopping\""));
}

}  // namespace
}  // namespace cohort
