// SPDX-License-Identifier: Apache-2.0
// Epochs and iterators of a coordinator with servers that a test controls.
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cohort/coordinator/runtime/runtime.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/torch_error.h"
#include "cohort/data/iterator.h"
#include "cohort/testing/coordinator_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using coordinator::Runtime;
using testing::throws_error;

class CoordinatorEpochsTest : public testing::CoordinatorFixture {
 protected:
  std::shared_ptr<Runtime> start(const CoordinatorOptions& options) {
    auto runtime = std::make_shared<Runtime>(strategy(), options, CoordinatorNumbers());
    runtime->start();
    return runtime;
  }
};

// Regression: the signature of a step kept its first iterator, and so a pipeline on every worker.
TEST_F(CoordinatorEpochsTest, AnIteratorThatAStepHasDrawnFromIsReleased) {
  worker.on_peek = [](const rpc::PeekRequest&) {
    return rpc::PeekReply{.fields = 1, .tensors = {at::ones({}, at::kLong)}};
  };
  ClusterCoordinator coordinator(strategy());
  const Function draw([](Iterator& it) { it.next<at::Tensor>(); });
  const PerWorkerDataset data = coordinator.create_per_worker_dataset(Dataset::range(3));
  for (int i = 0; i < 2; ++i) {
    const PerWorkerIterator iterator = data.iterator();
    coordinator.schedule(draw, iterator);
    coordinator.join();
  }
  data.iterator();
  EXPECT_EQ(worker.released().size(), 2U);
}

// Regression: a worker that was being set up was not told to release the iterator.
TEST_F(CoordinatorEpochsTest, AnIteratorThatIsDroppedWhileAWorkerComesBackIsReleased) {
  worker.on_peek = [](const rpc::PeekRequest&) {
    return rpc::PeekReply{.fields = 1, .tensors = {at::ones({}, at::kLong)}};
  };
  ClusterCoordinator coordinator(strategy());
  const Function draw([](Iterator& it) { it.next<at::Tensor>(); });
  const PerWorkerDataset data = coordinator.create_per_worker_dataset(Dataset::range(3));
  std::optional<PerWorkerIterator> first = data.iterator();
  coordinator.schedule(draw, *first);
  coordinator.join();
  std::vector<PerWorkerIterator> others;
  worker.on_register = [&](const rpc::FunctionBody&) {  // in the first two rounds of its setup
    first.reset();
    if (others.size() < 2) others.push_back(data.iterator());
  };
  worker.close_channels();
  EXPECT_TRUE(await([&] { return worker.released().size() == 1; }));
  coordinator.schedule(nothing).fetch(testing::patience());
  EXPECT_EQ(others.size(), 2U);
}

// Regression: `cohort status` showed neither an end nor a failure.
TEST_F(CoordinatorEpochsTest, StepsOfAnEpochThatRunHereAreCounted) {
  const auto runtime = start({.run_eagerly = true});
  const Function picky(
      [](Iterator& it) { return at::ones({1}).index_select(0, it.next<at::Tensor>()); });
  const auto epoch = runtime->begin_epoch(picky, runtime->datasets().ship({Dataset::range(3)}), {});
  EXPECT_TRUE(runtime->next_step(epoch));
  EXPECT_TRUE(runtime->health().since_last_end);
  EXPECT_EQ(runtime->health().coordinator->completed, 1U);
  EXPECT_THROW(runtime->next_step(epoch), Error);
  EXPECT_EQ(runtime->health().coordinator->failed, 1U);
  EXPECT_TRUE(runtime->health().last_error);
}

// Regression: the error named no worker, so the faulty data was hard to find.
TEST_F(CoordinatorEpochsTest, ErrorsOfStepsThatRunHereNameTheWorkerWhoseDataItWas) {
  const auto runtime = start({.run_eagerly = true});
  const Function draw([](Iterator& it) { it.next<at::Tensor>(); });
  const Dataset absent =
      Dataset::csv(StringTensor({1}, {"/nowhere/rows.csv"}), {.columns = {{at::kFloat}}});
  const auto epoch = runtime->begin_epoch(draw, runtime->datasets().ship({absent}), {});
  EXPECT_THAT([&] { runtime->next_step(epoch); },
              ::testing::Throws<Error>(
                  ::testing::AllOf(::testing::Property("code", &Error::code, ErrorCode::not_found),
                                   ::testing::Property("origin", &Error::origin, "worker:0"))));
}

// Regression: the error was LibTorch's page about the kernels of aten::empty.
TEST_F(CoordinatorEpochsTest, AStepThatRunsHereSaysThatThereIsNoGpu) {
  if (has_device(at::kCUDA)) GTEST_SKIP() << "this host has a GPU";
  const auto runtime = start({.run_eagerly = true});
  const RemoteValue value =
      runtime->schedule(Function([] { return at::ones({2}, at::kCUDA); }), {});
  EXPECT_THAT([&] { value.fetch(); },
              throws_error(ErrorCode::invalid_argument,
                           "the 'CUDA' backend; this process has no CUDA device: leave out"));
}

// Regression: LibTorch's exception passed unchanged, and its what() had a page of stack frames.
TEST_F(CoordinatorEpochsTest, LibTorchsExceptionsOfAFunctionThatMakesADatasetAreErrors) {
  ClusterCoordinator coordinator(strategy());
  const auto make = [](const InputContext&) {
    return Dataset::range(at::ones({2}).mm(at::ones({3})).numel());
  };
  EXPECT_THAT([&] { coordinator.create_per_worker_dataset(make); },
              throws_error(ErrorCode::unknown, "self must be a matrix"));
}

// Regression: it waited for the data timeout.
TEST_F(CoordinatorEpochsTest, AnEpochThatWaitsEndsWithItsCoordinator) {
  worker.answers = false;
  worker.on_peek = [](const rpc::PeekRequest&) {
    return rpc::PeekReply{.fields = 1, .tensors = {at::ones({}, at::kLong)}};
  };
  const auto runtime = start({.progress_timeout = std::chrono::seconds(20)});
  const Function draw([](Iterator& it) { it.next<at::Tensor>(); });
  const auto epoch = runtime->begin_epoch(draw, runtime->datasets().ship({Dataset::range(9)}), {});
  std::thread caller([&] {
    EXPECT_THAT([&] { runtime->next_step(epoch); },
                throws_error(ErrorCode::cancelled, "one whose last handle was destroyed"));
  });
  EXPECT_TRUE(worker.await_closures(1));
  runtime->stop();
  caller.join();
}

// Regression: the fifth dataset replaced the first, which was in use, so its next pass had number 0
// again.
TEST_F(CoordinatorEpochsTest, PassesOverADatasetAreCountedWhateverIsUsedInBetween) {
  const auto runtime = start({});
  const Dataset train = Dataset::range(9).shuffle(9, {.seed = 1});
  const auto first = runtime->datasets().distribute(train);
  std::vector<Dataset> others;
  for (std::uint64_t epoch = 0; epoch < 6; ++epoch) {
    EXPECT_EQ(runtime->datasets().distribute(train)->passes().begin().number, epoch);
    runtime->datasets().distribute(others.emplace_back(Dataset::range(9)));
  }
  EXPECT_EQ(runtime->datasets().distribute(train), first) << "what is in use is kept";
  for (int i = 0; i < 6; ++i)
    runtime->datasets().distribute(others.emplace_back(Dataset::range(9)));
  EXPECT_NE(runtime->datasets().distribute(train), first);
  EXPECT_EQ(runtime->datasets().distribute(train)->passes().begin().number, 6U);
  EXPECT_EQ(first->passes().begin().number, 7U) << "as the user may have kept it";
}

class EpochsOfOneWorkerTest : public CoordinatorEpochsTest {
 protected:
  EpochsOfOneWorkerTest() {
    worker.answers = false;
    worker.on_peek = [](const rpc::PeekRequest&) {
      return rpc::PeekReply{.fields = 1, .tensors = {at::ones({}, at::kLong)}};
    };
  }
  static std::shared_ptr<coordinator::EpochRun> begin(Runtime& runtime) {
    const Function draw([](Iterator& it) { it.next<at::Tensor>(); });
    return runtime.begin_epoch(draw, runtime.datasets().ship({Dataset::range(99)}), {});
  }
};

// Regression: schedule() waited until a step of the epoch ended.
TEST_F(EpochsOfOneWorkerTest, OthersMayScheduleWhileOneWaits) {
  const auto runtime = start({.progress_timeout = std::chrono::seconds(20)});
  const auto epoch = begin(*runtime);
  std::thread caller([&] { EXPECT_NO_THROW(EXPECT_TRUE(runtime->next_step(epoch))); });
  EXPECT_TRUE(worker.await_closures(1));
  EXPECT_NO_THROW(runtime->schedule(nothing, {}));
  worker.end({{.closure_id = 1}});
  caller.join();
  runtime->stop();
}

// Regression: the results of all steps that ended were kept for a slow caller.
TEST_F(EpochsOfOneWorkerTest, NoStepsAreSentAheadOfACallerThatHasManyToTake) {
  constexpr std::size_t kWaitingMax = 1024;
  constexpr std::size_t kOpenMax = 128;
  worker.answers = true;
  const auto runtime = start({.in_flight_per_worker = kOpenMax / 2});
  const Function draw([](Iterator& it) { it.next<at::Tensor>(); });
  const auto epoch =
      runtime->begin_epoch(draw, runtime->datasets().ship({Dataset::range(1 << 20)}), {});
  constexpr std::size_t kTaken = 3 * kWaitingMax / kOpenMax;
  for (std::size_t i = 0; i < kTaken; ++i) {
    EXPECT_TRUE(runtime->next_step(epoch));
    EXPECT_TRUE(await([&] { return runtime->pending_count() == 0; }));
  }
  EXPECT_GE(worker.closures().size(), kWaitingMax);
  EXPECT_LE(worker.closures().size(), kWaitingMax + kOpenMax + kTaken);
  runtime->give_up(*epoch);
}

// A closure that waits for room gets another id then, since ids grow.
TEST_F(EpochsOfOneWorkerTest, AnotherOneMayBeginWhileACallerWaitsForRoom) {
  const auto runtime = start({.queue_capacity = 1, .in_flight_per_worker = 1});
  const auto one = begin(*runtime), other = begin(*runtime);
  const auto are_pending = [&](std::size_t closures) {
    return await([&] { return runtime->pending_count() == closures; });
  };
  std::vector<std::thread> callers;
  callers.emplace_back([&] { EXPECT_NO_THROW(EXPECT_TRUE(runtime->next_step(one))); });
  EXPECT_TRUE(are_pending(2));
  runtime->schedule(nothing, {});  // the queue is full
  callers.emplace_back([&] { EXPECT_NO_THROW(runtime->schedule(nothing, {})); });
  EXPECT_TRUE(are_pending(4));
  callers.emplace_back([&] { EXPECT_NO_THROW(EXPECT_TRUE(runtime->next_step(other))); });
  EXPECT_TRUE(are_pending(6));
  worker.answers = true;
  worker.end({{.closure_id = 1}});
  for (std::thread& caller : callers) caller.join();
  for (const auto& epoch : {one, other}) runtime->give_up(*epoch);
  EXPECT_TRUE(runtime->join(std::chrono::seconds(60)));
}

// The sum wrapped around.
TEST_F(CoordinatorEpochsTest, ASumThatDoesNotFitIntoInt64IsNamed) {
  ClusterCoordinator coordinator(strategy(), {.run_eagerly = true});
  const Function count([](Iterator& it) {
    it.next<at::Tensor>();
    return Nest::map({{"few", 1}, {"rows", std::int64_t{1} << 62}});
  });
  EXPECT_THAT([&] { coordinator.run_epoch(count, Dataset::range(3)); },
              throws_error(ErrorCode::out_of_range, "a sum of the step's result['rows']"));
  const Function down([](Iterator& it) {
    it.next<at::Tensor>();
    return -(std::int64_t{1} << 62);
  });
  const EpochResult result = coordinator.run_epoch(down, Dataset::range(2));
  EXPECT_EQ(result.sum.tensor().item<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
}

}  // namespace
}  // namespace cohort
