// SPDX-License-Identifier: Apache-2.0
// The processes of training_worker, as the workers of one job.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/rpc/reserved_port.h"
#include "cohort/testing/faulty_proxy.h"
#include "cohort/testing/running_program.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/worker_config.h"

namespace cohort::testing {

inline constexpr int kWorkers = 3;
inline constexpr int kSteps = 300;

enum class Way : std::uint8_t { direct, through_proxies };

// The workers of one job, which are the processes of a list.
class TrainingJob {
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
    int rebuild_seconds = 20;     // how long a rebuild() waits for a worker that is stopped
    bool stops_together = false;  // after a signal at one of them, all save and end
  };
  // `program`: the file of training_worker.
  TrainingJob(std::string program, std::string backend, Options options)
      : arguments_{std::move(program), std::to_string(options.steps), "3000", std::move(backend),
                   std::to_string(options.rebuild_every)},
        options_(std::move(options)),
        ports_(static_cast<std::size_t>(options_.workers)) {
    addresses_ = loopback_addresses(ports_);
    for (int i = 0; i < options_.workers && options_.way == Way::through_proxies; ++i) {
      std::string& address = addresses_[static_cast<std::size_t>(i)];
      proxies_.push_back(std::make_unique<FaultyProxy>());
      proxies_.back()->set_target(address);
      address = proxies_.back()->address();
    }
    for (int i = 0; i < options_.workers; ++i) workers_.push_back(start(i));
  }
  // Before this worker.
  FaultyProxy& proxy(int i) { return *proxies_[static_cast<std::size_t>(i)]; }
  RunningProgram& worker(int i) { return *workers_[static_cast<std::size_t>(i)]; }
  void restart(int i) { workers_[static_cast<std::size_t>(i)] = start(i); }

 private:
  std::unique_ptr<RunningProgram> start(int i) {
    std::vector<std::pair<std::string, std::string>> environment = {
        {"TF_CONFIG", tf_config_of(addresses_, i)}, {"OMP_NUM_THREADS", "1"}};
    if (!proxies_.empty()) {
      const rpc::ReservedPort& own = ports_[static_cast<std::size_t>(i)];
      environment.emplace_back("LISTEN_AT", std::to_string(own.number()));
    }
    environment.emplace_back("REBUILD_SECONDS", std::to_string(options_.rebuild_seconds));
    if (!options_.save_to.empty()) environment.emplace_back("SAVE_TO", options_.save_to);
    if (options_.stops_together) environment.emplace_back("STOPS_TOGETHER", "1");
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
  std::vector<std::unique_ptr<FaultyProxy>> proxies_;
  std::vector<std::unique_ptr<RunningProgram>> workers_;
};

// The number at the end of the line that begins so.
inline double number_after(const std::string& text, const std::string& words) {
  const std::size_t at = text.rfind(words);
  return at == std::string::npos ? -1 : std::atof(text.c_str() + at + words.size());
}

class LostWorker : public LeavesNoProcess, public ::testing::WithParamInterface<std::string> {
 protected:
  // A third of the victims is the chief.
  struct Loss {
    int victim = 0;
    int step = 1;
  };
  const TestSeed seed_;

  Loss random_loss() {
    std::mt19937 random(static_cast<unsigned>(seed_.value()));
    return {.victim = static_cast<int>(random() % kWorkers),
            .step = 1 + static_cast<int>(random() % (kSteps - 100))};
  }
  void expect_survivors(TrainingJob& job, const Loss& loss) {
    const std::string victim = "worker:" + std::to_string(loss.victim);
    for (int i = 0; i < kWorkers; ++i) {
      if (i == loss.victim) continue;
      RunningProgram& worker = job.worker(i);
      EXPECT_EQ(worker.wait().to_string(), "exit code 0") << worker.err();
      const std::size_t lost = worker.out().find("lost: ");
      ASSERT_NE(lost, std::string::npos) << worker.out();
      const std::string line = worker.out().substr(lost, worker.out().find('\n', lost) - lost);
      EXPECT_THAT(line, ::testing::HasSubstr(victim));
      EXPECT_THAT(worker.out(), ::testing::HasSubstr(" of 2 at step "));
      const double distance = number_after(worker.out(), "ends with distance ");
      EXPECT_EQ(distance, 0) << worker.out();
    }
  }
};

}  // namespace cohort::testing
