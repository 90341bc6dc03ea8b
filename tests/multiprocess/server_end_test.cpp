// SPDX-License-Identifier: Apache-2.0
// Shutdown of a worker: running closures are finished and reported first. The servers are in this
// process, so that a test can hold a closure.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/function/registry.h"
#include "cohort/server/server.h"
#include "cohort/testing/await_server.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace cohort {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

// Blocks closures until open() is called. Thread-safe.
class Gate {
 public:
  void pass() {
    const Lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(mutex_, Deadline::after(kPatience),
                  [this]() COHORT_REQUIRES(mutex_) { return is_open_; });
  }
  bool await_arrivals(int count) {
    const Lock lock(mutex_);
    return changed_.wait(mutex_, Deadline::after(kPatience),
                         [&]() COHORT_REQUIRES(mutex_) { return arrived_ >= count; });
  }
  void open() {
    const Lock lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  int arrived() {
    const Lock lock(mutex_);
    return arrived_;
  }

 private:
  Mutex mutex_;
  Condition changed_;
  int arrived_ COHORT_GUARDED_BY(mutex_) = 0;
  bool is_open_ COHORT_GUARDED_BY(mutex_) = false;
};

// Each test has a new gate, since the registered function stays for the whole process, and a
// closure of an earlier test may still wait in its gate.
std::shared_ptr<Gate> current_gate;

const bool kIsRegistered = [] {
  function::register_function("test.held", [](std::vector<at::Tensor>) {
    const std::shared_ptr<Gate> gate = current_gate;
    gate->pass();
    return std::vector<at::Tensor>{at::ones({})};
  });
  return true;
}();

class ServerEnd : public ::testing::Test {
 protected:
  ServerEnd()
      : spec({{"worker", {local_address()}}, {"ps", {local_address()}}}),
        ps(start("ps")),
        worker(start("worker")),
        strategy(SimpleResolver(spec)),
        coordinator(strategy) {
    current_gate = held_in;
  }
  ~ServerEnd() override { gate.open(); }

  static std::string local_address() { return "127.0.0.1:" + std::to_string(testing::free_port()); }
  std::unique_ptr<Server> start(const char* job) const {
    return std::make_unique<Server>(SimpleResolver(spec, {.task_type = job, .task_id = 0}),
                                    ServerOptions{.handle_signals = false});
  }
  // Starts a server at the same address, once the previous one has released it.
  std::unique_ptr<Server> start_again(const char* job) const {
    const Deadline deadline = Deadline::after(kPatience);
    while (true) {
      try {
        return start(job);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::resource_exhausted || deadline.has_expired()) throw;
      }
    }
  }
  // Waits until the worker refuses control calls because it shuts down.
  bool await_refusal() const { return testing::await_refusal(spec, "worker:0"); }

  const std::shared_ptr<Gate> held_in = std::make_shared<Gate>();
  Gate& gate = *held_in;
  const ClusterSpec spec;
  std::unique_ptr<Server> ps, worker;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
  const Function held = Function::registered("test.held");
};

TEST_F(ServerEnd, AClosureThatRunsIsFinishedAndReported) {
  ASSERT_TRUE(kIsRegistered);
  const RemoteValue result = coordinator.schedule(held);
  ASSERT_TRUE(gate.await_arrivals(1));
  worker->shutdown(kPatience);
  std::thread end([&] {
    EXPECT_EQ(worker->join(), 0);
    EXPECT_TRUE(worker->stop()) << "nothing is left behind";
    worker.reset();
  });
  EXPECT_TRUE(await_refusal());
  gate.open();
  end.join();
  EXPECT_TRUE(coordinator.join(kPatience));
  ASSERT_TRUE(result.is_ready()) << "the worker has gone: nobody else can have ended it";
  EXPECT_EQ(result.fetch().tensor().item<float>(), 1);
  EXPECT_EQ(gate.arrived(), 1);
}

TEST_F(ServerEnd, ClosuresThatHaveNotStartedGoToTheNextWorker) {
  for (int i = 0; i < 4; ++i) coordinator.schedule(held);
  ASSERT_TRUE(gate.await_arrivals(1));
  worker->shutdown(kPatience);
  std::thread end([&] { worker.reset(); });
  EXPECT_TRUE(await_refusal());
  gate.open();
  end.join();
  EXPECT_EQ(gate.arrived(), 1);
  worker = start_again("worker");
  EXPECT_TRUE(coordinator.join(kPatience));
  EXPECT_EQ(gate.arrived(), 4) << "each ran once";
}

// The server waited for the closure, even for one that never ends.
TEST_F(ServerEnd, AClosureThatOutlivesTheGraceIsLeftBehind) {
  coordinator.schedule(held);
  ASSERT_TRUE(gate.await_arrivals(1));
  worker->shutdown(std::chrono::milliseconds(10));
  EXPECT_FALSE(worker->stop());
  worker.reset();
  worker = start_again("worker");
  ASSERT_TRUE(gate.await_arrivals(2)) << "the closure was not taken back";
  gate.open();
  EXPECT_TRUE(coordinator.join(kPatience));
  EXPECT_EQ(coordinator.statistics().retries, 1U);
}

}  // namespace
}  // namespace cohort
