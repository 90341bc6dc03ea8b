// SPDX-License-Identifier: Apache-2.0
// Text of variable length: C++ dataset functions of elements with unknown sizes are sent to
// workers, and traced again for each new shape there. The servers run this program, since the
// tokenizer is a registered function.
#include <ATen/TensorOperators.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/core/run_main.h"
#include "cohort/function/inspection.h"
#include "cohort/function/registry.h"
#include "cohort/function/trace.h"
#include "cohort/server/server.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TestCluster;

// The tokens of a line, one per word: 100 times the line's number, plus the length of the word.
std::vector<at::Tensor> tokens_of(std::vector<at::Tensor> line) {
  std::istringstream words{std::string(StringTensor::of(line.at(0)).value())};
  std::vector<std::int64_t> tokens;
  std::int64_t number = 0;
  words >> number;
  for (std::string word; words >> word;)
    tokens.push_back(100 * number + static_cast<std::int64_t>(word.size()));
  return {at::tensor(tokens, at::kLong)};
}

const bool kIsRegistered = [] {
  function::register_function("variable_lengths.tokens", tokens_of);
  return true;
}();

// Each element as text.
using Elements = std::multiset<std::string>;

std::string text_of(const Nest& element) {
  std::ostringstream text;
  for (const Nest& leaf : element.flatten())
    text << leaf.tensor().sizes() << leaf.tensor().toString() << leaf.tensor() << '\n';
  return text.str();
}

class VariableLengths : public ::testing::Test {
 protected:
  VariableLengths() {
    std::ofstream lines(file);
    for (int i = 0; i < 40; ++i) {
      lines << i;
      for (int word = 0; word < 1 + (7 * i) % 11; ++word)
        lines << ' ' << std::string(1 + i % 5, 'a');
      lines << '\n';
    }
  }
  ~VariableLengths() override { std::remove(file.c_str()); }

  Dataset lines(const InputContext& input) const {
    return Dataset::text_line(StringTensor({1}, {file}))
        .shard(input)
        .map(Function::registered("variable_lengths.tokens"));
  }
  // Inputs, and targets shifted by one token. The pipeline has every op with threads or a buffer.
  Dataset text(const InputContext& input) const {
    return lines(input)
        .map(
            [](const at::Tensor& tokens) {
              const at::Tensor doubled = tokens * 2;
              return std::make_tuple(doubled.slice(0, 0, tokens.size(0) - 1), doubled.slice(0, 1));
            },
            {.num_parallel_calls = 3})
        .filter([](const at::Tensor& x, const at::Tensor& y) {
          return (x.sum() + y.sum()).remainder(5).ne(0);
        })
        .shuffle(8, {.seed = 3})
        .repeat()
        .map([](const at::Tensor& x, const at::Tensor& y) { return std::make_tuple(x + 1, y - x); })
        .prefetch(3)
        .padded_batch(3)
        .prefetch(1);
  }
  // Batches of lines, with a C++ function that is traced per length before the ops that buffer.
  static Dataset batches(const Dataset& lines, const Function& doubled) {
    return lines.map(doubled, {.num_parallel_calls = 2})
        .shuffle(8, {.seed = 3})
        .prefetch(3)
        .padded_batch(2)
        .prefetch(1);
  }
  // The line numbers of a batch of doubled tokens.
  static at::Tensor numbers_of(const at::Tensor& batch) {
    return batch.select(1, 0).div(200, "floor");
  }
  // Orders[worker][step]: the line numbers that the step of an epoch drew.
  using Orders = std::vector<std::vector<std::vector<std::int64_t>>>;
  static void note(const EpochStep& step, Orders& orders) {
    orders.resize(std::max<std::size_t>(orders.size(), step.worker + 1));
    auto& steps = orders[step.worker];
    steps.resize(std::max<std::size_t>(steps.size(), step.index + 1));
    const at::Tensor numbers = step.result.tensor();
    for (std::int64_t i = 0; i < numbers.numel(); ++i)
      steps[step.index].push_back(numbers[i].item<std::int64_t>());
  }
  static void expect_all_once(const Orders& orders) {
    std::vector<std::int64_t> seen;
    for (const auto& steps : orders)
      for (const auto& numbers : steps) seen.insert(seen.end(), numbers.begin(), numbers.end());
    std::sort(seen.begin(), seen.end());
    std::vector<std::int64_t> all(40);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen, all);
  }
  // Expects that the workers draw in `steps` steps what this process draws.
  void expect_as_here(const std::function<Dataset(const InputContext&)>& make, int steps,
                      CoordinatorOptions options = {}) {
    ParameterServerStrategy strategy(cluster.resolver());
    ClusterCoordinator coordinator(strategy, options);
    const PerWorkerIterator iterator = coordinator.create_per_worker_dataset(make).iterator();
    const Function step([](Iterator& elements) {
      const Nest element = elements.get_next();
      return Nest::tuple({element, current_worker_index()});
    });
    std::vector<RemoteValue> results;
    for (int i = 0; i < steps; ++i) results.push_back(coordinator.schedule(step, iterator));
    coordinator.join();
    std::map<std::int64_t, Elements> drawn;
    for (const RemoteValue& result : results) {
      const Nest value = result.fetch();
      drawn[value.items()[1].tensor().item<std::int64_t>()].insert(text_of(value.items()[0]));
    }
    for (const auto& [worker, elements] : drawn) {
      Elements here;
      Iterator local =
          make({.num_input_pipelines = 2, .input_pipeline_id = worker, .num_replicas_in_sync = 1})
              .iterator();
      while (here.size() < elements.size()) here.insert(text_of(local.get_next()));
      EXPECT_EQ(elements, here) << "of worker " << worker;
    }
    traces = coordinator.statistics().dataset_traces;
  }

  const std::string file = ::testing::TempDir() + "variable_lengths_" +
                           ::testing::UnitTest::GetInstance()->current_test_info()->name();
  TestCluster cluster{{.workers = 2,
                       .ps = 1,
                       .command = {"/proc/self/exe", "server"},
                       .data_dirs = {::testing::TempDir()}}};
  std::uint64_t traces = 0;
  bool coordinator_runs = false;
};

// The error said "make elements of one shape before map()", which is impossible for text.
TEST_F(VariableLengths, WorkersDrawWhatOneProcessDraws) {
  expect_as_here([&](const InputContext& input) { return text(input); }, 60);
  EXPECT_GT(traces, 20U) << "two functions of many lengths, on two workers";
}

TEST_F(VariableLengths, AFunctionInsideADatasetFunctionIsTracedToo) {
  const auto make = [&](const InputContext& input) {
    return lines(input).repeat().interleave(
        [](const at::Tensor& tokens) {
          return Dataset::from_tensors(tokens).map([](const at::Tensor& x) { return x.sort(); });
        },
        {.cycle_length = 2});
  };
  expect_as_here(make, 40);
  EXPECT_GT(traces, 5U);
}

TEST_F(VariableLengths, AStepThatRunsHereDrawsTheSame) {
  const auto make = [&](const InputContext& input) { return text(input); };
  expect_as_here(make, 20, {.run_eagerly = true});
}

TEST_F(VariableLengths, MoreShapesThanTheOptionAllowsAreAnErrorThatNamesThem) {
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy, {.max_traces_per_dataset_function = 2});
  const auto make = [&](const InputContext& input) {
    return lines(input)
        .map(Function([](const at::Tensor& x) { return x + 1; }, {.name = "shifted"}))
        .ignore_errors()  // must not hide the error, which is not an error of the data
        .repeat()
        .padded_batch(1, {.padded_shapes = Nest::list({std::int64_t{16}})});
  };
  const PerWorkerIterator iterator = coordinator.create_per_worker_dataset(make).iterator();
  const Function step([](Iterator& elements) { return elements.next<at::Tensor>(); });
  try {
    for (int i = 0; i < 200; ++i) coordinator.schedule(step, iterator);
    coordinator.join();
    FAIL() << "no bound";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("at most 2 more shapes for 'shifted'"), HasSubstr("got int64["),
                      HasSubstr("after int64["), HasSubstr("padded_batch"),
                      HasSubstr("max_traces_per_dataset_function"), HasSubstr("worker:")));
  }
}

TEST_F(VariableLengths, TheFunctionsOwnErrorIsThatOfItsElement) {
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  const auto make = [&](const InputContext& input) {
    return lines(input)
        .map([](const at::Tensor& x) {
          COHORT_CHECK(x.size(0) != 5, ErrorCode::out_of_range, "no line of five words");
          return x + 1;
        })
        .repeat();
  };
  const PerWorkerIterator iterator = coordinator.create_per_worker_dataset(make).iterator();
  const Function step([](Iterator& elements) { return elements.next<at::Tensor>(); });
  try {
    for (int i = 0; i < 40; ++i) coordinator.schedule(step, iterator);
    coordinator.join();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << "not the end of the data";
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no line of five words"), HasSubstr("element")));
  }
}

// The worker is killed while its pipeline waits for this thread, which traces for it.
TEST_F(VariableLengths, AWorkerThatIsKilledWhileItWaitsComesBackWithEveryProgram) {
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  int kills = 0;
  std::multiset<std::int64_t> traced;  // lengths traced for worker 1's dataset
  const auto make = [&](const InputContext& input) {
    const bool is_second = input.input_pipeline_id == 1;
    return lines(input)
        .map([&, is_second](const at::Tensor& x) {
          const std::int64_t length = x.size(0);
          if (is_second && function::Trace::current() != nullptr) traced.insert(length);
          const bool must_kill = is_second && length == 6 && kills == 0 && coordinator_runs;
          if (must_kill) {
            ++kills;
            cluster.kill("worker:1");
            cluster.restart("worker:1");
          }
          return x + 1;
        })
        .repeat()
        .padded_batch(1, {.padded_shapes = Nest::list({std::int64_t{16}})});
  };
  const PerWorkerIterator iterator = coordinator.create_per_worker_dataset(make).iterator();
  coordinator_runs = true;
  const Function step([](Iterator& elements) {
    return std::make_tuple(elements.next<at::Tensor>(), current_worker_index());
  });
  std::vector<RemoteValue> results;
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  const auto closures_of_second = [&] { return coordinator.statistics().closures[1]; };
  while ((kills == 0 || closures_of_second() < 40) && !deadline.has_expired()) {
    for (int i = 0; i < 10; ++i) results.push_back(coordinator.schedule(step, iterator));
    coordinator.join();
  }
  EXPECT_EQ(kills, 1);
  EXPECT_GE(closures_of_second(), 40U) << "it came back and went on";
  for (const RemoteValue& result : results) EXPECT_TRUE(result.is_ready());
  for (const std::int64_t length : traced)
    EXPECT_EQ(traced.count(length), 2U) << "once each, two passes: length " << length;
}

// Auto-sharding splits one dataset; the functions of its shards are traced for each shape too.
TEST_F(VariableLengths, EveryLineComesOnceInEachEpoch) {
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  const Function doubled([](const at::Tensor& tokens) { return tokens * 2; });
  const Dataset data = batches(Dataset::text_line(StringTensor({1}, {file}))
                                   .map(Function::registered("variable_lengths.tokens")),
                               doubled);
  const Function step([](Iterator& it) { return numbers_of(it.next<at::Tensor>()); });
  Orders first, second;
  const EpochResult result = coordinator.run_epoch(
      step, data, {.on_step = [&](const EpochStep& one) { note(one, first); }});
  expect_all_once(first);
  EXPECT_EQ(result.examples, 40U);
  const std::uint64_t traces_of_first = coordinator.statistics().dataset_traces;
  EXPECT_GT(traces_of_first, 5U);
  EXPECT_LE(traces_of_first, 11U) << "each length once for both workers, not once for each";
  coordinator.run_epoch(step, data, {.on_step = [&](const EpochStep& one) { note(one, second); }});
  expect_all_once(second);
  EXPECT_NE(first, second) << "each epoch is shuffled differently";
  EXPECT_EQ(coordinator.statistics().dataset_traces, traces_of_first) << "all are known by then";
}

// Worker 1 is killed while its pipeline waits for this thread, which traces for it in run_epoch().
TEST_F(VariableLengths, AWorkerThatIsKilledInAnEpochDrawsItsLinesInTheSameOrder) {
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  Variable sum = strategy.variable("sum", at::zeros({}, at::kLong), {.is_trainable = false});
  bool must_kill = false;
  std::multiset<std::int64_t> traced;  // lengths traced for worker 1's dataset
  const auto make = [&](const InputContext& input) {
    const bool is_second = input.input_pipeline_id == 1;
    return batches(lines(input), Function([&, is_second](const at::Tensor& tokens) {
                     const bool is_traced = function::Trace::current() != nullptr;
                     if (is_second && is_traced) traced.insert(tokens.size(0));
                     if (is_second && traced.size() == 6 && std::exchange(must_kill, false)) {
                       cluster.kill("worker:1");
                       cluster.restart("worker:1");
                     }
                     return tokens * 2;
                   }));
  };
  const Function step([&](Iterator& it) {
    const at::Tensor numbers = numbers_of(it.next<at::Tensor>());
    sum.assign_add(numbers.sum());
    return numbers;
  });
  const auto order_of = [&](bool with_a_kill) {
    Orders orders;
    const PerWorkerDataset data = coordinator.create_per_worker_dataset(make);
    must_kill = with_a_kill;
    traced.clear();
    coordinator.run_epoch(step, data,
                          {.on_step = [&](const EpochStep& one) { note(one, orders); }});
    EXPECT_FALSE(must_kill) << "nothing was traced for the worker";
    for (const std::int64_t length : traced)
      EXPECT_EQ(traced.count(length), 2U) << "once each, two passes: length " << length;
    return orders;
  };
  const Orders undisturbed = order_of(false);
  expect_all_once(undisturbed);
  EXPECT_EQ(order_of(true), undisturbed);
  EXPECT_GT(coordinator.statistics().retries, 0U) << "the kill met no step";
  EXPECT_EQ(sum.read().item<std::int64_t>(), 2 * 40 * 39 / 2) << "updates count once";
}

TEST_F(VariableLengths, AnEpochThatRunsHereHasEveryLineOnce) {
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy, {.run_eagerly = true});
  const Function doubled([](const at::Tensor& tokens) { return tokens * 2; });
  const Function step([](Iterator& it) { return numbers_of(it.next<at::Tensor>()); });
  Orders orders;
  coordinator.run_epoch(step, coordinator.create_per_worker_dataset([&](const InputContext& input) {
    return batches(lines(input), doubled);
  }),
                        {.on_step = [&](const EpochStep& one) { note(one, orders); }});
  expect_all_once(orders);
}

// When the epoch is abandoned, pipelines of its workers wait for programs, or begin to wait later.
TEST_F(VariableLengths, AnEpochThatIsGivenUpLeavesNoWorkerWaiting) {
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  const Function doubled([](const at::Tensor& tokens) { return tokens * 2; });
  const auto make = [&](const InputContext& input) { return batches(lines(input), doubled); };
  const Function step([](Iterator& it) { return numbers_of(it.next<at::Tensor>()); });
  for (int i = 0; i < 3; ++i) {
    Epoch epoch = coordinator.begin_epoch(step, coordinator.create_per_worker_dataset(make));
    EXPECT_TRUE(epoch.try_next());
  }
  coordinator.join();
  Orders orders;
  coordinator.run_epoch(step, coordinator.create_per_worker_dataset(make),
                        {.on_step = [&](const EpochStep& one) { note(one, orders); }});
  expect_all_once(orders);
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "server") {
    return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
      return cohort::Server(cohort::TfConfigResolver()).join();
    });
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
