// SPDX-License-Identifier: Apache-2.0
// Steps that read the index of the worker that runs them. All servers are in this process, since
// the functions are registered here.
#include "cohort/function/inspection.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/function/registry.h"
#include "cohort/server/server.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

const bool kIsRegistered = [] {
  function::register_function("test.worker_index", [](std::vector<at::Tensor>) {
    return std::vector<at::Tensor>{current_worker_index()};
  });
  return true;
}();

class WorkerIndex : public ::testing::Test {
 protected:
  using Counts = std::array<std::int64_t, 2>;

  std::unique_ptr<Server> start(const char* job, int index) const {
    return std::make_unique<Server>(SimpleResolver(spec, {.task_type = job, .task_id = index}),
                                    ServerOptions{.handle_signals = false});
  }
  // Runs some closures, and counts them by the worker index that each returned.
  template <class... A>
  Counts run(const Function& step, const A&... arguments) {
    std::vector<RemoteValue> indices;
    for (int i = 0; i < 20; ++i) indices.push_back(coordinator.schedule(step, arguments...));
    coordinator.join();
    Counts counts{};
    for (const RemoteValue& index : indices)
      ++counts.at(static_cast<std::size_t>(index.fetch().tensor().item<std::int64_t>()));
    return counts;
  }
  // Expects the coordinator's counts.
  void expect_each_ran_its_own(const Counts& counts) {
    const std::vector<std::uint64_t> closures = coordinator.statistics().closures;
    for (std::size_t worker = 0; worker < counts.size(); ++worker) {
      EXPECT_GT(counts[worker], 0);
      EXPECT_EQ(counts[worker], static_cast<std::int64_t>(closures[worker]));
    }
  }
  static std::string address() { return "127.0.0.1:" + std::to_string(testing::free_port()); }

  const ClusterSpec spec{{{"worker", {address(), address()}}, {"ps", {address()}}}};
  const std::unique_ptr<Server> ps = start("ps", 0);
  const std::unique_ptr<Server> workers[2] = {start("worker", 0), start("worker", 1)};
  ParameterServerStrategy strategy{SimpleResolver(spec)};
  ClusterCoordinator coordinator{strategy};
};

TEST_F(WorkerIndex, OneProgramComputesWithItOnEveryWorker) {
  Variable steps = strategy.variable("steps", at::zeros({2}, at::kLong), {.is_trainable = false});
  const Function step([&] {
    const at::Tensor index = current_worker_index();
    steps.assign_add(at::arange(2).eq(index).to(at::kLong));
    return index;
  });
  const Counts counts = run(step);
  expect_each_ran_its_own(counts);
  EXPECT_EQ(coordinator.statistics().traces, 1U);
  EXPECT_EQ(steps.read()[0].item<std::int64_t>(), counts[0]);
  EXPECT_EQ(steps.read()[1].item<std::int64_t>(), counts[1]);
}

TEST_F(WorkerIndex, ItGoesWithDrawsAndLaterTraces) {
  const auto data = coordinator.create_per_worker_dataset(Dataset::range(7).batch(4).repeat());
  const PerWorkerIterator iterator = data.iterator();
  const Function step([](Iterator& it) {
    const at::Tensor index = current_worker_index();
    return it.next<at::Tensor>().mul(0).sum().add(index);
  });
  expect_each_ran_its_own(run(step, iterator));
  EXPECT_EQ(coordinator.statistics().traces, 2U) << "of a whole batch and of a short one";
}

TEST_F(WorkerIndex, ARegisteredFunctionKnowsIt) {
  ASSERT_TRUE(kIsRegistered);
  expect_each_ran_its_own(run(Function::registered("test.worker_index")));
}

// Each of the two passes of a trace has another worker index, so freezing it is detected.
TEST_F(WorkerIndex, AProgramThatWouldFreezeItIsRefused) {
  const Function step(
      [] { return at::zeros({}).add(*current_worker_index().data_ptr<std::int64_t>()); });
  EXPECT_THAT([&] { coordinator.schedule(step); },
              testing::throws_error(ErrorCode::invalid_argument, "is not the same for other"));
}

}  // namespace
}  // namespace cohort
