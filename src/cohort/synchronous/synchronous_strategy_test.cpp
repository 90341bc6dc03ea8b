// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <latch>
#include <set>
#include <sstream>
#include <thread>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/collective/group.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

std::int64_t sum_of(const at::Tensor& tensor) { return tensor.sum().item().toLong(); }

std::vector<std::int64_t> sums_of(const PerReplica<at::Tensor>& values) {
  std::vector<std::int64_t> sums;
  for (const at::Tensor& value : values.local_results()) sums.push_back(sum_of(value));
  return sums;
}

class TwoReplicas : public ::testing::Test {
 protected:
  MirroredStrategy strategy{{"CPU:0", "CPU:1"}};
  DistributedDataset numbers = strategy.distribute_dataset(Dataset::range(10).batch(4));
};

TEST_F(TwoReplicas, ALoopRunsAFunctionAReplicaAndReduces) {
  std::vector<std::int64_t> totals;
  for (const auto& batch : numbers) {
    const auto sums = strategy.run([](at::Tensor x) { return x.sum(); }, batch);
    totals.push_back(strategy.reduce(ReduceOp::sum, sums).item().toLong());
  }
  EXPECT_THAT(totals, ElementsAre(6, 22, 17));
}

TEST_F(TwoReplicas, ATupleIsSpreadOverTheParameters) {
  const DistributedDataset pairs =
      strategy.distribute_dataset(Dataset::range(4).enumerate(10).batch(4));
  const auto batch = pairs.iterator().get_next();
  const auto spread = [](at::Tensor index, at::Tensor x) { return index.sum() + x.sum(); };
  EXPECT_THAT(sums_of(strategy.run(spread, batch)), ElementsAre(22, 30));
  const auto whole = [](const Nest& element) { return element.items()[0].tensor().sum(); };
  EXPECT_THAT(sums_of(strategy.run(whole, batch)), ElementsAre(21, 25));
  EXPECT_THAT([&] { strategy.run([](at::Tensor x) { return x; }, batch); },
              throws_error(ErrorCode::invalid_argument, "expected an element of 1 parts"));
}

// Regression: the message, "[core.nest] expected int, got tensor", did not name the parameter.
TEST_F(TwoReplicas, APartOfAnotherTypeIsRefusedWithItsPosition) {
  const auto batch =
      strategy.distribute_dataset(Dataset::range(4).enumerate(10).batch(4)).iterator().get_next();
  EXPECT_THAT([&] { strategy.run([](at::Tensor, std::int64_t) {}, batch); },
              throws_error(ErrorCode::invalid_argument,
                           "expected an integer as argument 1 of 'function given to run()', got "
                           "tensor; pass an integer, or change the type of the parameter"));
  EXPECT_THAT([&] { strategy.run([](const at::Tensor&, bool) {}, at::ones({}), Nest("yes")); },
              throws_error(ErrorCode::invalid_argument,
                           "expected a bool as argument 1 of 'function given to run()', got text"));
}

TEST_F(TwoReplicas, EachReplicaGetsItsComponentAndItsContext) {
  const PerReplica<Nest> ids = strategy.distribute_values_from_function(
      [](const ValueContext& context) { return Nest(context.replica_id_in_sync_group * 10); });
  const auto result = strategy.run(
      [](std::int64_t id, int plain) {
        EXPECT_EQ(get_replica_context()->num_replicas_in_sync(), 2);
        EXPECT_EQ(&get_replica_context()->strategy(), &get_strategy());
        return static_cast<int>(id) + get_replica_context()->replica_id_in_sync_group() + plain;
      },
      ids, 100);
  EXPECT_THAT(result.local_results(), ElementsAre(100, 111));
  EXPECT_EQ(strategy.run([] {}).size(), 2U);
}

TEST_F(TwoReplicas, ResultsOfOneCallAreArgumentsOfTheNext) {
  const auto batch = numbers.iterator().get_next();
  const auto doubled = strategy.run([](at::Tensor x) { return x * 2; }, batch);
  const auto sums = strategy.run([](const at::Tensor& x) { return x.sum(); }, doubled);
  EXPECT_THAT(sums_of(sums), ElementsAre(2, 10));
}

// Regression: the first step failed, with LibTorch's message.
TEST(MirroredStrategyDevices, OnesThatAreNotThereAreRefusedWhenItIsMade) {
  EXPECT_THAT(
      [] {
        MirroredStrategy({"CPU:0", "GPU:77"});
      },
      throws_error(ErrorCode::invalid_argument,
                   "devices that this process has, got GPU:77; there are CPU:0"));
  EXPECT_THAT([] { MirroredStrategy({"TPU:0"}); },
              throws_error(ErrorCode::invalid_argument, "got TPU:0"));
  EXPECT_THAT([] { OneDeviceStrategy("GPU:77"); },
              throws_error(ErrorCode::invalid_argument, "got GPU:77"));
}

TEST_F(TwoReplicas, DrawingInsideAReplicaIsRefused) {
  DistributedIterator iterator = numbers.iterator();
  EXPECT_THAT([&] { strategy.run([&] { iterator.get_next(); }); },
              throws_error(ErrorCode::invalid_argument, "outside run()"));
  EXPECT_EQ(sum_of(iterator.get_next()[0].tensor()), 1) << "nothing was lost";
  strategy.run([&] {
    EXPECT_THAT([&] { strategy.distribute_dataset(Dataset::range(2).batch(2)); },
                throws_error(ErrorCode::failed_precondition, "inside one of its replicas"));
  });
}

TEST_F(TwoReplicas, AnErrorNamesItsReplica) {
  const auto failing = [] {
    if (get_replica_context()->replica_id_in_sync_group() == 1)
      throw Error(ErrorCode::data_loss, "bad");
  };
  try {
    strategy.run(failing);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.context(), ElementsAre("running replica 1"));
  }
}

TEST_F(TwoReplicas, ValuesReduceAndGather) {
  const PerReplica<at::Tensor> values({at::full({2, 1}, 1), at::full({2, 1}, 3)});
  EXPECT_EQ(sum_of(strategy.reduce(ReduceOp::sum, values)), 8);
  EXPECT_EQ(strategy.reduce(ReduceOp::mean, values)[0].item().toDouble(), 2.0);
  EXPECT_EQ(strategy.gather(values, 1).sizes().vec(), (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(strategy.gather(values, 0).size(0), 4);
  EXPECT_THAT([&] { strategy.gather(values, 2); },
              throws_error(ErrorCode::invalid_argument, "axis"));
  const PerReplica<at::Tensor> uneven({at::full({1}, 1), at::full({2}, 3)});
  EXPECT_EQ(strategy.gather(uneven, 0).size(0), 3);
  EXPECT_THAT([&] { strategy.reduce(ReduceOp::sum, uneven); },
              throws_error(ErrorCode::invalid_argument, "one shape"));
}

// GAT-07. Regression: LibTorch's error was thrown, or the narrower dtype was promoted.
TEST_F(TwoReplicas, ComponentsThatDoNotFitAreNotGathered) {
  const auto ints = [](at::IntArrayRef sizes) { return at::full(sizes, 1, at::kInt); };
  const auto refused = [](Strategy& refusing, const at::Tensor& a, const at::Tensor& b,
                          const std::string& words) {
    EXPECT_THAT(
        [&] {
          refusing.gather(PerReplica<at::Tensor>({a, b}), 0);
        },
        throws_error(ErrorCode::invalid_argument, words));
  };
  refused(strategy, ints({1, 2}), ints({1, 3}), "got int32[1, 2] and int32[1, 3] of replica 1");
  refused(strategy, ints({2}), ints({1, 2}), "got int32[2] and int32[1, 2] of replica 1");
  refused(strategy, ints({1}), at::full({1}, 2.5, at::kFloat), "got int32[1] and float32[1]");
  refused(strategy, ints({1}), StringTensor({1}, {"a"}), "got int32[1] and string[1]");
  refused(strategy, StringTensor({1}, {"a"}), ints({1}), "got string[1] and int32[1]");
}

// RED-043, RED-044. Regression: means became float32, which cannot represent every int64.
TEST_F(TwoReplicas, MeansOfIntegersPromoteAsTensorFlows) {
  const auto mean = [&](at::ScalarType dtype) {
    const auto filled = [dtype](double value) {
      return at::full({1}, value, at::TensorOptions(dtype));
    };
    return strategy.reduce(ReduceOp::mean, PerReplica<at::Tensor>({filled(3), filled(4)}));
  };
  for (const at::ScalarType wide : {at::kInt, at::kLong, at::kDouble}) {
    EXPECT_EQ(mean(wide).scalar_type(), at::kDouble) << wide;
    EXPECT_EQ(mean(wide).item().toDouble(), 3.5) << wide;
  }
  for (const at::ScalarType narrow : {at::kChar, at::kByte, at::kShort, at::kFloat})
    EXPECT_EQ(mean(narrow).scalar_type(), at::kFloat) << narrow;
  EXPECT_EQ(mean(at::kHalf).scalar_type(), at::kHalf);
}

// Regression: the sum was made in the components' own type, and wrapped before the division.
TEST_F(TwoReplicas, MeansAreOfNumbersThatDoNotWrap) {
  const auto mean = [&](at::ScalarType dtype, double value) {
    const at::Tensor one = at::full({1}, value, at::TensorOptions(dtype));
    return strategy.reduce(ReduceOp::mean, PerReplica<at::Tensor>({one, one})).item().toDouble();
  };
  EXPECT_EQ(mean(at::kByte, 200), 200);
  EXPECT_EQ(mean(at::kChar, 100), 100);
  EXPECT_EQ(mean(at::kShort, 30000), 30000);
  EXPECT_EQ(mean(at::kInt, 2e9), 2e9);
  EXPECT_EQ(mean(at::kHalf, 40000), 40000);
}

// Regression: their sum was a logical or, and their mean a half of that.
TEST_F(TwoReplicas, BoolsAreNotReduced) {
  const at::Tensor yes = at::ones({1}, at::TensorOptions(at::kBool));
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) {
    EXPECT_THAT(
        [&] {
          strategy.reduce(op, PerReplica<at::Tensor>({yes, yes}));
        },
        throws_error(ErrorCode::invalid_argument, "got bool; convert it inside run()"));
  }
}

// Regression: the number of leaves was the first replica's, so those of the others were read past
// their end.
TEST_F(TwoReplicas, ComponentsOfAnotherStructureAreRefused) {
  const at::Tensor one = at::full({1}, 1.0);
  const PerReplica<Nest> uneven({Nest::tuple({one, one}), Nest(one)});
  EXPECT_THAT([&] { strategy.reduce(ReduceOp::sum, uneven); },
              throws_error(ErrorCode::invalid_argument, "replica 1"));
  EXPECT_THAT([&] { strategy.gather(uneven, 0); },
              throws_error(ErrorCode::invalid_argument, "replica 1"));
}

TEST_F(TwoReplicas, AValueOfAnotherNumberOfReplicasIsRefused) {
  const at::Tensor one = at::full({1}, 1.0);
  for (const std::size_t count : {0, 1, 3}) {
    const PerReplica<Nest> value(std::vector<Nest>(count, Nest(one)));
    const std::string words = "expected 2 components, got " + std::to_string(count);
    EXPECT_THAT([&] { strategy.reduce(ReduceOp::sum, value); },
                throws_error(ErrorCode::invalid_argument, words));
    EXPECT_THAT([&] { strategy.gather(value, 0); },
                throws_error(ErrorCode::invalid_argument, words));
  }
}

// Regression: only a cohort::Error named the replica; other exceptions of the user's function did
// not.
TEST_F(TwoReplicas, AnErrorOfLibTorchNamesItsReplica) {
  const auto failing = [] { at::full({2}, 1.0) + at::full({3}, 1.0); };
  try {
    strategy.run(failing);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), ErrorCause::application);
    EXPECT_THAT(error.context(), ElementsAre("running replica 0"));
  }
}

TEST_F(TwoReplicas, PerReplicaValuesPrintEachComponent) {
  std::ostringstream text;
  text << PerReplica<int>({1, 2}) << " " << PerReplica<int>::bare(7);
  EXPECT_EQ(text.str(), "PerReplica:{0: 1, 1: 2} 7");
}

TEST_F(TwoReplicas, PipelinesForReplicasLeaveTheStrategyAsItWas) {
  const DistributedDataset own = strategy.distribute_datasets_from_function(
      [](const InputContext&) { return Dataset::range(4); },
      {.fetch_to_device = false, .replication_mode = ReplicationMode::per_replica});
  own.iterator().get_next();
  const auto batch = strategy.distribute_dataset(Dataset::range(4).batch(2)).iterator().get_next();
  EXPECT_EQ(batch.size(), 2U);
}

// Each has threads and meetings of its own.
TEST(MirroredStrategyTest, TwoOfDifferentSizesReduceAtTheSameTime) {
  std::latch both(2);
  const auto sums_of_ids = [&](const std::vector<std::string>& devices) {
    MirroredStrategy strategy(devices);
    std::set<double> sums;
    both.arrive_and_wait();
    for (int i = 0; i < 50; ++i) {
      const auto ids = strategy.run([] {
        const ReplicaContext& replica = *get_replica_context();
        const at::Tensor id = at::full({}, replica.replica_id_in_sync_group() + 1.0);
        return replica.all_reduce(ReduceOp::sum, id) + id;
      });
      sums.insert(strategy.reduce(ReduceOp::sum, ids).item<double>());
    }
    return sums;
  };
  auto of_three = std::async(std::launch::async, sums_of_ids,
                             std::vector<std::string>{"CPU:0", "CPU:1", "CPU:2"});
  EXPECT_THAT(sums_of_ids({"CPU:0", "CPU:1"}), ElementsAre(3 * 2 + 3));
  EXPECT_THAT(of_three.get(), ElementsAre(6 * 3 + 6));
}

TEST(MirroredStrategyTest, TakesEachLocalDeviceOnce) {
  EXPECT_THAT(
      [] {
        MirroredStrategy({"CPU:0", "cpu:0"});
      },
      throws_error(ErrorCode::invalid_argument, "CPU:0 twice"));
  EXPECT_THAT(
      [] {
        MirroredStrategy({"cpu:1", "device:CPU:1"});
      },  // CTX-073
      throws_error(ErrorCode::invalid_argument, "CPU:1 twice"));
  EXPECT_THAT([] { MirroredStrategy({"/job:ps/task:0/CPU:0"}); },
              throws_error(ErrorCode::invalid_argument, "of this process"));
  EXPECT_GE(MirroredStrategy().num_replicas_in_sync(), 1);
}

TEST(OneDeviceStrategyTest, ElementsValuesAndResultsAreBare) {
  OneDeviceStrategy strategy("CPU:0");
  const DistributedDataset dataset = strategy.distribute_dataset(Dataset::range(5).batch(2));
  EXPECT_FALSE(dataset.handles_partial_batches());
  EXPECT_EQ(dataset.element_spec().to_string(), "int64[?]");
  const auto batch = dataset.iterator().get_next();
  const at::Tensor doubled = strategy.run([](at::Tensor x) { return x * 2; }, batch);
  EXPECT_EQ(sum_of(doubled), 2);
  const PerReplica<Nest> value =
      strategy.distribute_values_from_function([](const ValueContext&) { return Nest(7); });
  EXPECT_FALSE(value.is_wrapped());
  EXPECT_EQ(value.value().integer(), 7);
}

// Regression: values were reduced and gathered as if there were several replicas (spec 2.3 and
// 2.4).
TEST(OneDeviceStrategyTest, ValuesOfOneReplicaAreTheirOwnReduction) {
  OneDeviceStrategy one_device("CPU:0");
  for (Strategy* strategy : {static_cast<Strategy*>(&one_device), &default_strategy()}) {
    const auto result = strategy->run([] { return at::full({}, 3, at::TensorOptions(at::kInt)); });
    EXPECT_EQ(strategy->reduce(ReduceOp::mean, result).scalar_type(), at::kInt);
    EXPECT_EQ(strategy->gather(result, 0).dim(), 0);
    const PerReplica<Nest> text = strategy->run([] { return Nest::tuple({Nest("a"), Nest(3)}); });
    EXPECT_EQ(strategy->reduce(ReduceOp::mean, text).structure(), "(text, int)");
    EXPECT_EQ(strategy->gather(text, 0).items()[1].integer(), 3);
  }
}

TEST(MirroredStrategyTest, GathersTheComponentOfItsOnlyReplicaAsItIs) {
  MirroredStrategy strategy({"CPU:0"});
  EXPECT_EQ(strategy.gather(strategy.run([] { return at::ones({}); }), 0).dim(), 0);
}

TEST_F(TwoReplicas, AValueThatIsTheSameForAllHasAMeanAndNoSum) {
  const auto value = PerReplica<Nest>::bare(Nest(3));
  EXPECT_EQ(strategy.reduce(ReduceOp::mean, value).integer(), 3);
  EXPECT_EQ(strategy.gather(value, 0).integer(), 3);
  EXPECT_THAT([&] { strategy.reduce(ReduceOp::sum, value); },
              throws_error(ErrorCode::invalid_argument, "the same for all 2"));
}

TEST(DefaultStrategyTest, HandsTheDatasetOnAsItIs) {
  const DistributedDataset dataset =
      default_strategy().distribute_dataset(Dataset::range(3).batch(2));
  std::int64_t rows = 0;
  for (const auto& batch : dataset) rows += batch.value().tensor().size(0);
  EXPECT_EQ(rows, 3);
}

// Regression: each worker took every second element of an order of its own.
TEST(MultiWorkerMirroredTest, ElementsWithoutAnOrderAreNotTakenByNumber) {
  InProcessWorkers workers(2);
  MultiWorkerMirroredStrategy strategy(workers.group(0));
  const Dataset dataset = Dataset::range(8)
                              .map([](const at::Tensor& x) { return x * 2; },
                                   {.num_parallel_calls = 4, .deterministic = false})
                              .batch(2);
  EXPECT_THAT([&] { strategy.distribute_dataset(dataset); },
              throws_error(ErrorCode::invalid_argument, "set deterministic to true"));
}

// Section 4.3 of spec/strategy.md.
TEST(MultiWorkerMirroredTest, APipelineForEachReplicaIsUnimplemented) {
  const InProcessWorkers workers(2);
  testing::on_workers<int>(2, [&](int worker) {
    MultiWorkerMirroredStrategy strategy(workers.group(worker), {.devices = {"CPU:0"}});
    const auto make = [](const InputContext&) { return Dataset::range(4); };
    const InputOptions options{.fetch_to_device = false,
                               .replication_mode = ReplicationMode::per_replica};
    EXPECT_THAT([&] { strategy.distribute_datasets_from_function(make, options); },
                throws_error(ErrorCode::unimplemented, "expected replication_mode per_worker"));
    return 0;
  });
}

TEST(MultiWorkerMirroredTest, WorkersReduceTogether) {
  const InProcessWorkers workers(2);
  std::vector<std::int64_t> sums(2);
  std::vector<int> first_ids(2);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 2; ++worker) {
    threads.emplace_back([&, worker] {
      MultiWorkerMirroredStrategy strategy(workers.group(worker), {.devices = {"CPU:0", "CPU:1"}});
      const auto& dataset = strategy.distribute_dataset(Dataset::range(9).batch(4));
      for (const auto& batch : dataset) {
        const auto parts = strategy.run([](at::Tensor x) { return x.sum(); }, batch);
        sums[static_cast<std::size_t>(worker)] += sum_of(strategy.reduce(ReduceOp::sum, parts));
      }
      first_ids[static_cast<std::size_t>(worker)] =
          strategy.run([] { return get_replica_context()->replica_id_in_sync_group(); })[0];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(sums, ElementsAre(36, 36));
  EXPECT_THAT(first_ids, ElementsAre(0, 2));
}

// Regression: counts from the peers' bytes were not checked.
TEST(MultiWorkerMirroredTest, WorkersWithOtherStructuresAreRefused) {
  const InProcessWorkers workers(2);
  std::vector<std::string> messages(2);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 2; ++worker) {
    threads.emplace_back([&, worker] {
      MultiWorkerMirroredStrategy strategy(workers.group(worker), {.devices = {"CPU:0"}});
      Nest::Items leaves(static_cast<std::size_t>(worker + 1), at::full({}, 1.0));
      try {
        strategy.reduce(ReduceOp::sum, PerReplica<Nest>({Nest::tuple(leaves)}));
      } catch (const Error& error) {
        messages[static_cast<std::size_t>(worker)] = error.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& message : messages) {
    EXPECT_THAT(message, ::testing::HasSubstr("expected one call on all workers")) << message;
  }
}

// Regression: the workers got results of different calls, without an error.
TEST(MultiWorkerMirroredTest, WorkersThatMakeDifferentCallsAreRefused) {
  const auto value = PerReplica<at::Tensor>({at::ones({2, 2})});
  using Call = std::function<void(Strategy&)>;
  const Call sum = [&](Strategy& s) { s.reduce(ReduceOp::sum, value); };
  const Call mean = [&](Strategy& s) { s.reduce(ReduceOp::mean, value); };
  const Call rows = [&](Strategy& s) { s.gather(value, 0); };
  const Call columns = [&](Strategy& s) { s.gather(value, 1); };
  for (const auto& calls : {std::pair(sum, mean), std::pair(sum, rows), std::pair(rows, columns)}) {
    const InProcessWorkers workers(2);
    const auto messages = testing::on_workers<std::string>(2, [&](int worker) {
      MultiWorkerMirroredStrategy strategy(workers.group(worker), {.devices = {"CPU:0"}});
      return testing::error_of([&] { (worker == 0 ? calls.first : calls.second)(strategy); })
          .message();
    });
    EXPECT_THAT(messages,
                ::testing::Each(::testing::HasSubstr("expected one call on all workers")));
  }
}

// An error on one worker is thrown on all: none keeps waiting, and later calls work.
TEST(MultiWorkerMirroredTest, AValueThatCannotBeSentFailsOnAllWorkers) {
  const InProcessWorkers workers(2);
  std::vector<std::string> errors(2);
  std::vector<std::int64_t> sums(2);
  std::vector<std::int64_t> gathered(2);
  const auto error_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + " at " + error.origin() + "; ";
    }
    return "none; ";
  };
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 2; ++worker) {
    threads.emplace_back([&, worker] {
      const auto i = static_cast<std::size_t>(worker);
      MultiWorkerMirroredStrategy strategy(workers.group(worker), {.devices = {"CPU:0"}});
      const PerReplica<Nest> good({Nest(at::full({1}, worker + 1))});
      const PerReplica<Nest> maybe_bad({worker == 1 ? Nest("text") : Nest(at::full({1}, 10))});
      errors[i] += error_of([&] { strategy.reduce(ReduceOp::sum, maybe_bad); });
      errors[i] +=
          error_of([&] { sums[i] = sum_of(strategy.reduce(ReduceOp::sum, good).tensor()); });
      errors[i] += error_of([&] { strategy.gather(maybe_bad, 0); });
      errors[i] += error_of([&] { gathered[i] = strategy.gather(good, 0).tensor().numel(); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string expected =
      "invalid_argument at worker:1; none; invalid_argument at worker:1; none; ";
  EXPECT_THAT(errors, ElementsAre(expected, expected));
  EXPECT_THAT(sums, ElementsAre(3, 3));
  EXPECT_THAT(gathered, ElementsAre(2, 2));
}

// Regression: calls of two threads were paired across the workers, and their numbers were mixed.
TEST(MultiWorkerMirroredTest, ASecondThreadIsRefusedWhileTheWorkersWaitForEachOther) {
  const InProcessWorkers workers(2);
  const PerReplica<at::Tensor> one({at::ones({})});
  const auto messages = testing::on_workers<std::string>(2, [&](int worker) -> std::string {
    MultiWorkerMirroredStrategy strategy(workers.group(worker), {.devices = {"CPU:0"}});
    std::string seen;
    const auto note = [&](const auto& call) {
      try {
        call();
        seen += "no error; ";
      } catch (const Error& error) {
        seen += std::string(name_of(error.code())) + ": " + error.message() + "; ";
      }
    };
    strategy.distribute_datasets_from_function([&](const InputContext&) {
      // This thread is in the call now, and a second one begins another.
      std::thread([&] {
        note([&] { strategy.reduce(ReduceOp::sum, one); });
        note([&] { strategy.gather(one, 0); });
      }).join();
      return Dataset::range(4).batch(2);
    });
    note([&] { strategy.reduce(ReduceOp::sum, one); });
    return seen;
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, ::testing::StartsWith(
                             "failed_precondition: [strategy.reduce] expected no other call"));
    EXPECT_THAT(message, ::testing::HasSubstr("got gather() while "
                                              "distribute_datasets_from_function() runs on "
                                              "another thread"));
    EXPECT_THAT(message, ::testing::EndsWith("on all workers; no error; "));
  }
}

}  // namespace
}  // namespace cohort
