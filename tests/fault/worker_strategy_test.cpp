// SPDX-License-Identifier: Apache-2.0
// Three processes train together, and one of them is killed or stopped at a random step. The others
// name it, form a new group and end with the weights of one process. Or a connection between them
// is damaged, and all of them end with those weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cohort/rpc/detail/reserved_port.h"
#include "cohort/testing/faulty_proxy.h"
#include "cohort/testing/running_program.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/worker_config.h"
#include "cohort/testing/worker_processes.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunningProgram;

constexpr int kWorkers = 3;
constexpr int kSteps = 300;

enum class Way : std::uint8_t { direct, through_proxies };

// The workers of one job, which are the processes of a list.
class Job {
 public:
  struct Options {
    int steps = kSteps;
    int rebuild_every = 1'000'000;
    int workers = kWorkers;
    Way way = Way::direct;
    int forking = -1;          // the worker that has a child process
    std::string save_to = {};  // workers save in this file
    int signalled = -1;        // the worker that gets a signal when it saves or rebuilds
    int signal = 0;
    std::string signal_when = "SIGNAL_AT_SAVE";
  };
  explicit Job(std::string backend) : Job(std::move(backend), Options()) {}
  Job(std::string backend, Options options)
      : arguments_{TRAINING_WORKER, std::to_string(options.steps), "3000", std::move(backend),
                   std::to_string(options.rebuild_every)},
        options_(std::move(options)),
        ports_(static_cast<std::size_t>(options_.workers)) {
    addresses_ = testing::loopback_addresses(ports_);
    for (int i = 0; i < options_.workers && options_.way == Way::through_proxies; ++i) {
      std::string& address = addresses_[static_cast<std::size_t>(i)];
      proxies_.push_back(std::make_unique<testing::FaultyProxy>());
      proxies_.back()->set_target(address);
      address = proxies_.back()->address();
    }
    for (int i = 0; i < options_.workers; ++i) workers_.push_back(start(i));
  }
  // Before this worker.
  testing::FaultyProxy& proxy(int i) { return *proxies_[static_cast<std::size_t>(i)]; }
  RunningProgram& worker(int i) { return *workers_[static_cast<std::size_t>(i)]; }
  void restart(int i) { workers_[static_cast<std::size_t>(i)] = start(i); }

 private:
  std::unique_ptr<RunningProgram> start(int i) {
    std::vector<std::pair<std::string, std::string>> environment = {
        {"TF_CONFIG", testing::tf_config_of(addresses_, i)}, {"OMP_NUM_THREADS", "1"}};
    if (!proxies_.empty()) {
      const rpc::ReservedPort& own = ports_[static_cast<std::size_t>(i)];
      environment.emplace_back("LISTEN_AT", std::to_string(own.number()));
    }
    if (!options_.save_to.empty()) environment.emplace_back("SAVE_TO", options_.save_to);
    if (i == options_.signalled)
      environment.emplace_back(options_.signal_when, std::to_string(options_.signal));
    std::vector<std::string> words = arguments_;
    if (i == options_.forking) words.push_back("fork");
    return std::make_unique<RunningProgram>(words, environment);
  }

  const std::vector<std::string> arguments_;
  const Options options_;
  std::vector<rpc::ReservedPort> ports_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<testing::FaultyProxy>> proxies_;
  std::vector<std::unique_ptr<RunningProgram>> workers_;
};

// The number at the end of the line that begins so.
double number_after(const std::string& text, const std::string& words) {
  const std::size_t at = text.rfind(words);
  return at == std::string::npos ? -1 : std::atof(text.c_str() + at + words.size());
}

class LostWorker : public testing::LeavesNoProcess,
                   public ::testing::WithParamInterface<std::string> {
 protected:
  // A third of the victims is the chief.
  struct Loss {
    int victim = 0;
    int step = 1;
  };
  const testing::TestSeed seed_;

  Loss random_loss() {
    std::mt19937 random(static_cast<unsigned>(seed_.value()));
    return {.victim = static_cast<int>(random() % kWorkers),
            .step = 1 + static_cast<int>(random() % (kSteps - 100))};
  }
  void expect_survivors(Job& job, const Loss& loss) {
    const std::string victim = "worker:" + std::to_string(loss.victim);
    for (int i = 0; i < kWorkers; ++i) {
      if (i == loss.victim) continue;
      RunningProgram& worker = job.worker(i);
      EXPECT_EQ(worker.wait().to_string(), "exit code 0") << worker.err();
      const std::size_t lost = worker.out().find("lost: ");
      ASSERT_NE(lost, std::string::npos) << worker.out();
      const std::string line = worker.out().substr(lost, worker.out().find('\n', lost) - lost);
      EXPECT_THAT(line, HasSubstr(victim));
      EXPECT_THAT(worker.out(), HasSubstr(" of 2 at step "));
      const double distance = number_after(worker.out(), "ends with distance ");
      EXPECT_EQ(distance, 0) << worker.out();
    }
  }
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

class LostInRebuild : public LostWorker {};

// Regression: it had not heard of the group that was formed without it, found that the others had
// ended, and trained alone over what they had saved.
TEST_P(LostInRebuild, IsStoppedAndChangesNothingWhenTheOthersHaveEnded) {
  const testing::TemporaryFolder folder;
  const std::string file = folder.file("values");
  Job job(GetParam(),
          {.save_to = file, .signalled = 1, .signal = SIGSTOP, .signal_when = "SIGNAL_AT_REBUILD"});
  ASSERT_TRUE(job.worker(2).await("step 150\n")) << job.worker(2).err();
  job.worker(2).signal(SIGKILL);
  EXPECT_EQ(job.worker(0).wait().to_string(), "exit code 0") << job.worker(0).err();
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
    Job job(
        GetParam(),
        {.save_to = file, .signalled = stop.victim, .signal = SIGSTOP, .signal_when = stop.when});
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
                       .signal_when = "SIGNAL_AT_SAVE"});
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
                       .signal_when = "SIGNAL_AT_RENAME"});
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

INSTANTIATE_TEST_SUITE_P(Backends, LostInRebuild, ::testing::Values("shared_memory", "tcp"));
INSTANTIATE_TEST_SUITE_P(Backends, LostInASave, ::testing::Values("shared_memory", "tcp"));
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
