// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/stop_signals.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <functional>
#include <optional>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/throws_error.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::throws_error;

extern "C" void do_nothing_at_signal(int /*number*/) {}

TEST(StopSignalsTest, NotesASignal) {
  const StopSignals signals;
  EXPECT_FALSE(signals.requested());
  EXPECT_EQ(signals.signal(), 0);
  ::raise(SIGTERM);
  EXPECT_TRUE(signals.requested());
  EXPECT_EQ(signals.signal(), SIGTERM);
  EXPECT_EQ(signals.exit_code(), 75);
}

TEST(StopSignalsTest, BeginsWithoutASignal) {
  {
    const StopSignals signals;
    ::raise(SIGINT);
    EXPECT_EQ(signals.signal(), SIGINT);
  }
  EXPECT_FALSE(StopSignals().requested());
}

TEST(StopSignalsTest, RestoresTheHandlersFromBefore) {
  struct sigaction own {
  }, before{}, now{};
  own.sa_handler = &do_nothing_at_signal;
  ::sigaction(SIGINT, &own, &before);
  {
    const StopSignals signals;
    ::raise(SIGINT);
  }
  ::sigaction(SIGINT, &before, &now);
  EXPECT_EQ(now.sa_handler, &do_nothing_at_signal);
  ::sigaction(SIGTERM, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

// As nohup and shells set it for a program in the background.
TEST(StopSignalsTest, LeavesAnIgnoredSignalIgnored) {
  ::signal(SIGINT, SIG_IGN);
  {
    const StopSignals signals;
    ::raise(SIGINT);
    EXPECT_FALSE(signals.requested());
    ::raise(SIGTERM);
    ::raise(SIGINT);  // does not end this process
  }
  EXPECT_EQ(::signal(SIGINT, SIG_DFL), SIG_IGN);
}

TEST(StopSignalsTest, RefusesASecondObject) {
  const StopSignals signals;
  EXPECT_THAT([] { StopSignals(); },
              throws_error(ErrorCode::failed_precondition, "no other StopSignals"));
  ::raise(SIGTERM);
  EXPECT_TRUE(signals.requested());  // the first one works on
}

// `timeout` and Ctrl-C reach a program and its launcher, which passes them on: the second one ended
// the program before it had saved.
TEST(StopSignalsTest, ASignalSentTwiceIsOneRequest) {
  const StopSignals signals;
  ::raise(SIGINT);
  ::raise(SIGTERM);
  EXPECT_EQ(signals.signal(), SIGINT);
}

TEST(StopSignalsDeathTest, EndsAtALaterSignal) {
  const auto end_by = [](int first, int second) {
    const StopSignals signals;
    ::raise(first);
    while (true) ::raise(second);
  };
  EXPECT_EXIT(end_by(SIGTERM, SIGTERM), ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(end_by(SIGTERM, SIGINT), ::testing::KilledBySignal(SIGINT), "");
}

TEST(StopSignalsTest, AgreesAloneInOneProcess) {
  const StopSignals signals;
  OneDeviceStrategy strategy;
  EXPECT_FALSE(signals.agreed(strategy));
  ::raise(SIGTERM);
  EXPECT_TRUE(signals.agreed(strategy));
  EXPECT_TRUE(signals.agreed(default_strategy()));
}

TEST(StopSignalsTest, IsRefusedInsideARun) {
  const StopSignals signals;
  OneDeviceStrategy strategy;
  EXPECT_THAT([&] { strategy.run([&] { signals.agreed(strategy); }); },
              throws_error(ErrorCode::failed_precondition, "agreed() outside of run()"));
}

// Workers that are threads of this process, which have all signals in common, so each says by
// itself whether it wants to stop.
class WorkersThatStop : public ::testing::Test {
 protected:
  struct Worker {
    explicit Worker(const InProcessWorkers& workers, int rank)
        : strategy(workers.group(rank), {.devices = {"CPU:0"}}),
          variable(strategy.variable("w", at::ones({3}))),
          sgd({variable}, {.learning_rate = 0.01}) {}
    int rank() const { return strategy.worker(); }
    void step() {
      strategy.run([&] { sgd.minimize((variable.tensor() * variable.tensor()).sum()); });
    }
    bool agrees(bool wants) {
      return internal::StrategyAccess::workers(strategy)->agree_to_stop(wants);
    }
    MultiWorkerMirroredStrategy strategy;
    Variable variable;
    SGD sgd;
  };
  static std::vector<int> on_two(const std::function<int(Worker&)>& body) {
    const InProcessWorkers workers(2);
    return testing::on_workers<int>(2, [&](int rank) {
      Worker worker(workers, rank);
      return body(worker);
    });
  }
};

TEST_F(WorkersThatStop, StopAtTheSameStep) {
  const std::vector<int> stops = on_two([](Worker& worker) {
    for (int step = 1;; ++step) {
      worker.step();
      if (worker.agrees(worker.rank() == 1 && step >= 5)) return step;
    }
  });
  EXPECT_THAT(stops, ElementsAre(6, 6));  // the flag travels in the step after it was set
}

TEST_F(WorkersThatStop, AgreeByAMessageWithoutASum) {
  const std::vector<int> stops = on_two([](Worker& worker) {
    int call = 1;
    while (!worker.agrees(worker.rank() == 0 && call >= 3)) ++call;
    return call;
  });
  EXPECT_THAT(stops, ElementsAre(3, 3));
}

// If the call was a message, the worker that makes it alone would meet the step of the other one.
TEST_F(WorkersThatStop, AgreeWithoutAMessageAfterASum) {
  const std::vector<int> calls = on_two([](Worker& worker) {
    worker.step();  // the first of its kind has no header
    worker.agrees(false);
    for (int step = 0; step < 20; ++step) {
      worker.step();
      if (worker.rank() == 0) {
        EXPECT_FALSE(worker.agrees(false));
      }
    }
    return 1;
  });
  EXPECT_THAT(calls, Each(1));
}

TEST_F(WorkersThatStop, StayStopped) {
  on_two([](Worker& worker) {
    EXPECT_TRUE(worker.agrees(worker.rank() == 0));
    EXPECT_TRUE(worker.agrees(false));
    return 0;
  });
}

// An agreement from before a failure may not have reached all of them.
TEST_F(WorkersThatStop, AgreeAnewAfterAFailure) {
  on_two([](Worker& worker) {
    EXPECT_TRUE(worker.agrees(worker.rank() == 0));
    const at::Tensor one = at::ones({1});
    EXPECT_THROW(worker.rank() == 0 ? worker.strategy.reduce(ReduceOp::sum, one)
                                    : worker.strategy.gather(one, 0),
                 Error);
    EXPECT_FALSE(worker.agrees(false));
    return 0;
  });
}

}  // namespace
}  // namespace cohort
