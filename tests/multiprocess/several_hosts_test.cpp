// SPDX-License-Identifier: Apache-2.0
// Processes that take themselves for those of two hosts, since half of them are in another user
// namespace.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "cohort/collective/process_groups.h"
#include "cohort/core/error.h"
#include "cohort/testing/worker_processes.h"

namespace cohort::collective {
namespace {

using namespace std::chrono_literals;

constexpr int kCannot = 77;  // this machine lets nobody make a namespace

void require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  ::_exit(1);
}

// Whether this process shares memory with another worker.
bool shares_memory() {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  return text.find("cohort-shared") != std::string::npos;
}

void expect_sum(Group& group, int task, const std::vector<int>& tasks) {
  double sum = 0;
  for (const int other : tasks) sum += other + 1;
  const at::Tensor mine = at::full({300'000}, task + 1.0);
  group.all_reduce(mine, ReduceOp::sum, Deadline::after(60s));
  require(at::equal(mine, at::full({300'000}, sum)), "a wrong sum");
}

// Makes a sum in the group of all workers. Then worker 3 ends, and the others go on.
void be_worker(const std::vector<WorkerTask>& tasks, int task) {
  ProcessGroups groups({.tasks = tasks, .self = task, .job = "several hosts"});
  Membership all = groups.form(Deadline::after(60s));
  require(all.tasks == std::vector{0, 1, 2, 3}, "not all workers");
  require(shares_memory(), "no memory is shared on the host of worker " + std::to_string(task));
  expect_sum(*all.group, task, all.tasks);
  if (task == 3) ::_exit(0);
  try {
    while (true) expect_sum(*all.group, task, all.tasks);
  } catch (const Error& error) {
    require(error.origin() == "worker:3", error.what());
  }
  all.group.reset();
  const Membership left = groups.form(Deadline::after(60s));
  require(left.tasks == std::vector{0, 1, 2}, "not the workers that are left");
  expect_sum(*left.group, task, left.tasks);
}

// Starts a process that calls this.
pid_t run(const std::function<void()>& body) {
  const pid_t process = ::fork();
  if (process == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      require(false, error.what());
    }
    ::_exit(0);
  }
  return process;
}

int status_of(pid_t process) {
  int status = 0;
  if (::waitpid(process, &status, 0) != process || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

// The workers of one host, in a process of their own.
void be_host(const std::vector<WorkerTask>& tasks, const std::vector<int>& here) {
  std::vector<pid_t> workers;
  for (const int task : here) workers.push_back(run([&] { be_worker(tasks, task); }));
  for (const pid_t worker : workers) require(status_of(worker) == 0, "a worker has failed");
}

TEST(SeveralHosts, ProcessesAddOnTheirHostFirst) {
  const std::vector<testing::BoundPort> ports(4);
  std::vector<WorkerTask> tasks;
  for (std::size_t i = 0; i < ports.size(); ++i)
    tasks.push_back({"worker:" + std::to_string(i), ports[i].address()});
  if (status_of(run([] { ::_exit(::unshare(CLONE_NEWUSER) == 0 ? 0 : kCannot); })) == kCannot)
    GTEST_SKIP() << "no user namespaces";
  const pid_t first = run([&] { be_host(tasks, {0, 1}); });
  const pid_t second = run([&] {
    require(::unshare(CLONE_NEWUSER) == 0, "no user namespace");
    // So that its workers may open each other's files in /proc, as those of one user may.
    ::prctl(PR_SET_DUMPABLE, 1);
    be_host(tasks, {2, 3});
  });
  EXPECT_EQ(status_of(first), 0);
  EXPECT_EQ(status_of(second), 0);
}

}  // namespace
}  // namespace cohort::collective
