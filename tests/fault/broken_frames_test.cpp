// SPDX-License-Identifier: Apache-2.0
// Frames between real tasks that are corrupted, repeated, lost or delayed.
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/rpc/channel.h"
#include "cohort/rpc/messages.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/proxied_task.h"
#include "cohort/testing/test_seed.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::Fault;
using testing::ProxiedTask;
using testing::TestCluster;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr const char* kJob = "broken_frames";
constexpr std::int64_t kWeights = 6000;
constexpr std::int64_t kRows = 900;
constexpr std::int64_t kShards = 3;
constexpr int kClosures = 8;  // per round
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kFlips = 200;
#else
constexpr int kFlips = 1000;
#endif

int number_of_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// Two workers and two parameter servers, each behind a proxy, and a step whose frames have all
// parts in both directions. Tensors have checksums because of the proxies, although all is on one
// host.
class BrokenFramesTest : public ::testing::Test {
 protected:
  void start(const std::string& backend, Duration data_timeout = kPatience) {
    random.seed(seed.value());
    std::map<std::string, std::string> proxies;
    for (const char* task : {"worker:0", "worker:1", "ps:0", "ps:1"}) {
      tasks.push_back(std::make_unique<ProxiedTask>(task));
      proxies[task] = tasks.back()->address();
    }
    cluster = std::make_unique<TestCluster>(testing::TestClusterOptions{
        .workers = 2,
        .ps = 2,
        .command = {COHORT_COMMAND, "server", "--job-id", kJob, "--backend", backend},
        .proxies = std::move(proxies)});
    for (const auto& task : tasks) {
      const TaskId id = TaskId::parse(task->task());
      task->set_target(cluster->spec().task_address(id.job, id.index));
    }
    strategy = std::make_unique<ParameterServerStrategy>(
        cluster->resolver(),
        ParameterServerOptions{.cluster = {.data_timeout = data_timeout, .job_id = kJob},
                               .partitioner = [](const TensorSpec& spec) {
                                 std::vector<std::int64_t> shards(spec.sizes->size(), 1);
                                 if (spec.sizes->size() == 2) shards.front() = kShards;
                                 return shards;
                               }});
    coordinator = std::make_unique<ClusterCoordinator>(
        *strategy, CoordinatorOptions{.max_transient_ps_failures = 1'000'000,
                                      .max_transient_timeouts = 1'000'000});
    count = strategy->variable("count", at::zeros({}, at::kDouble));
    weights = strategy->variable("weights", at::zeros({kWeights}));
    table = strategy->variable("table", at::zeros({kRows, 3}));
    ones.emplace(strategy->embedding_table("ones", {.dim = 3, .initializer = Initializer::ones()}));
    users.emplace(
        strategy->embedding_table("users", {.dim = 3, .initializer = Initializer::zeros()}));
    const SGD sgd({users->variable()}, {.learning_rate = 1});
    step = Function([this, sgd](const at::Tensor& by) {
      // Subtracts rows that are ones, so that any other number that arrives is seen in the sums.
      sgd.minimize(users->lookup(keys).mul(ones->lookup(keys).detach()).sum());
      const at::Tensor zero = count->tensor().mul(0).to(at::kFloat).add(weights->tensor().mul(0));
      const at::Tensor first = zero.slice(0, 0, 3).add(1);
      count->assign_add(at::ones({}, at::kDouble));
      weights->assign_add(zero.add(by));
      // Moves these rows alone, in both directions, and to both servers.
      const at::Tensor rows = at::embedding(table->tensor(), row_ids);
      table->scatter_add(row_ids, rows.mul(0).add(by));
      return first;
    });
    run_round();
  }

  // Schedules kClosures closures, all of which must succeed.
  void run_round() {
    const at::Tensor by = at::ones({});
    for (int i = 0; i < kClosures; ++i) coordinator->schedule(step, by);
    scheduled += kClosures;
    ASSERT_TRUE(coordinator->join(kPatience)) << "the run hangs";
  }
  Fault random_fault(Fault::Kind kind) {
    return {.kind = kind,
            .direction = Fault::Direction(random() % 2),
            .part = Fault::Part(1 + random() % 4),
            .random = random()};
  }
  // Runs rounds until the fault was injected into a frame.
  void meet(ProxiedTask& task, const Fault& fault) {
    task.data().arm(fault);
    const Deadline deadline = Deadline::after(kPatience);
    while (!task.data().has_happened() && !deadline.has_expired()) run_round();
    ASSERT_TRUE(task.data().has_happened());
  }
  ProxiedTask& random_task() { return *tasks[random() % tasks.size()]; }
  // The number of broken frames that this process and all servers have counted.
  std::uint64_t broken_frames() const {
    std::uint64_t frames = rpc::broken_frames();
    for (const auto& task : tasks) frames += task->health().broken_frames;
    return frames;
  }
  bool await_broken_frames(std::uint64_t expected) const {
    const Deadline deadline = Deadline::after(kPatience);
    while (broken_frames() < expected) {
      if (deadline.has_expired()) return false;
    }
    return true;
  }
  // Expects that the run continues with the right count, or ends with one of three error codes.
  void end_well_or_by_name(ProxiedTask& task, const Fault& fault) {
    SCOPED_TRACE(what(fault, task));
    try {
      ASSERT_NO_FATAL_FAILURE(meet(task, fault));
      ASSERT_NO_FATAL_FAILURE(run_round());
      return expect_each_update_once();
    } catch (const Error& error) {
      const ErrorCode code = error.code();
      EXPECT_TRUE(code == ErrorCode::deadline_exceeded || code == ErrorCode::unavailable ||
                  code == ErrorCode::data_loss)
          << error.what();
      std::cout << what(fault, task) << ": " << error.what() << "\n";
    }
    has_ended = true;
  }
  void expect_each_update_once() {
    EXPECT_EQ(count->read().item<double>(), scheduled);
    const at::Tensor values = weights->read();
    EXPECT_TRUE(values.eq(scheduled).all().item<bool>()) << values.slice(0, 0, 3);
    const at::Tensor expected = at::zeros({kRows, 3}).index_fill(0, row_ids, scheduled);
    EXPECT_TRUE(at::equal(table->read(), expected)) << table->read().index_select(0, row_ids);
    const at::Tensor rows = users->lookup(keys).select(1, 2);
    EXPECT_TRUE(at::equal(rows, at::tensor({-2.F, -1.F, -2.F, -1.F}).mul(scheduled))) << rows;
    EXPECT_EQ(users->size(), 3);
  }
  std::string what(const Fault& fault, const ProxiedTask& task) const {
    return to_string(fault) + " at " + task.task() + "; " + seed.text();
  }

  const testing::TestSeed seed;
  std::mt19937_64 random;
  std::vector<std::unique_ptr<ProxiedTask>> tasks;
  std::unique_ptr<TestCluster> cluster;
  std::unique_ptr<ParameterServerStrategy> strategy;
  std::unique_ptr<ClusterCoordinator> coordinator;
  std::optional<Variable> count, weights, table;
  std::optional<EmbeddingTable> ones, users;
  const at::Tensor keys = at::tensor({5L, -9'000'000'000'000'000'000L, 5L, 77L}, at::kLong);
  const at::Tensor row_ids = at::tensor({7, 450, 899}, at::kLong);
  Function step = Function::registered("none");
  double scheduled = 0;
  bool has_ended = false;  // the run ended with an error
};

TEST_F(BrokenFramesTest, EachFlippedBitIsDetectedAndEveryUpdateCountsOnce) {
  start("stream");
  const std::uint64_t before = broken_frames();
  const int flips = number_of_environment("COHORT_FLIPS", kFlips);
  for (int i = 1; i <= flips; ++i) {
    ProxiedTask& task = random_task();
    const Fault fault = random_fault(Fault::Kind::flip);
    SCOPED_TRACE(what(fault, task));
    ASSERT_NO_FATAL_FAILURE(meet(task, fault));
    ASSERT_TRUE(await_broken_frames(before + static_cast<std::uint64_t>(i))) << "not detected";
    ASSERT_NO_FATAL_FAILURE(run_round());
  }
  EXPECT_EQ(broken_frames(), before + static_cast<std::uint64_t>(flips));
  expect_each_update_once();
  EXPECT_EQ(coordinator->statistics().protocol_errors, 0U);
}

TEST_F(BrokenFramesTest, WhatIsRepeatedCutOrLateCountsOnce) {
  start("stream");
  constexpr Fault::Kind kKinds[] = {Fault::Kind::repeat, Fault::Kind::cut, Fault::Kind::delay};
  for (int i = 0; i < number_of_environment("COHORT_FLIPS", 60); ++i) {
    ProxiedTask& task = random_task();
    const Fault fault = random_fault(kKinds[i % 3]);
    SCOPED_TRACE(what(fault, task));
    ASSERT_NO_FATAL_FAILURE(meet(task, fault));
    ASSERT_NO_FATAL_FAILURE(run_round());
  }
  expect_each_update_once();
  EXPECT_EQ(coordinator->statistics().protocol_errors, 0U);
}

// A lost frame cannot be detected on arrival, but a deadline or the next frame reveals the loss.
TEST_F(BrokenFramesTest, WhatIsLostIsNoticedOrNamed) {
  start("stream", std::chrono::seconds(1));
  for (int i = 0; i < number_of_environment("COHORT_FLIPS", 12) && !has_ended; ++i)
    ASSERT_NO_FATAL_FAILURE(end_well_or_by_name(random_task(), random_fault(Fault::Kind::lose)));
}

// gRPC's own HTTP/2 frames have no checksum: after a flipped bit gRPC may wait forever for data.
TEST_F(BrokenFramesTest, OverGrpcAFlippedBitIsNoticedOrNamed) {
  start("grpc", std::chrono::seconds(1));
  for (int i = 0; i < number_of_environment("COHORT_FLIPS", 12) && !has_ended; ++i) {
    Fault fault = random_fault(Fault::Kind::flip);
    fault.part = Fault::Part::any;
    ASSERT_NO_FATAL_FAILURE(end_well_or_by_name(random_task(), fault));
  }
}

class WrongWatermarkTest : public ::testing::Test {
 protected:
  // Sends a push with a wrong watermark, as a task with corrupted memory could.
  bool push(std::uint64_t closure, std::uint64_t low_watermark) {
    const std::uint64_t start = strategy.home()->connection().incarnation();
    const rpc::PushRequest wrong{.id = {.incarnation = start, .number = closure},
                                 .low_watermark = low_watermark};
    return rpc::message_of<rpc::PushReply>(
               strategy.home()->connection().ps(0).data->call(
                   rpc::to_frame(wrong), Deadline::after(kPatience), "pushing"))
        .was_applied;
  }

  TestCluster cluster{{.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy};
  Variable sum = strategy.variable("sum", at::zeros({}));
  Function step{[this] { sum.assign_add(at::ones({})); }};
};

// All later updates of the run were dropped, and nothing was logged.
TEST_F(WrongWatermarkTest, AboveItsClosureItIsRefused) {
  EXPECT_THAT([&] { push(4, std::uint64_t{1} << 40); },
              testing::throws_error(ErrorCode::data_loss, "expected a low watermark"));
  for (int i = 0; i < 10; ++i) coordinator.schedule(step);
  EXPECT_TRUE(coordinator.join(kPatience));
  EXPECT_EQ(sum.read().item<float>(), 10);
  EXPECT_EQ(cluster.health("ps:0").protocol_errors, 1U);
  EXPECT_THAT(cluster.output("ps:0"), ::testing::HasSubstr("was refused"));
}

TEST_F(WrongWatermarkTest, AnUpdateThatIsMissingForItIsAnError) {
  EXPECT_TRUE(push(1000, 1000));
  EXPECT_THAT(
      [&] {
        for (int i = 0; i < 10; ++i) coordinator.schedule(step);
        coordinator.join();
      },
      testing::throws_error(ErrorCode::data_loss, "updates are missing"));
  EXPECT_GE(coordinator.statistics().protocol_errors, 1U);
}

// Here the push is acknowledged in the middle of the closure.
TEST_F(WrongWatermarkTest, AnUpdateThatIsMissingBetweenSegmentsIsAnError) {
  const Function segments([this] {
    sum.assign_add(at::ones({}));
    sum.assign_add(sum.tensor().detach());
    return sum.read();
  });
  EXPECT_TRUE(push(1000, 1000));
  EXPECT_THAT(
      [&] {
        for (int i = 0; i < 10; ++i) coordinator.schedule(segments);
        coordinator.join();
      },
      testing::throws_error(ErrorCode::data_loss, "updates are missing"));
  EXPECT_GE(coordinator.statistics().protocol_errors, 1U);
}

}  // namespace
}  // namespace cohort
