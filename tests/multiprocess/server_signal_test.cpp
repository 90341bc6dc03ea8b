// SPDX-License-Identifier: Apache-2.0
// Signals to a server whose pipeline never produces an element. The pipeline cannot be stopped, but
// the process must end.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/testing/await_server.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/running_program.h"

namespace cohort {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr int kElements = 8;

Dataset endless_search(std::int64_t found) {
  return Dataset::range(std::int64_t{1} << 60).filter([found](at::Tensor x) {
    return x.lt(found);
  });
}

// With true, closures take the first elements, and a prefetch thread searches for the next one.
class ServerSignal : public testing::LeavesNoProcess, public ::testing::WithParamInterface<bool> {
 protected:
  ServerSignal() {
    iterator.emplace(coordinator
                         ->create_per_worker_dataset(
                             GetParam() ? endless_search(kElements).prefetch(1) : endless_search(0))
                         .iterator());
    // Draws elements on the worker.
    asking = std::thread([this] {
      try {
        Function take([](Iterator& it) { return Nest(it.next<at::Tensor>()); });
        for (int i = 0; i < kElements; ++i) coordinator->schedule(take, *iterator);
      } catch (const Error&) {  // the worker has ended
      }
    });
    await_work();
  }
  ~ServerSignal() override {
    worker.signal(SIGKILL);
    asking.join();
    coordinator.reset();
    cluster.kill("ps:0");
  }

  // Waits until the server has used half a second of CPU time: then it runs the pipeline.
  void await_work() {
    const Deadline deadline = Deadline::after(kPatience);
    const long start = ticks();
    const long some = ::sysconf(_SC_CLK_TCK) / 2;
    while (ticks() - start < some)
      ASSERT_FALSE(deadline.has_expired()) << "no element was asked for";
  }
  long ticks() const {
    std::ifstream file("/proc/" + std::to_string(worker.pid()) + "/stat");
    std::string text;
    std::getline(file, text);
    std::istringstream fields(text.substr(text.rfind(')') + 1));
    std::string skipped;
    for (int field = 3; field < 14; ++field) fields >> skipped;
    long used = 0;
    fields >> used;
    return used;
  }
  // Waits until the worker refuses calls because it shuts down.
  bool await_refusal() const { return testing::await_refusal(cluster.spec(), "worker:0"); }

  testing::TestCluster cluster{
      {.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server"}, .not_started = {"worker:0"}}};
  testing::RunningProgram worker{{COHORT_COMMAND, "server"},
                                 {{"TF_CONFIG", cluster.tf_config("worker:0")}}};
  // The timeout limits how long the coordinator waits for the lost worker.
  ParameterServerStrategy strategy{cluster.resolver(),
                                   {.cluster = {.timeout = std::chrono::seconds(15)}}};
  std::optional<ClusterCoordinator> coordinator{std::in_place, strategy};
  std::optional<PerWorkerIterator> iterator;
  std::thread asking;
};

// The shutdown waited for the pipeline, which never ends.
TEST_P(ServerSignal, OneEndsTheServerWhateverRuns) {
  worker.signal(SIGTERM);
  EXPECT_EQ(worker.wait().to_string(), "exit code 0");
}

// The second signal was ignored.
TEST_P(ServerSignal, ASecondOneEndsItAtOnce) {
  worker.signal(SIGTERM);
  ASSERT_TRUE(await_refusal());
  worker.signal(SIGTERM);
  const cli::ProcessExit exit = worker.wait();
  // If only a prefetch thread is busy, the server may have ended before the second signal.
  EXPECT_TRUE(exit.signal == SIGTERM || (GetParam() && exit.code == 0)) << exit.to_string();
}

INSTANTIATE_TEST_SUITE_P(Of, ServerSignal, ::testing::Bool(), [](const auto& is_ahead) {
  return is_ahead.param ? "AThreadOfThePipeline" : "ARequest";
});

}  // namespace
}  // namespace cohort
