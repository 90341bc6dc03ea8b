// SPDX-License-Identifier: Apache-2.0
// Workers that are stopped or killed in a save or before a rebuild: what the others save stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <utility>

#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/training_job.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kWorkers;
using testing::LostWorker;
using ::testing::Not;
using testing::RunningProgram;

struct Job : testing::TrainingJob {
  explicit Job(std::string backend, Options options = {})
      : TrainingJob(TRAINING_WORKER, std::move(backend), std::move(options)) {}
};

class LostInRebuild : public LostWorker {};

// Regression: it had not heard of the group that was formed without it, found that the others had
// ended, and trained alone over what they had saved.
TEST_P(LostInRebuild, IsStoppedAndChangesNothingWhenTheOthersHaveEnded) {
  const testing::TemporaryFolder folder;
  const std::string file = folder.file("values");
  Job job(GetParam(), {.save_to = file,
                       .signalled = 1,
                       .signal = SIGSTOP,
                       .signal_when = "SIGNAL_AT_REBUILD",
                       .rebuild_seconds = 10});
  ASSERT_TRUE(job.worker(2).await("step 150\n")) << job.worker(2).err();
  job.worker(2).signal(SIGKILL);
  EXPECT_EQ(job.worker(0).wait().to_string(), "exit code 0")
      << job.worker(0).out() << job.worker(0).err();
  const std::string saved = folder.read("values");
  EXPECT_NE(saved, "");
  RunningProgram& victim = job.worker(1);
  victim.signal(SIGCONT);
  EXPECT_EQ(victim.wait().to_string(), "exit code 75") << victim.out() << victim.err();
  EXPECT_THAT(victim.out(), Not(HasSubstr("rebuilt: ")));
  EXPECT_EQ(folder.read("values"), saved);
}

class LostInASave : public LostWorker {};

// Regression: the first worker replaced what the others had saved by its older values.
TEST_P(LostInASave, LeavesTheFileOfTheOthersIfItIsStopped) {
  struct Stop {
    int victim = 0;
    std::string when;
  };
  for (const Stop& stop : {Stop{0, "SIGNAL_AT_SAVE"}, Stop{2, "SIGNAL_AT_SAVE"},
                           Stop{0, "SIGNAL_IN_SAVE"}, Stop{0, "SIGNAL_AT_RENAME"}}) {
    SCOPED_TRACE(std::to_string(stop.victim) + " " + stop.when);
    const testing::TemporaryFolder folder;
    const std::string file = folder.file("values");
    Job job(GetParam(), {.save_to = file,
                         .signalled = stop.victim,
                         .signal = SIGSTOP,
                         .signal_when = stop.when,
                         .rebuild_seconds = 10});
    RunningProgram& victim = job.worker(stop.victim);
    RunningProgram& other = job.worker(1);
    EXPECT_EQ(other.wait().to_string(), "exit code 0") << other.out() << other.err();
    const std::string saved = folder.read("values");
    EXPECT_NE(saved, "");
    victim.signal(SIGCONT);
    EXPECT_EQ(victim.wait().to_string(), "exit code 75") << victim.err();
    EXPECT_THAT(victim.out(), AllOf(HasSubstr("the others have gone on without this worker"),
                                    Not(HasSubstr("saved\n"))));
    EXPECT_EQ(folder.read("values"), saved);
    EXPECT_THAT(folder.names(), ::testing::ElementsAre("values"));
  }
}

// Regression: the loss of another worker had ended its group, so nobody had told it in that group
// that it was given up, and it took the others, which had ended, for the only ones that had values.
TEST_P(LostInASave, LeavesTheFileOfTheOthersIfItIsStoppedAndAnotherIsKilled) {
  const testing::TemporaryFolder folder;
  Job job(GetParam(), {.workers = 4,
                       .save_to = folder.file("values"),
                       .signalled = 0,
                       .signal = SIGSTOP,
                       .signal_when = "SIGNAL_AT_SAVE",
                       .rebuild_seconds = 10});
  RunningProgram& victim = job.worker(0);
  ASSERT_TRUE(victim.await("step 100\n")) << victim.err();
  job.worker(3).signal(SIGKILL);
  for (const int other : {1, 2})
    EXPECT_EQ(job.worker(other).wait().to_string(), "exit code 0") << job.worker(other).err();
  const std::string saved = folder.read("values");
  EXPECT_NE(saved, "");
  victim.signal(SIGCONT);
  EXPECT_EQ(victim.wait().to_string(), "exit code 75") << victim.err();
  EXPECT_THAT(victim.out(), AllOf(HasSubstr("the others have gone on without this worker"),
                                  Not(HasSubstr("saved\n"))));
  EXPECT_EQ(folder.read("values"), saved);
}

// Regression: a worker that was left alone did not take its turn at the file.
TEST_P(LostInASave, LeavesTheFileOfTheOnlyOneThatIsLeft) {
  const testing::TemporaryFolder folder;
  Job job(GetParam(), {.workers = 4,
                       .save_to = folder.file("values"),
                       .signalled = 0,
                       .signal = SIGSTOP,
                       .signal_when = "SIGNAL_AT_RENAME",
                       .rebuild_seconds = 10});
  RunningProgram& victim = job.worker(0);
  RunningProgram& last = job.worker(1);
  ASSERT_TRUE(victim.await("step 100\n")) << victim.err();
  job.worker(3).signal(SIGKILL);
  ASSERT_TRUE(last.await("rebuilt: worker 0 of 2 ")) << last.out() << last.err();
  job.worker(2).signal(SIGKILL);
  EXPECT_EQ(last.wait().to_string(), "exit code 0") << last.out() << last.err();
  const std::string saved = folder.read("values");
  EXPECT_NE(saved, "");
  victim.signal(SIGCONT);
  EXPECT_EQ(victim.wait().to_string(), "exit code 75") << victim.err();
  EXPECT_EQ(folder.read("values"), saved);
  EXPECT_THAT(folder.names(), ::testing::ElementsAre("values"));
}

// Regression: if the first worker was left, it saved alone and went on with the next step, while
// the others saved again.
TEST_P(LostInASave, IsNoneForTheOthersIfItIsKilled) {
  for (const int victim : {0, 2}) {
    const testing::TemporaryFolder folder;
    const std::string file = folder.file("values");
    Job job(GetParam(), {.save_to = file, .signalled = victim, .signal = SIGKILL});
    expect_survivors(job, {.victim = victim});
    EXPECT_NE(folder.read("values"), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LostInRebuild, ::testing::Values("shared_memory", "tcp"));
INSTANTIATE_TEST_SUITE_P(Backends, LostInASave, ::testing::Values("shared_memory", "tcp"));

}  // namespace
}  // namespace cohort
