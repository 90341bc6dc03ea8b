// SPDX-License-Identifier: Apache-2.0
// A coordinator is stopped while another one replaces it, and continued while the second one
// trains.
//
// COHORT_TEST_ROUNDS sets the number of rounds. Each takes as long as a server waits for an answer
// of the first coordinator.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <thread>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/rpc/control.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/running_program.h"
#include "cohort/testing/test_seed.h"

namespace cohort {
namespace {

using ::testing::AnyOf;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr int kEndedAsReplaced = 3;
constexpr int kEndedAsSecond = 4;  // another coordinator holds the place
constexpr double kFirst = 1e6;     // factor and data of the first coordinator's functions

// The first coordinator, a program that the tests start. It creates functions, iterators and
// updates as fast as it can, with the same ids as its successor.
TEST(FirstCoordinator, DISABLED_Trains) {
  try {
    ParameterServerStrategy strategy{TfConfigResolver()};
    ClusterCoordinator coordinator(strategy);
    Variable sum = strategy.variable("sum", at::zeros({}, at::kDouble));
    while (true) {
      auto data = coordinator.create_per_worker_dataset(
          Dataset::from_tensors(at::full({}, kFirst, at::kDouble)).repeat());
      const PerWorkerIterator iterator = data.iterator();
      const Function step([&](Iterator& it) {
        const at::Tensor x = it.next<at::Tensor>();
        sum.assign_add(x.mul(kFirst));
        return x;
      });
      for (int i = 0; i < 20; ++i) coordinator.schedule(step, iterator);
      coordinator.join();
      std::cout << "trains" << std::endl;
    }
  } catch (const Error& error) {
    std::cerr << error.what() << std::endl;
    const int other = error.code() == ErrorCode::aborted ? kEndedAsSecond : 1;
    std::_Exit(rpc::is_replaced(error) ? kEndedAsReplaced : other);
  }
}

class TwoCoordinators : public testing::LeavesNoProcess {
 protected:
  explicit TwoCoordinators(int workers = 2)
      : cluster({.workers = workers, .ps = 1, .command = {COHORT_COMMAND, "server"}}) {}

  static int rounds() {
    const char* text = std::getenv("COHORT_TEST_ROUNDS");
    return text == nullptr ? 2 : std::atoi(text);
  }
  // Calls `body` once per round, with a first coordinator that trains.
  template <class Body>
  void in_rounds(const Body& body) {
    const int count = rounds();
    ASSERT_GT(count, 0);
    for (int round = 0; round < count && !HasFailure(); ++round) {
      SCOPED_TRACE("round " + std::to_string(round));
      const auto first = start_first();
      ASSERT_TRUE(first->await("trains")) << first->err();
      body(*first);
    }
  }
  std::unique_ptr<testing::RunningProgram> start_first() const {
    return std::make_unique<testing::RunningProgram>(
        std::vector<std::string>{"/proc/self/exe", "--gtest_filter=FirstCoordinator.*",
                                 "--gtest_also_run_disabled_tests"},
        std::vector<std::pair<std::string, std::string>>{
            {"TF_CONFIG", cluster.tf_config("chief:0")}});
  }
  static void stop(testing::RunningProgram& program) {
    program.signal(SIGSTOP);
    siginfo_t change{};
    while (::waitid(P_PID, static_cast<id_t>(program.pid()), &change,
                    WSTOPPED | WEXITED | WNOWAIT) != 0 &&
           errno == EINTR) {
    }
  }
  // The second coordinator. Its functions add 1, 2, 3 …, so the sum reveals any other update.
  struct Second {
    explicit Second(const SimpleResolver& resolver) : strategy(resolver), coordinator(strategy) {}

    void train(int count) {
      auto data = coordinator.create_per_worker_dataset(
          Dataset::from_tensors(at::full({}, 1.0, at::kDouble)).repeat());
      const PerWorkerIterator iterator = data.iterator();
      const double factor = ++functions;
      const Function step([&, factor](Iterator& it) {
        const at::Tensor x = it.next<at::Tensor>();
        sum.assign_add(x.mul(factor));
        return x.mul(factor);
      });
      std::vector<RemoteValue> results;
      for (int i = 0; i < count; ++i) results.push_back(coordinator.schedule(step, iterator));
      coordinator.join();
      expected += count * factor;
      for (const RemoteValue& result : results)
        ASSERT_EQ(result.fetch().tensor().item<double>(), factor);
    }
    double value() { return sum.read().item<double>(); }

    ParameterServerStrategy strategy;
    ClusterCoordinator coordinator;
    Variable sum = strategy.variable("sum", at::zeros({}, at::kDouble));
    int functions = 0;
    double expected = 0;
  };

  // Expects that the first coordinator ends with "another coordinator took its place", and that the
  // second one is unaffected.
  static void expect_gives_way(testing::RunningProgram& first, Second& second) {
    EXPECT_EQ(first.wait().to_string(), "exit code 3") << first.err();
    EXPECT_NE(first.err().find("another coordinator took its place"), std::string::npos)
        << first.err();
    second.train(10);
    EXPECT_EQ(second.value(), second.expected);
  }

  // Expects that one of the two has ended for the sake of the other, which trains.
  void expect_one_goes_on(testing::RunningProgram& one, testing::RunningProgram& other) {
    const bool has_one = one.await("trains");
    testing::RunningProgram& ended = has_one ? other : one;
    testing::RunningProgram& lasting = has_one ? one : other;
    EXPECT_THAT(ended.wait().code, AnyOf(kEndedAsReplaced, kEndedAsSecond)) << ended.err();
    EXPECT_TRUE(lasting.await("trains")) << "both ended:\n" << ended.err() << lasting.err();
    const auto closures = [&] { return cluster.health("worker:0").closures_run; };
    const std::uint64_t before = closures();
    const Deadline deadline = Deadline::after(kPatience);
    while (closures() <= before && !deadline.has_expired()) {
    }
    EXPECT_GT(closures(), before) << "both ended:\n" << ended.err() << lasting.err();
  }

  testing::TestCluster cluster;
};

// In two of eighteen tries each displaced the other at one of the tasks, and both ended.
TEST_F(TwoCoordinators, OfTwoThatStartTogetherOneGoesOn) {
  const int count = 2 * rounds();
  for (int round = 0; round < count && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const auto one = start_first();
    const auto other = start_first();
    expect_one_goes_on(*one, *other);
  }
}

// In one of fourteen tries its functions and iterators replaced those of its successor, and changed
// the successor's variables.
TEST_F(TwoCoordinators, AContinuedCoordinatorChangesNothingOfItsSuccessors) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  in_rounds([&](testing::RunningProgram& first) {
    const Deadline any_moment = Deadline::after(std::chrono::milliseconds(random() % 100));
    while (!any_moment.has_expired()) std::this_thread::yield();
    stop(first);
    Second second(cluster.resolver());
    const int before = static_cast<int>(random() % 20);
    for (int i = 0; i < before; ++i) second.train(10);
    first.signal(SIGCONT);
    for (int i = 0; i < 30; ++i) second.train(10);
    expect_gives_way(first, second);
  });
}

// With one worker, the first coordinator calls that worker first after it is continued.
class TwoCoordinatorsOfAWorker : public TwoCoordinators {
 protected:
  TwoCoordinatorsOfAWorker() : TwoCoordinators(1) {}
};

// Both coordinators reconnect to the worker, in any order. The successor ended if it was the second
// to reconnect.
TEST_F(TwoCoordinatorsOfAWorker, AContinuedCoordinatorDoesNotKeepARestartedTask) {
  in_rounds([&](testing::RunningProgram& first) {
    stop(first);
    Second second(cluster.resolver());
    second.train(10);
    cluster.kill("worker:0");
    first.signal(SIGCONT);
    cluster.restart("worker:0");
    for (int i = 0; i < 10; ++i) second.train(10);
    expect_gives_way(first, second);
  });
}

}  // namespace
}  // namespace cohort
