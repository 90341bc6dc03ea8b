// SPDX-License-Identifier: Apache-2.0
// Workers end, start again and hang at random; the others go on together.
#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cohort/collective/process_groups.h"
#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/warnings.h"
#include "cohort/testing/worker_processes.h"

namespace cohort::collective {
namespace {

using namespace std::chrono_literals;
using testing::TestSeed;
using testing::Warnings;
using testing::WorkerProcesses;

constexpr int kWorkers = 4;

int num_entries(const std::string& folder) {
  int count = 0;
  DIR* const opened = ::opendir(folder.c_str());
  while (::readdir(opened) != nullptr) ++count;
  ::closedir(opened);
  return count;
}

// Forms groups until all of `running` are in one, as a program does that trains until a call fails.
// A group without a worker that came too late ends, so that the worker gets in.
void train(ProcessGroups& groups, int task, const std::set<int>& running, Deadline deadline) {
  while (!deadline.has_expired()) {
    const Membership membership = groups.form(deadline);
    const std::set<int> tasks(membership.tasks.begin(), membership.tasks.end());
    if (tasks != running) continue;
    try {
      const auto all = membership.group->exchange({static_cast<std::byte>(task)}, "a byte",
                                                  Deadline::after(20s));
      std::vector<Bytes> expected;
      for (const int other : running) expected.push_back({static_cast<std::byte>(other)});
      EXPECT_EQ(all, expected);
      return;
    } catch (const Error& error) {
      // Another member has formed a group again, because this one was new to it.
      EXPECT_TRUE(error.code() == ErrorCode::unavailable || error.code() == ErrorCode::aborted)
          << error.what();
    }
  }
  ADD_FAILURE() << task << " has found no group";
}

// Calls train() on all of these.
void train_all(WorkerProcesses& workers, const std::set<int>& running, std::mt19937& random,
               Duration timeout = 40s) {
  std::vector<std::thread> threads;
  const Deadline deadline = Deadline::after(timeout);
  std::vector<int> order(running.begin(), running.end());
  std::shuffle(order.begin(), order.end(), random);
  for (const int task : order) {
    threads.emplace_back([&, task] {
      try {
        train(workers[task], task, running, deadline);
      } catch (const Error& error) {
        ADD_FAILURE() << task << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ProcessGroupLosses, AllThatRunFindAGroup) {
  const TestSeed seed;
  std::mt19937 random(seed.value());
  const Warnings warnings;
  for (int schedule = 0; schedule < 20 && !HasFailure(); ++schedule) {
    WorkerProcesses workers(kWorkers);
    workers.start_all();
    std::set<int> running{0, 1, 2, 3};
    train_all(workers, running, random);
    for (int round = 0; round < 3 && !HasFailure(); ++round) {
      std::string what = "schedule " + std::to_string(schedule) + ":";
      const int survivor = *std::next(running.begin(), random() % running.size());
      for (int task = 0; task < kWorkers; ++task) {
        if (task == survivor || random() % 2 == 0) continue;
        const bool is_running = running.erase(task) == 1;
        if (is_running) workers.end(task);
        what += (is_running ? " end " : " start ") + std::to_string(task);
        if (is_running && random() % 2 == 0) continue;
        workers.start(task);
        running.insert(task);
      }
      SCOPED_TRACE(what);
      train_all(workers, running, random);
    }
  }
}

// The kernel accepts connections for a process that has stopped. No member has missed it, so the
// others go on shortly before the deadline.
TEST(ProcessGroupLosses, GoOnWithoutAProcessThatStopped) {
  WorkerProcesses workers(3);
  workers.start_all();
  std::mt19937 random(1);
  train_all(workers, {0, 1, 2}, random);
  workers.end(0);
  const FileDescriptor silent = testing::silent_listener(workers.address(0));
  const Warnings warnings;
  train_all(workers, {1, 2}, random, 4s);
}

TEST(ProcessGroupLosses, LeaveNoThreadsAndDescriptors) {
  const int descriptors = num_entries("/proc/self/fd");
  const int threads = num_entries("/proc/self/task");
  {
    WorkerProcesses workers(3);
    workers.start_all();
    std::mt19937 random(1);
    train_all(workers, {0, 1, 2}, random);
    workers.end(1);
    train_all(workers, {0, 2}, random);
  }
  EXPECT_EQ(num_entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(num_entries("/proc/self/task"), threads);
}

}  // namespace
}  // namespace cohort::collective
