// SPDX-License-Identifier: Apache-2.0
// Clusters of version 1 whose tasks are killed, or stopped for a time, and start again. All of that
// follows the progress of the job, so that it hits tasks that train, also on a busy machine.
// COHORT_TEST_ROUNDS=10 does so ten times for each role, and with every loss at one time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/testing/running_program.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/test_seed.h"

namespace cohort {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;
using Lines = std::vector<std::string>;
const std::string kDigits = COHORT_SOURCE_DIR "/examples/data/digits";
const Words kTraining = {"chief:0", "worker:0", "worker:1"};

int rounds_of_kills() {
  const char* const text = std::getenv("COHORT_TEST_ROUNDS");
  return text == nullptr ? 2 : std::atoi(text);
}

bool is_short() { return rounds_of_kills() <= 2; }

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The task of a launched process: the end of its TF_CONFIG.
std::optional<pid_t> pid_of(pid_t launcher, const std::string& task) {
  const std::size_t colon = task.find(':');
  const std::string own = R"("task":{"index":)" + task.substr(colon + 1) + R"(,"type":")" +
                          task.substr(0, colon) + "\"}";
  const std::string folder = "/proc/" + std::to_string(launcher);
  std::ifstream children(folder + "/task/" + std::to_string(launcher) + "/children");
  for (pid_t child = 0; children >> child;) {
    const std::string environment = content_of("/proc/" + std::to_string(child) + "/environ");
    if (environment.find(own) != std::string::npos) return child;
  }
  return std::nullopt;
}

class V1Loss : public testing::LeavesNoProcess {
 protected:
  // The output goes to files, which are read while the job runs.
  void launch(const Words& program) {
    Words command{"/bin/sh",
                  "-c",
                  "exec \"$@\" >\"$0/out\" 2>\"$0/err\"",
                  folder_.file(""),
                  COHORT_COMMAND,
                  "launch",
                  "--v1",
                  "--workers",
                  "2",
                  "--ps",
                  "2",
                  "--chief",
                  "--evaluator",
                  "--restart-delay",
                  "0.1",
                  "--restart",
                  "1000",
                  "--"};
    command.insert(command.end(), program.begin(), program.end());
    job_.emplace(std::move(command));
  }
  std::string err() const { return folder_.read("err"); }
  std::size_t random(std::size_t max) {
    return std::uniform_int_distribution<std::size_t>(0, max)(random_);
  }
  std::string random_one(const std::string& job) { return job + ":" + std::to_string(random(1)); }
  // Waits until this is so. Fails if the job ends before.
  bool await(const std::string& what, const std::function<bool()>& is_so) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(120));
    while (!is_so()) {
      const std::string launcher = content_of("/proc/" + std::to_string(job_->pid()) + "/stat");
      if (deadline.has_expired() || launcher.find(") Z") != launcher.npos) {
        ADD_FAILURE() << "waiting until " << what << "\n" << err();
        return false;
      }
      ::poll(nullptr, 0, 2);
    }
    return true;
  }
  void signal(const std::string& task, int number) {
    std::optional<pid_t> pid;
    await(task + " runs", [&] {
      pid = pid_of(job_->pid(), task);
      return pid.has_value();
    });
    if (pid) ::kill(*pid, number);
  }
  void kill(const std::string& task) { signal(task, SIGKILL); }
  // Every task ends with 0, or has started again until it did.
  void expect_good_end() { EXPECT_EQ(job_->wait().to_string(), "exit code 0") << err(); }

  const testing::TestSeed seed_;
  std::mt19937 random_{seed_.value()};
  const testing::TemporaryFolder folder_;
  std::optional<testing::RunningProgram> job_;
};

// --- counting ------------------------------------------------------------------------------------

using Pair = std::array<std::int64_t, 2>;

std::vector<std::int64_t> numbers_in(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::int64_t>(in), {}};
}

// The values that the chief has restored: the step, and the two numbers of each task that trains.
struct FallenBackTo {
  std::int64_t step = 0;
  std::map<std::string, Pair> numbers = {};
};

// Follows the numbers of a task through its lines.
class CountedSteps {
 public:
  explicit CountedSteps(std::string task, const std::vector<FallenBackTo>& restored)
      : task_(std::move(task)), restored_(restored) {}

  void take(const std::string& line) {
    if (line == "start") {
      // The step before it may have been sent and not confirmed.
      unconfirmed_ = {unconfirmed_[0] + 1, unconfirmed_[1] + 1};
      return;
    }
    const bool is_end = line.starts_with("end");
    const std::vector<std::int64_t> numbers = numbers_in(is_end ? line.substr(3) : line);
    ASSERT_EQ(numbers.size(), 2U) << task_ << ": " << line;
    const Pair now = {numbers[0], numbers[1]};
    if (follows(now, last_, is_end ? 0 : 1)) return accept(now, last_, is_end ? 0 : 1);
    // Several restores may have the same numbers of this task.
    std::vector<std::int64_t> steps;
    for (std::size_t i = next_; i < restored_.size(); ++i) {
      if (!follows(now, restored_[i].numbers.at(task_), is_end ? 0 : 1)) continue;
      if (steps.empty()) next_ = i + 1;
      steps.push_back(restored_[i].step);
    }
    if (!steps.empty()) {
      accept(now, restored_[next_ - 1].numbers.at(task_), is_end ? 0 : 1);
      return used_.push_back(std::move(steps));
    }
    FAIL() << task_ << " has " << now[0] << " and " << now[1] << " after " << last_[0] << " and "
           << last_[1] << ", from where no " << restored_.size() << " restores lead there";
  }
  const Pair& last() const { return last_; }
  // Each time that it has fallen back: the steps to which that may have been.
  const std::vector<std::vector<std::int64_t>>& used() const { return used_; }

 private:
  bool follows(const Pair& now, const Pair& before, std::int64_t steps) const {
    for (std::size_t i = 0; i < 2; ++i) {
      const std::int64_t added = now[i] - before[i];
      if (added < steps || added > steps + unconfirmed_[i]) return false;
    }
    return true;
  }
  void accept(const Pair& now, const Pair& before, std::int64_t steps) {
    for (std::size_t i = 0; i < 2; ++i) unconfirmed_[i] -= now[i] - before[i] - steps;
    last_ = now;
  }

  const std::string task_;
  const std::vector<FallenBackTo>& restored_;
  Pair last_{};
  Pair unconfirmed_{-1, -1};  // how many steps may count that were not confirmed
  std::size_t next_ = 0;
  std::vector<std::vector<std::int64_t>> used_;
};

class V1Counts : public V1Loss {
 protected:
  static constexpr std::int64_t kSaveEvery = 100;

  void start() { launch({V1_WORKER, folder_.file(""), std::to_string(kSaveEvery)}); }
  Lines lines(const std::string& file) const {
    Lines lines;
    std::istringstream in(folder_.read(file));
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  // How many steps were confirmed to this task since it has started again.
  std::size_t steps_since_start(const std::string& task) const {
    const Lines all = lines(task);
    return static_cast<std::size_t>(
        std::distance(all.rbegin(), std::find(all.rbegin(), all.rend(), "start")));
  }
  // Waits until the task has done something random since its last start; a server, until all that
  // train have.
  void await_progress(const std::string& task) {
    if (task.starts_with("evaluator")) {
      const std::size_t before = lines(task).size();
      await("the evaluator evaluates", [&] { return lines(task).size() > before; });
      return;
    }
    for (const std::string& one : task.starts_with("ps") ? kTraining : Words{task}) {
      const std::size_t before = lines(one).size();
      const std::size_t steps = 1 + random(150);
      await(one + " makes " + std::to_string(steps) + " steps",
            [&] { return lines(one).size() >= before + steps && steps_since_start(one) >= steps; });
    }
  }
  void kill_in_training(const std::string& task) {
    await_progress(task);
    kill(task);
  }
  std::size_t count_in_log(const std::string& text) const {
    const std::string log = err();
    std::size_t count = 0;
    for (std::size_t at = log.find(text); at != log.npos; at = log.find(text, at + 1)) ++count;
    return count;
  }
  // Kills a server, and waits until the chief begins to restore.
  void kill_and_await_restore(const std::string& server) {
    const std::size_t before = count_in_log("has lost its variables");
    kill_in_training(server);
    await("the chief restores", [&] { return count_in_log("has lost its variables") > before; });
  }
  void stop() {
    for (const std::string& task : kTraining) await_progress(task);
    folder_.write("stop", "");
    expect_good_end();
  }
  // After losses; the first start of the chief has nothing to restore.
  std::vector<FallenBackTo> restored() const {
    std::vector<FallenBackTo> all;
    for (const std::string& line : lines("restored")) {
      const std::vector<std::int64_t> numbers = numbers_in(line);
      if (numbers.size() != 7) continue;  // the chief was killed while it wrote
      FallenBackTo one{.step = numbers[0]};
      for (std::size_t i = 0; i < 3; ++i)
        one.numbers[kTraining[i]] = {numbers[1 + i], numbers[4 + i]};
      all.push_back(std::move(one));
    }
    if (!all.empty()) all.erase(all.begin());
    return all;
  }
  // Every step that was confirmed counts once, unless training has fallen back since.
  void expect_exact_counts(bool falls_back) {
    const std::vector<FallenBackTo> all = falls_back ? restored() : std::vector<FallenBackTo>();
    const std::string log = err();
    std::size_t fallbacks = 0;
    for (const std::string& task : kTraining) {
      CountedSteps steps(task, all);
      for (const std::string& line : lines(task)) ASSERT_NO_FATAL_FAILURE(steps.take(line)) << log;
      EXPECT_TRUE(lines(task).back().starts_with("end")) << task;
      fallbacks = std::max(fallbacks, steps.used().size());
      for (const std::vector<std::int64_t>& candidates : steps.used()) {
        EXPECT_TRUE(std::ranges::any_of(candidates,
                                        [&](std::int64_t step) {
                                          return log.find(" to step " + std::to_string(step) +
                                                          "\n") != log.npos;
                                        }))
            << task << " fell back to step " << candidates.front() << "\n"
            << log;
      }
    }
    std::printf("training fell back %zu times\n", fallbacks);
    expect_whole_checkpoints(static_cast<std::int64_t>(all.size()));
  }
  // A checkpoint has the steps that its number says, and perhaps some that were made meanwhile;
  // fewer only by those that were between two servers when it was saved, or one before it.
  void expect_whole_checkpoints(std::int64_t restores) const {
    const Lines evaluated = lines("evaluator:0");
    ASSERT_FALSE(evaluated.empty());
    for (const std::string& line : evaluated) {
      const std::vector<std::int64_t> numbers = numbers_in(line);
      ASSERT_EQ(numbers.size(), 7U) << line;
      for (const std::size_t variable : {1, 4}) {
        const std::int64_t steps =
            numbers[variable] + numbers[variable + 1] + numbers[variable + 2];
        EXPECT_GE(steps, numbers[0] - 3 * (restores + 1)) << line;
      }
    }
    EXPECT_EQ(numbers_in(evaluated.back())[0], std::stoll(folder_.read("last")));
  }
};

// A task that stands still loses nothing either.
TEST_F(V1Counts, StepsCountExactlyUnlessAServerIsLost) {
  std::vector<std::function<void()>> events;
  const auto stand_still = [&](const std::string& task) {
    await_progress(task);
    signal(task, SIGSTOP);
    ::poll(nullptr, 0, is_short() ? 400 : 5000);
    signal(task, SIGCONT);
  };
  for (int i = 0; i < rounds_of_kills(); ++i) {
    for (const std::string& task :
         {std::string("chief:0"), random_one("worker"), std::string("evaluator:0")})
      events.emplace_back([=, this] { kill_in_training(task); });
    for (const std::string& task : {random_one("ps"), random_one("worker"), std::string("chief:0")})
      if (!is_short() || random(3) == 0) events.emplace_back([=] { stand_still(task); });
  }
  std::ranges::shuffle(events, random_);
  start();
  for (const auto& event : events) event();
  stop();
  expect_exact_counts(/*falls_back=*/false);
}

TEST_F(V1Counts, TrainingGoesOnFromACheckpointUnderKillsOfEveryRole) {
  Words victims;
  for (int i = 0; i < rounds_of_kills(); ++i) {
    victims.push_back(random_one("ps"));
    if (i % 2 == 0) victims.insert(victims.end(), {"chief:0", random_one("worker")});
  }
  std::ranges::shuffle(victims, random_);
  start();
  for (const std::string& task : victims) kill_in_training(task);
  stop();
  expect_exact_counts(/*falls_back=*/true);
}

// A loss during the recovery from another one, and of two tasks at once. The short form has two.
TEST_F(V1Counts, TrainingSurvivesLossesAtOneTime) {
  std::vector<std::pair<std::string, std::string>> pairs = {
      {"ps:0", "ps:1"}, {"chief:0", random_one("ps")}, {"worker:0", "worker:1"}};
  std::vector<std::function<void()>> losses;
  for (const auto& [first, second] : pairs) {
    losses.emplace_back([one = first, other = second, this] {
      kill_in_training(one);
      kill(other);
    });
  }
  for (const std::string other : {"chief:0", "ps:0"}) {
    losses.emplace_back([other, this] {
      kill_and_await_restore("ps:1");
      kill(other);
    });
  }
  start();
  for (int i = 0; i < rounds_of_kills(); ++i) {
    std::ranges::shuffle(losses, random_);
    for (std::size_t k = 0; k < (is_short() ? 1 : losses.size()); ++k) losses[k]();
  }
  stop();
  expect_exact_counts(/*falls_back=*/true);
}

// --- the example ---------------------------------------------------------------------------------

class V1Example : public V1Loss {
 protected:
  void train(const std::string& steps) {
    launch({MNIST_V1, "--data-dir", kDigits, "--run-dir", folder_.file("run"), "--steps", steps,
            "--save-every", "100"});
  }
  struct Evaluated {
    double accuracy = 0;
    std::int64_t step = -1;
  };
  std::vector<Evaluated> evaluated() const {
    const std::regex line("test accuracy ([0-9.]+) at step ([0-9]+)");
    const std::string out = folder_.read("out");
    std::vector<Evaluated> all;
    for (std::sregex_iterator each(out.begin(), out.end(), line), end; each != end; ++each)
      all.push_back({std::stod((*each)[1]), std::stoll((*each)[2])});
    return all;
  }
  std::int64_t latest_checkpoint() const {
    std::int64_t step = 0;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.file("run"), none)) {
      const std::string name = entry.path().filename();
      const bool is_step = name.starts_with("step-") && name.size() > 5 &&
                           name.find_first_not_of("0123456789", 5) == name.npos;
      if (is_step) step = std::max<std::int64_t>(step, std::stoll(name.substr(5)));
    }
    return step;
  }
  void expect_good_evaluations(std::int64_t steps, double accuracy) const {
    const std::vector<Evaluated> all = evaluated();
    ASSERT_GE(all.size(), 2U) << folder_.read("out") << err();
    EXPECT_GE(all.back().step, steps);
    EXPECT_GE(all.back().accuracy, accuracy) << folder_.read("out") << err();
  }
};

TEST_F(V1Example, ReachesItsAccuracyUnderKillsOfEveryRole) {
  Words victims;
  for (int i = 0; i < (rounds_of_kills() + 1) / 2; ++i) {
    victims.insert(victims.end(),
                   {random_one("ps"), "chief:0", random_one("worker"), "evaluator:0"});
  }
  std::ranges::shuffle(victims, random_);
  const std::int64_t steps = 300 * static_cast<std::int64_t>(victims.size()) + 1200;
  train(std::to_string(steps));
  std::int64_t wanted = 0;
  std::size_t kills = 0;
  for (const std::string& task : victims) {
    wanted += 1 + static_cast<std::int64_t>(random(150));
    await("there is a checkpoint of step " + std::to_string(wanted),
          [&] { return latest_checkpoint() >= wanted; });
    wanted = latest_checkpoint();
    // Who has ended with the chief cannot come back.
    if (wanted > steps - 800) break;
    kill(task);
    ++kills;
  }
  std::printf("%zu of %zu tasks were killed\n", kills, victims.size());
  expect_good_end();
  expect_good_evaluations(steps, 0.95);
}

TEST_F(V1Example, TrainsAsTheOthersDoAndEveryTaskEndsWith0) {
  train("800");
  expect_good_end();
  EXPECT_THAT(err(), Not(HasSubstr("[v1"))) << "warnings";
  EXPECT_THAT(err(), Not(HasSubstr("[launch]")));
  expect_good_evaluations(800, 0.9);
}

}  // namespace
}  // namespace cohort
