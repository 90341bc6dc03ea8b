// SPDX-License-Identifier: Apache-2.0
// Variables whose rows are on several servers have the numbers of whole ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <string>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/state_walk.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::TestCluster;
using testing::throws_error;

constexpr std::int64_t kRows = 1'003;
constexpr std::int64_t kWidth = 4;

at::Tensor table_of(std::int64_t rows) {
  return torch::linspace(-1, 1, rows * kWidth).view({rows, kWidth});
}
at::Tensor ids_of(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step));
  return torch::randint(kRows, {2, 9}, torch::kLong);
}

// A step over two tables, one of which is looked up twice, a dense matrix and an average.
struct Step {
  using Make = std::function<Optimizer(const std::vector<Variable>&)>;

  Variable users, items, dense, mean;
  Optimizer optimizer;

  Step(const std::function<Variable(const std::string&, at::Tensor, bool)>& variable,
       const Make& make)
      : users(variable("users", table_of(kRows), true)),
        items(variable("items", table_of(kRows), true)),
        dense(variable("dense", table_of(5), true)),
        mean(variable("mean", torch::zeros({3}), false)),
        optimizer(make({users, items, dense})) {}

  at::Tensor run(const at::Tensor& ids, bool is_sparse) const {
    const at::Tensor user =
        torch::embedding(users.tensor(), ids.select(0, 0), /*padding_idx=*/-1, false, is_sparse);
    const at::Tensor item = torch::embedding(items.tensor(), ids.select(0, 1));
    const at::Tensor again = torch::embedding(items.tensor(), ids.select(0, 0));
    const at::Tensor x = user.mul(item).add(again).mm(dense.tensor().t()).sigmoid();
    const at::Tensor loss = x.square().sum();
    optimizer.minimize(loss);
    mean.assign_add(x.detach().mean(0).slice(0, 0, 3));
    mean.scatter_add(torch::tensor({2, 0, 2}, torch::kLong), x.detach().sum(1).slice(0, 0, 3));
    return torch::cat({loss.detach().view({1}), mean.read()});
  }
  std::vector<Variable> variables() const { return {users, items, dense, mean}; }
};

class ShardedVariables : public ::testing::Test {
 protected:
  // Trains on servers and here, and compares all bits after each step.
  void expect_same(const std::string& prefix, const ParameterServerOptions& options,
                   const Step::Make& make, bool is_sparse) {
    SCOPED_TRACE(prefix);
    ParameterServerStrategy strategy(cluster.resolver(), options);
    ClusterCoordinator coordinator(strategy);
    const Step there(
        [&](const std::string& name, at::Tensor value, bool is_trainable) {
          return strategy.variable(prefix + name, value, {.is_trainable = is_trainable});
        },
        make);
    const Step here(
        [&](const std::string& name, at::Tensor value, bool is_trainable) {
          return local_variable(prefix + name, value, is_trainable);
        },
        make);
    const Function step([&](at::Tensor ids) { return there.run(ids, is_sparse); });
    for (int i = 0; i < 4; ++i) {
      const at::Tensor expected = here.run(ids_of(i), is_sparse);
      EXPECT_TRUE(torch::equal(coordinator.schedule(step, ids_of(i)).fetch().tensor(), expected));
      coordinator.join();
      for (std::size_t k = 0; k < there.variables().size(); ++k) {
        EXPECT_TRUE(torch::equal(there.variables()[k].read(), here.variables()[k].read()))
            << there.variables()[k].name() << " after step " << i;
      }
    }
  }

  TestCluster cluster{{.workers = 1, .ps = 2, .command = {COHORT_COMMAND, "server"}}};
};

TEST_F(ShardedVariables, TrainAsWholeOnes) {
  const std::pair<const char*, Step::Make> optimizers[] = {
      {"adagrad", [](const auto& v) -> Optimizer { return Adagrad(v, {.learning_rate = 0.25}); }},
      {"momentum",
       [](const auto& v) -> Optimizer { return SGD(v, {.learning_rate = 0.25, .momentum = 0.5}); }},
      {"lazy adam", [](const auto& v) -> Optimizer {
         return Adam(v, {.learning_rate = 0.25, .lazy_rows = true});
       }}};
  for (const std::int64_t shards : {1, 2, 3, 5}) {
    for (const auto& [name, make] : optimizers) {
      expect_same(std::string(name) + " in " + std::to_string(shards) + " shards, ",
                  {.partitioner = FixedShardsPartitioner(shards)}, make, shards % 2 == 0);
    }
  }
}

TEST_F(ShardedVariables, MoveOnlyTheRowsOfAStep) {
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner(3)});
  ClusterCoordinator coordinator(strategy);
  const Variable table = strategy.variable("table", table_of(kRows));
  EXPECT_THAT(strategy.home()->servers_of(table), ElementsAre(0, 1, 0));
  const Adagrad optimizer({table}, {.learning_rate = 0.25});
  const Function step([&](at::Tensor ids) {
    optimizer.minimize(torch::embedding(table.tensor(), ids).square().sum());
  });
  coordinator.schedule(step, torch::tensor({0, 1002, 500, 0}, torch::kLong));
  coordinator.join();
  const std::uint64_t row = kWidth * sizeof(float);
  EXPECT_EQ(coordinator.statistics().pulled_bytes, 3 * row);
  EXPECT_EQ(coordinator.statistics().pushed_bytes, 3 * (row + sizeof(std::int64_t)));
}

TEST_F(ShardedVariables, HaveTheInitialValuesOfWholeOnes) {
  const TensorSpec spec{at::kFloat, {{kRows, kWidth}}};
  std::vector<at::Tensor> values;
  for (const std::int64_t shards : {1, 4}) {
    ParameterServerStrategy strategy(
        cluster.resolver(),
        {.cluster = {.seed = 7}, .partitioner = FixedShardsPartitioner(shards)});
    values.push_back(strategy.variable("table", spec, Initializer::random_normal(0, 1)).read());
  }
  EXPECT_TRUE(torch::equal(values[0], values[1]));
}

// The slots of three shards go to two, and training goes on with the same bits.
TEST_F(ShardedVariables, TheirStateGoesToOtherNumbersOfShards) {
  const auto train = [&](ParameterServerStrategy& strategy, const Variable& table, int steps) {
    ClusterCoordinator coordinator(strategy);
    const Adam optimizer({table}, {.learning_rate = 0.25, .lazy_rows = true});
    const Function step([&](at::Tensor ids) {
      optimizer.minimize(torch::embedding(table.tensor(), ids).square().sum());
    });
    for (int i = 0; i < steps; ++i) {
      coordinator.schedule(step, ids_of(i).flatten());
      coordinator.join();
    }
  };
  std::vector<VariableRecord> records;
  at::Tensor expected;
  {
    ParameterServerStrategy strategy(cluster.resolver(),
                                     {.partitioner = FixedShardsPartitioner(3)});
    const Variable table = strategy.variable("table", table_of(kRows));
    train(strategy, table, 3);
    // Chunks that fit no shard evenly.
    table.impl()->home()->export_state(
        {&table, 1}, {.chunk_bytes = 100 * kWidth * sizeof(float)},
        [&](std::size_t, VariableRecord record) { records.push_back(std::move(record)); });
    train(strategy, table, 1);
    expected = table.read();
  }
  EXPECT_GT(records.size(), 3U);
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner(2)});
  const Variable table = strategy.variable("table", torch::zeros({kRows, kWidth}));
  VariableRecord whole = records.front();
  whole.first_row = 0;
  const auto joined = [&](const auto& tensor_of) {
    std::vector<at::Tensor> parts;
    for (const VariableRecord& record : records) parts.push_back(tensor_of(record.values[0]));
    return parts.front().dim() == 0 ? parts.front() : torch::cat(parts);
  };
  whole.values[0].tensor = joined([](const auto& value) { return value.tensor; });
  for (std::size_t i = 0; i < whole.values[0].slots.at(0).tensors.size(); ++i) {
    whole.values[0].slots[0].tensors[i] =
        joined([i](const auto& value) { return value.slots.at(0).tensors[i]; });
  }
  EXPECT_EQ(whole.values[0].tensor.size(0), kRows);
  table.impl()->home()->import_state(table, whole);
  train(strategy, table, 1);
  EXPECT_TRUE(torch::equal(table.read(), expected));
}

TEST_F(ShardedVariables, APartitionerThatDividesOtherwiseIsRefused) {
  using Shards = std::vector<std::int64_t>;
  for (const Shards& shards : {Shards{}, Shards{0, 1}, Shards{2, 2}, Shards{2}, Shards{-1, 1}}) {
    ParameterServerStrategy strategy(cluster.resolver(),
                                     {.partitioner = [&](const TensorSpec&) { return shards; }});
    EXPECT_THAT([&] { strategy.variable("table", table_of(8)); },
                throws_error(ErrorCode::invalid_argument, "for variable 'table' float32[8, 4]"));
    const Variable scalar = strategy.variable("scalar", torch::ones({}));
    EXPECT_THAT(strategy.home()->servers_of(scalar), ElementsAre(0));
  }
}

TEST_F(ShardedVariables, EachShardIsAVariable) {
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner(3)});
  const Variable whole = strategy.variable("table", table_of(8));
  const ShardedVariable table(whole);
  ASSERT_EQ(table.shards().size(), 3U);
  EXPECT_THAT(table.offsets(), ElementsAre(0, 3, 6));
  EXPECT_TRUE(torch::equal(table.shards()[1].read(), table_of(8).narrow(0, 3, 3)));
  EXPECT_EQ(table.shards()[1], ShardedVariable(whole).shards()[1]);
  table.shards()[2].assign(torch::ones({2, kWidth}));
  EXPECT_TRUE(torch::equal(whole.read().narrow(0, 6, 2), torch::ones({2, kWidth})));
  EXPECT_TRUE(torch::equal(table[-1], torch::ones({kWidth})));
  EXPECT_TRUE(torch::equal(table.slice(6, 1, -2),
                           torch::stack({torch::ones({kWidth}), table_of(8)[4], table_of(8)[2]})));
  const at::Tensor ids = torch::tensor({7, 0, 5, 7}, torch::kInt);
  EXPECT_TRUE(torch::equal(table.sparse_read(ids), whole.read().index_select(0, ids)));
  EXPECT_TRUE(torch::equal(embedding_lookup(whole, ids), whole.read().index_select(0, ids)));
  EXPECT_THAT([&] { ShardedVariable("other", {table.shards()[0]}); },
              throws_error(ErrorCode::invalid_argument, "which is one of 'table'"));
  const Variable beside =
      strategy.variable("beside", torch::ones({4}), {.colocate_with = table.shards()[1]});
  EXPECT_THAT(strategy.home()->servers_of(beside), ElementsAre(1));
}

// A shard keeps the whole variable; after the last one the servers drop all.
TEST_F(ShardedVariables, AShardKeepsItsVariable) {
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner(2)});
  const auto variables_of = [&](const char* task) { return cluster.health(task).variables; };
  std::optional<Variable> shard;
  shard = ShardedVariable(strategy.variable("table", table_of(8))).shards()[1];
  const Variable other = strategy.variable("other", torch::zeros({}));  // looks for unused ones
  EXPECT_TRUE(torch::equal(shard->read(), table_of(8).narrow(0, 4, 4)));
  EXPECT_EQ(variables_of("ps:1"), 1);
  shard.reset();
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while (variables_of("ps:1") > 0) ASSERT_FALSE(deadline.has_expired());
  EXPECT_EQ(variables_of("ps:0"), 1);
}

TEST_F(ShardedVariables, AStepUsesTheWholeVariable) {
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner(2)});
  const Variable whole = strategy.variable("table", table_of(8));
  const Variable shard = ShardedVariable(whole).shards()[0];
  for (const bool runs_eagerly : {false, true}) {
    ClusterCoordinator coordinator(strategy, {.run_eagerly = runs_eagerly});
    const auto refused = [&](const std::function<void()>& body) {
      const Function step(body);
      EXPECT_THAT(
          [&] {
            coordinator.schedule(step);
            coordinator.join();
          },
          throws_error(ErrorCode::failed_precondition, "got its shard 'table/part_0'"));
    };
    refused([&] { shard.read().sum(); });
    refused([&] { shard.assign(torch::zeros({4, kWidth})); });
  }
  EXPECT_TRUE(torch::equal(whole.read(), table_of(8)));
}

// The lookups of a step move the rows that they use, and their gradients.
TEST_F(ShardedVariables, LookupsOfAStepTrainTheRows) {
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner(3)});
  ClusterCoordinator coordinator(strategy);
  const Variable table = strategy.variable("table", table_of(kRows));
  const Variable local = local_variable("table", table_of(kRows));
  const SGD optimizer({table}, {.learning_rate = 0.25});
  const SGD local_optimizer({local}, {.learning_rate = 0.25});
  const at::Tensor ids = torch::tensor({{900, 3}, {3, 400}}, torch::kLong);
  const Function step(
      [&](at::Tensor in) { optimizer.minimize(embedding_lookup(table, in, 0.5).square().sum()); });
  coordinator.schedule(step, ids);
  coordinator.join();
  local_optimizer.minimize(embedding_lookup(local, ids, 0.5).square().sum());
  EXPECT_TRUE(torch::equal(table.read(), local.read()));
  EXPECT_EQ(coordinator.statistics().pulled_bytes, 3 * kWidth * sizeof(float));
}

TEST_F(ShardedVariables, GoToTheServerWithTheFewestBytes) {
  ParameterServerStrategy strategy(
      cluster.resolver(),
      {.partitioner = FixedShardsPartitioner(2), .placement = VariablePlacement::fewest_bytes});
  const auto servers_of = [&](const Variable& variable) {
    return strategy.home()->servers_of(variable);
  };
  const Variable whole = strategy.variable("whole", torch::zeros({}));
  EXPECT_THAT(servers_of(whole), ElementsAre(0));
  const Variable pair = strategy.variable("pair", torch::zeros({3, 100}));
  EXPECT_THAT(servers_of(pair), ElementsAre(1, 0));  // 800 bytes on 1, 404 on 0
  EXPECT_THAT(servers_of(strategy.variable("next", torch::zeros({2}))), ElementsAre(0, 0));
  const Variable beside =
      strategy.variable("beside", torch::zeros({500}), {.colocate_with = whole});
  EXPECT_THAT(servers_of(beside), ElementsAre(0));
  EXPECT_THAT(servers_of(strategy.variable("last", torch::zeros({2}))), ElementsAre(1, 1));
}

// Regression: an integer variable was trainable unless its options said no, and so refused.
TEST_F(ShardedVariables, IntegersAreNotTrainable) {
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner(2)});
  const Variable counts = strategy.variable("counts", torch::zeros({4}, torch::kLong));
  EXPECT_FALSE(counts.is_trainable());
  const TensorSpec spec{at::kLong, {{4}}};
  EXPECT_FALSE(strategy.variable("ones", spec, Initializer::ones()).is_trainable());
  EXPECT_TRUE(strategy.variable("w", torch::ones({4})).is_trainable());
}

TEST_F(ShardedVariables, AnInitializerMakesOneShardAfterTheOther) {
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner(3)});
  std::vector<std::int64_t> begins;
  const auto rows_of = [&](const TensorSpec& whole, RowRange rows) {
    begins.push_back(rows.begin);
    return table_of(whole.sizes->front()).narrow(0, rows.begin, rows.end - rows.begin);
  };
  const Variable table =
      strategy.variable("table", {at::kFloat, {{8, kWidth}}}, Initializer::function(rows_of));
  EXPECT_THAT(begins, ElementsAre(0, 3, 6));
  EXPECT_TRUE(torch::equal(table.read(), table_of(8)));
}

// The most memory that this process has had, in MiB.
std::int64_t peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) >> 10;
  return 0;
}

// 512 MiB on the servers, of which the coordinator has the rows of a step.
TEST_F(ShardedVariables, TheCoordinatorNeverHoldsALargeTable) {
  constexpr std::int64_t kManyRows = std::int64_t{1} << 23;
  const TensorSpec spec{at::kFloat, {{kManyRows, 16}}};
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner(4)});
  ClusterCoordinator coordinator(strategy);
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins again
  const std::int64_t before = peak_mib();
  const Variable table = strategy.variable("table", spec, Initializer::constant(0.5));
  const SGD optimizer({table}, {.learning_rate = 0.25});
  const Function step([&](at::Tensor ids) {
    const at::Tensor rows = torch::embedding(table.tensor(), ids, -1, false, /*sparse=*/true);
    optimizer.minimize(rows.sum());
    return rows.detach().sum();
  });
  const at::Tensor ids = torch::tensor({kManyRows - 1, std::int64_t{5}}, torch::kLong);
  EXPECT_EQ(coordinator.schedule(step, ids).fetch().tensor().item<double>(), 16.0);
  EXPECT_TRUE(torch::equal(embedding_lookup(table, ids), torch::full({2, 16}, 0.25)));
  EXPECT_TRUE(torch::equal(ShardedVariable(table)[6], torch::full({16}, 0.5)));
  EXPECT_LT(peak_mib() - before, 128);
}

TEST_F(ShardedVariables, ACachingScopeReadsEachVariableOnce) {
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  const Variable w = strategy.variable("w", torch::zeros({2}));
  {
    const CacheVariableReadsScope scope;
    EXPECT_THAT([] { CacheVariableReadsScope inner; },
                throws_error(ErrorCode::invalid_argument, "inside another one"));
    EXPECT_TRUE(torch::equal(w.read(), torch::zeros({2})));
    w.assign(torch::ones({2}));
    w.read().fill_(7);  // a copy of the kept value
    EXPECT_TRUE(torch::equal(w.read(), torch::zeros({2})));
    // A value from outside would be a constant of the program.
    const Function now([&] { return w.read(); });
    EXPECT_TRUE(torch::equal(coordinator.schedule(now).fetch().tensor(), torch::ones({2})));
  }
  EXPECT_TRUE(torch::equal(w.read(), torch::ones({2})));
  const Function step([&] {
    const CacheVariableReadsScope scope;
    const at::Tensor before = w.read();
    w.assign_add(torch::ones({2}));
    return before + w.read();
  });
  for (int i = 1; i < 4; ++i) {
    const at::Tensor twice = coordinator.schedule(step).fetch().tensor();
    EXPECT_TRUE(torch::equal(twice, torch::full({2}, 2.0 * i)));
  }
}

}  // namespace
}  // namespace cohort
