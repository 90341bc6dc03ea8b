// SPDX-License-Identifier: Apache-2.0
// Three processes train together, and one of them is killed or stopped at a random step. The others
// name it, form a new group and end with the weights of one process. Or a connection between them
// is damaged, and all of them end with those weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/rpc/reserved_port.h"
#include "cohort/testing/faulty_proxy.h"
#include "cohort/testing/training_job.h"
#include "cohort/testing/worker_config.h"
#include "cohort/testing/worker_processes.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kSteps;
using testing::kWorkers;
using testing::LostWorker;
using ::testing::Not;
using testing::number_after;
using testing::RunningProgram;
using testing::Way;

struct Job : testing::TrainingJob {
  explicit Job(std::string backend, Options options = {})
      : TrainingJob(TRAINING_WORKER, std::move(backend), std::move(options)) {}
};

TEST_P(LostWorker, IsKilledAndTheOthersGoOn) {
  Job job(GetParam());
  const Loss loss = random_loss();
  SCOPED_TRACE("worker " + std::to_string(loss.victim) + " at step " + std::to_string(loss.step));
  ASSERT_TRUE(job.worker(loss.victim).await("step " + std::to_string(loss.step) + "\n"))
      << job.worker(loss.victim).err();
  job.worker(loss.victim).signal(SIGKILL);
  expect_survivors(job, loss);
}

TEST_P(LostWorker, IsStoppedAndChangesNothingWhenItWakesUp) {
  Job job(GetParam());
  const Loss loss = random_loss();
  SCOPED_TRACE("worker " + std::to_string(loss.victim) + " at step " + std::to_string(loss.step));
  RunningProgram& victim = job.worker(loss.victim);
  ASSERT_TRUE(victim.await("step " + std::to_string(loss.step) + "\n")) << victim.err();
  victim.signal(SIGSTOP);
  RunningProgram& other = job.worker((loss.victim + 1) % kWorkers);
  ASSERT_TRUE(other.await("rebuilt: ")) << other.out() << other.err();
  victim.signal(SIGCONT);
  expect_survivors(job, loss);
  // Regression: it trained alone after them, and would have replaced what they had saved.
  EXPECT_EQ(victim.wait().to_string(), "exit code 75") << victim.out() << victim.err();
  EXPECT_THAT(victim.out(), Not(HasSubstr("rebuilt: ")));
  EXPECT_THAT(victim.err(), HasSubstr("they have ended"));
}

TEST_P(LostWorker, OfTwoIsKilledAndTheOtherGoesOn) {
  for (const int victim : {0, 1}) {
    Job job(GetParam(), {.workers = 2});
    ASSERT_TRUE(job.worker(victim).await("step 50\n")) << job.worker(victim).err();
    job.worker(victim).signal(SIGKILL);
    RunningProgram& other = job.worker(1 - victim);
    EXPECT_EQ(other.wait().to_string(), "exit code 0") << other.out() << other.err();
    EXPECT_THAT(other.out(), HasSubstr("rebuilt: worker 0 of 1 "));
    EXPECT_EQ(number_after(other.out(), "ends with distance "), 0) << other.out();
  }
}

// The other one cannot know whether the first one trains on.
TEST_P(LostWorker, ThatIsTheFirstOfTwoIsStoppedAndNobodyTrainsAlone) {
  Job job(GetParam(), {.workers = 2});
  RunningProgram& first = job.worker(0);
  RunningProgram& other = job.worker(1);
  ASSERT_TRUE(first.await("step 50\n")) << first.err();
  first.signal(SIGSTOP);
  EXPECT_EQ(other.wait().to_string(), "exit code 75") << other.out() << other.err();
  EXPECT_THAT(other.err(), HasSubstr("too few without worker:0"));
  first.signal(SIGCONT);
  EXPECT_EQ(first.wait().to_string(), "exit code 75") << first.out() << first.err();
  EXPECT_THAT(first.err(), HasSubstr("they have ended"));
}

TEST_P(LostWorker, ThatStartsAgainJoinsWhenTheOthersRebuild) {
  Job job(GetParam(), {.steps = 6000, .rebuild_every = 100});
  const Loss loss = random_loss();
  SCOPED_TRACE("worker " + std::to_string(loss.victim) + " at step " + std::to_string(loss.step));
  ASSERT_TRUE(job.worker(loss.victim).await("step " + std::to_string(loss.step) + "\n"));
  job.worker(loss.victim).signal(SIGKILL);
  job.worker(loss.victim).wait();
  job.restart(loss.victim);
  for (int i = 0; i < kWorkers; ++i) {
    RunningProgram& worker = job.worker(i);
    EXPECT_EQ(worker.wait().to_string(), "exit code 0") << worker.err();
    const double distance = number_after(worker.out(), "ends with distance ");
    EXPECT_EQ(distance, 0) << worker.out();
  }
  EXPECT_GT(number_after(job.worker(loss.victim).out(), "begins at step "), 0);
}

// Regression: a child that the worker had forked kept its connections open, so that the others
// noticed its death only at their deadline.
TEST_P(LostWorker, IsNoticedAlthoughItsChildLives) {
  {
    const Loss loss = random_loss();
    Job job(GetParam(), {.forking = loss.victim});
    ASSERT_TRUE(job.worker(loss.victim).await("step " + std::to_string(loss.step) + "\n"))
        << job.worker(loss.victim).err();
    job.worker(loss.victim).signal(SIGKILL);
    expect_survivors(job, loss);
    const std::string& out = job.worker((loss.victim + 1) % kWorkers).out();
    EXPECT_THAT(out, HasSubstr("lost: unavailable worker:" + std::to_string(loss.victim)));
  }
  while (::waitpid(-1, nullptr, 0) > 0) {  // the children end soon
  }
}

// +overlap: gradients are on their way while the backward pass runs.
INSTANTIATE_TEST_SUITE_P(Backends, LostWorker,
                         ::testing::Values("shared_memory", "tcp", "shared_memory+overlap",
                                           "tcp+overlap"));

// So that what started it tries again.
TEST(TrainingWorker, EndsWithTheCodeOfAPortInUse) {
  const std::vector<rpc::ReservedPort> port(1);
  const std::string address = testing::loopback_addresses(port).front();
  const FileDescriptor other = testing::silent_listener(address);
  RunningProgram worker({TRAINING_WORKER, "1", "3000", "tcp"},
                        {{"TF_CONFIG", testing::tf_config_of({address, "127.0.0.1:1"}, 0)}});
  EXPECT_EQ(worker.wait().to_string(), "exit code 75");
  EXPECT_THAT(worker.err(), HasSubstr("expected a free port, got " + address));
  EXPECT_THAT(worker.err(), HasSubstr("two have the same index in TF_CONFIG"));
}

// loss_rounds.py has more kinds and places, such as the forming of groups.
class DamagedLink : public testing::LeavesNoProcess,
                    public ::testing::WithParamInterface<testing::Fault::Kind> {
 protected:
  const testing::TestSeed seed_;

  testing::Fault random_fault(std::mt19937& random) const {
    using Direction = testing::Fault::Direction;
    return {.kind = GetParam(),
            .direction = random() % 2 == 0 ? Direction::to_server : Direction::to_client,
            .random = random(),
            .late = std::chrono::seconds(4)};  // the workers wait for 3
  }
  // Each error names a worker.
  static void expect_names(const std::string& out) {
    for (std::size_t at = out.find("lost: "); at != std::string::npos;
         at = out.find("lost: ", at + 1)) {
      const std::string line = out.substr(at, out.find('\n', at) - at);
      EXPECT_THAT(line, ::testing::ContainsRegex("^lost: [a-z_]+ worker:[012] "));
    }
  }
};

TEST_P(DamagedLink, BetweenWorkersNeverMakesAWrongNumber) {
  std::mt19937 random(seed_.value());
  Job job("tcp", {.rebuild_every = 50, .way = Way::through_proxies});
  // Nobody connects to the last worker but to ask whether it lives.
  const int place = static_cast<int>(random() % (kWorkers - 1));
  const int step = 1 + static_cast<int>(random() % (kSteps - 100));
  const testing::Fault fault = random_fault(random);
  SCOPED_TRACE("worker " + std::to_string(place) + " at step " + std::to_string(step) + ": " +
               to_string(fault));
  ASSERT_TRUE(job.worker(0).await("step " + std::to_string(step) + "\n")) << job.worker(0).err();
  job.proxy(place).arm(fault);
  for (int i = 0; i < kWorkers; ++i) {
    RunningProgram& worker = job.worker(i);
    EXPECT_EQ(worker.wait().to_string(), "exit code 0") << worker.out() << worker.err();
    EXPECT_EQ(number_after(worker.out(), "ends with distance "), 0) << worker.out();
    EXPECT_THAT(worker.out(), HasSubstr("\nlost: "));
    expect_names(worker.out());
  }
  EXPECT_TRUE(job.proxy(place).has_happened());
}

INSTANTIATE_TEST_SUITE_P(Faults, DamagedLink,
                         ::testing::Values(testing::Fault::Kind::flip, testing::Fault::Kind::repeat,
                                           testing::Fault::Kind::lose, testing::Fault::Kind::cut,
                                           testing::Fault::Kind::delay,
                                           testing::Fault::Kind::swallow));

}  // namespace
}  // namespace cohort
