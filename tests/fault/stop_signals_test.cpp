// SPDX-License-Identifier: Apache-2.0
// One of several processes that train together gets a signal, and all of them save the same step
// and end, also if another one is lost meanwhile.
#include <ATen/core/TensorBody.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <random>
#include <stop_token>
#include <string>
#include <thread>

#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/training_job.h"
#include "cohort/variable/saved_values.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::kWorkers;
using testing::number_after;
using testing::RunningProgram;

constexpr int kManySteps = 10'000'000;  // it does not end by itself

class StoppedJob : public testing::LeavesNoProcess,
                   public ::testing::WithParamInterface<std::string> {
 protected:
  struct Job : testing::TrainingJob {
    Job(const std::string& backend, const std::string& save_to)
        : TrainingJob(TRAINING_WORKER, backend,
                      {.steps = kManySteps, .save_to = save_to, .stops_together = true}) {}
  };
  int random(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  // All of these, but for `lost`, have saved this step and ended.
  void expect_stop(Job& job, int lost = -1) {
    double step = 0;
    for (int i = 0; i < kWorkers; ++i) {
      if (i == lost) continue;
      RunningProgram& worker = job.worker(i);
      EXPECT_EQ(worker.wait().to_string(), "exit code 75") << worker.out() << worker.err();
      if (step == 0) step = number_after(worker.out(), "stops at step ");
      EXPECT_EQ(number_after(worker.out(), "stops at step "), step);
    }
    EXPECT_GT(step, 0);
    EXPECT_EQ(SavedValues(file).value("num_steps").item<double>(), step);
  }

  const testing::TestSeed seed_;
  std::mt19937 random_{static_cast<unsigned>(seed_.value())};
  testing::TemporaryFolder folder;
  const std::string file = folder.file("values");
};

TEST_P(StoppedJob, SavesTheSameStepOnAllWorkers) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Job job(GetParam(), file);
    RunningProgram& signalled = job.worker(random(kWorkers));
    ASSERT_TRUE(signalled.await("step " + std::to_string(1 + random(50)) + "\n"))
        << signalled.err();
    signalled.signal(signal);
    expect_stop(job);
  }
}

TEST_P(StoppedJob, SavesAlthoughAWorkerIsLost) {
  Job job(GetParam(), file);
  const int signalled = random(kWorkers);
  const int lost = (signalled + 1 + random(kWorkers - 1)) % kWorkers;
  ASSERT_TRUE(job.worker(lost).await("step 30\n")) << job.worker(lost).err();
  job.worker(lost).signal(SIGKILL);
  job.worker(signalled).signal(SIGTERM);
  expect_stop(job, lost);
}

TEST_P(StoppedJob, EndsWithoutSavingAtALaterSignal) {
  Job job(GetParam(), file);
  RunningProgram& signalled = job.worker(0);
  ASSERT_TRUE(signalled.await("step 30\n")) << signalled.err();
  job.worker(1).signal(SIGSTOP);  // so that no further step ends
  signalled.signal(SIGTERM);
  std::jthread signals([&, pid = signalled.pid()](const std::stop_token& is_over) {
    while (!is_over.stop_requested()) {
      ::kill(pid, SIGINT);
      std::this_thread::yield();
    }
  });
  EXPECT_FALSE(signalled.await("stops at step"));
  signals = {};
  EXPECT_THAT(signalled.wait().to_string(), ::testing::StartsWith("SIG")) << signalled.out();
}

INSTANTIATE_TEST_SUITE_P(Backends, StoppedJob, ::testing::Values("shared_memory", "tcp"));

}  // namespace
}  // namespace cohort
