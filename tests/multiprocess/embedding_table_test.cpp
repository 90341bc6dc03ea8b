// SPDX-License-Identifier: Apache-2.0
// Tables of rows by key on parameter servers have the numbers of ordinary variables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/saved_values.h"
#include "cohort/variable/state_walk.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::TestCluster;
using testing::throws_error;

constexpr std::int64_t kRows = 500, kWidth = 4;
constexpr std::uint64_t kSeed = 11;

const Initializer& initializer() {
  static const Initializer kInitializer = Initializer::random_normal(0, 0.5);
  return kInitializer;
}
EmbeddingTableOptions options() { return {.dim = kWidth, .initializer = initializer()}; }
at::Tensor keys_of(const std::vector<std::int64_t>& keys) {
  return torch::tensor(keys, torch::kLong);
}
at::Tensor ids_of(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step));
  return torch::randint(kRows, {2, 9}, torch::kLong);
}

class EmbeddingTables : public ::testing::Test {
 protected:
  ParameterServerOptions with_seed() const { return {.cluster = {.seed = kSeed}}; }
  TestCluster cluster{{.workers = 1, .ps = 2, .command = {COHORT_COMMAND, "server"}}};
};

// A step that looks a table up twice, and uses a dense matrix.
using Lookup = std::function<at::Tensor(const at::Tensor&)>;
at::Tensor train(const Lookup& lookup, const Variable& dense, const Optimizer& optimizer,
                 const at::Tensor& ids) {
  const at::Tensor x = lookup(ids.select(0, 0)).mul(lookup(ids.select(0, 1)).add(1));
  const at::Tensor loss = x.mm(dense.tensor()).sigmoid().square().sum();
  optimizer.minimize(loss);
  return loss.detach();
}

TEST_F(EmbeddingTables, TrainAsVariablesInScheduledStepsAndInRun) {
  using Make = std::function<Optimizer(const std::vector<Variable>&)>;
  const std::pair<const char*, Make> optimizers[] = {
      {"adagrad", [](const auto& v) -> Optimizer { return Adagrad(v, {.learning_rate = 0.25}); }},
      {"adam", [](const auto& v) -> Optimizer {
         return Adam(v, {.learning_rate = 0.25, .lazy_rows = true});
       }}};
  ParameterServerStrategy strategy(cluster.resolver(), with_seed());
  ClusterCoordinator coordinator(strategy);
  for (const bool is_scheduled : {true, false}) {
    for (const auto& [name, make] : optimizers) {
      SCOPED_TRACE(std::string(name) + (is_scheduled ? " scheduled" : " in run"));
      const std::string prefix = std::string(name) + (is_scheduled ? "1/" : "2/");
      const at::Tensor start = torch::linspace(-1, 1, kWidth * 3).view({kWidth, 3});
      const EmbeddingTable table = strategy.embedding_table(prefix + "users", options());
      const Variable dense = strategy.variable(prefix + "dense", start);
      const Optimizer optimizer = make({table.variable(), dense});
      const Variable whole =
          local_variable(prefix + "users", {at::kFloat, {{kRows, kWidth}}}, initializer(), kSeed);
      const Variable own_dense = local_variable("dense", start.clone());
      const Optimizer own = make({whole, own_dense});
      const auto step = [&](at::Tensor ids) {
        return train([&](const at::Tensor& keys) { return table.lookup(keys); }, dense, optimizer,
                     ids);
      };
      const Function traced(step);
      for (int i = 0; i < 5; ++i) {
        const at::Tensor expected = train(
            [&](const at::Tensor& ids) {
              return torch::embedding(whole.tensor(), ids, -1, false, /*sparse=*/true);
            },
            own_dense, own, ids_of(i));
        const at::Tensor loss = is_scheduled
                                    ? coordinator.schedule(traced, ids_of(i)).fetch().tensor()
                                    : strategy.run([&] { return step(ids_of(i)); })[0];
        EXPECT_TRUE(torch::equal(loss, expected)) << "step " << i;
        coordinator.join();
        const at::Tensor all = torch::arange(kRows);
        EXPECT_TRUE(torch::equal(table.lookup(all), whole.read())) << "step " << i;
        EXPECT_TRUE(torch::equal(dense.read(), own_dense.read())) << "step " << i;
      }
      EXPECT_LE(table.size(), 5 * 18);
      EXPECT_GE(table.size(), 60);
    }
  }
}

TEST_F(EmbeddingTables, HaveAnyKeyAndTheSameFirstRowsOnAnyNumberOfServers) {
  const std::vector<std::int64_t> keys{0,
                                       -1,
                                       7,
                                       std::numeric_limits<std::int64_t>::max(),
                                       std::numeric_limits<std::int64_t>::min() + 1,
                                       embedding_key("a user"),
                                       embedding_key("")};
  const at::Tensor wanted = keys_of(keys).view({7, 1});
  at::Tensor first;
  for (const int servers : {1, 2, 3}) {
    TestCluster other{{.workers = 1, .ps = servers, .command = {COHORT_COMMAND, "server"}}};
    ParameterServerStrategy strategy(other.resolver(), with_seed());
    ClusterCoordinator coordinator(strategy);
    const EmbeddingTable table = strategy.embedding_table("users", options());
    const at::Tensor rows = table.lookup(wanted);
    EXPECT_EQ(rows.sizes(), at::IntArrayRef({7, 1, kWidth}));
    if (!first.defined()) first = rows;
    EXPECT_TRUE(torch::equal(rows, first)) << servers;
    // Each key is updated once, by 1.
    const SGD optimizer({table.variable()}, {.learning_rate = 1});
    coordinator.schedule(
        Function([&](at::Tensor all) { optimizer.minimize(table.lookup(all).sum()); }), wanted);
    coordinator.join();
    EXPECT_TRUE(torch::equal(table.lookup(wanted), first - 1)) << servers;
    EXPECT_EQ(table.size(), 7);
    EXPECT_EQ(table.memory().row_bytes, kWidth * 4);
    EXPECT_GE(table.memory().bytes, 7 * kWidth * 4);
  }
}

TEST_F(EmbeddingTables, MoveToAnotherNumberOfServersInRecords) {
  std::vector<VariableRecord> records;
  at::Tensor expected;
  const at::Tensor ids = torch::arange(kRows).mul(1'000'003);
  for (const int servers : {2, 3}) {
    TestCluster other{{.workers = 1, .ps = servers, .command = {COHORT_COMMAND, "server"}}};
    ParameterServerStrategy strategy(other.resolver(), with_seed());
    ClusterCoordinator coordinator(strategy);
    const EmbeddingTable table = strategy.embedding_table("users", options());
    const Adagrad optimizer({table.variable()}, {.learning_rate = 0.5, .name = "rows"});
    const Function step(
        [&](at::Tensor keys) { optimizer.minimize(table.lookup(keys).square().sum()); });
    const bool is_first = records.empty();
    if (is_first) {
      coordinator.schedule(step, ids);
      coordinator.join();
      const Variable variable = table.variable();
      export_state({&variable, 1}, {.chunk_bytes = 1000},
                   [&](std::size_t, VariableRecord record) { records.push_back(record); });
      EXPECT_GE(records.size(), 8U);
    } else {
      for (const VariableRecord& record : records) import_state(table.variable(), record);
      EXPECT_EQ(table.size(), kRows);
    }
    coordinator.schedule(step, ids);
    coordinator.join();
    if (is_first) expected = table.lookup(ids);
    EXPECT_TRUE(torch::equal(table.lookup(ids), expected));
  }
}

TEST_F(EmbeddingTables, ErasedKeysHaveTheirFirstRowsAgain) {
  ParameterServerStrategy strategy(cluster.resolver(), with_seed());
  ClusterCoordinator coordinator(strategy);
  const EmbeddingTable table = strategy.embedding_table("users", options());
  const Adagrad optimizer({table.variable()}, {.learning_rate = 0.5});
  const Function step([&](at::Tensor keys) { optimizer.minimize(table.lookup(keys).sum()); });
  const auto train = [&] {
    coordinator.schedule(step, torch::arange(100));
    coordinator.join();
    return table.lookup(torch::arange(100));
  };
  const at::Tensor first = table.lookup(torch::arange(100)), once = train(), twice = train();
  const at::Tensor gone = torch::tensor({{3, 50}, {99, 3}}, torch::kLong);
  table.erase(gone);
  table.erase(torch::arange(500, 600));
  table.erase(torch::empty({0}, torch::kLong));
  EXPECT_EQ(table.size(), 97);
  const at::Tensor ids = gone.flatten();
  const at::Tensor expected = twice.index_copy(0, ids, first.index_select(0, ids));
  EXPECT_TRUE(torch::equal(table.lookup(torch::arange(100)), expected));
  EXPECT_TRUE(torch::equal(train().index_select(0, ids), once.index_select(0, ids)));
  EXPECT_EQ(table.size(), 100);
  EXPECT_THAT([&] { table.erase(torch::ones({2})); },
              throws_error(ErrorCode::invalid_argument, "[table.erase] expected keys of int64"));
  EXPECT_THAT([&] { table.erase(keys_of({std::numeric_limits<std::int64_t>::min()})); },
              throws_error(ErrorCode::invalid_argument, "stands for no key"));
  const Function erases([&] { table.erase(ids); });
  EXPECT_THAT([&] { coordinator.schedule(erases); },
              throws_error(ErrorCode::failed_precondition, "make it between two steps"));
  EXPECT_THAT([&] { strategy.run([&] { table.erase(ids); }); },
              throws_error(ErrorCode::failed_precondition, "(table 'users')"));
  EXPECT_EQ(table.size(), 100);
}

// The error of a step names the id, the variable and the step.
TEST_F(EmbeddingTables, AnIdThatIsNoRowIsNamed) {
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner(2)});
  ClusterCoordinator coordinator(strategy);
  const Variable rows = strategy.variable("items", torch::zeros({kRows, kWidth}));
  const auto read = [&](at::Tensor ids) { return torch::embedding(rows.tensor(), ids).sum(); };
  const Function step(read, {.name = "rank items"});
  const auto run = [&](std::int64_t id) {
    coordinator.schedule(step, keys_of({7, id}));
    coordinator.join();
  };
  const auto expect_named = [&](std::int64_t id) {
    try {
      run(id);
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      const std::string number = std::to_string(id);
      EXPECT_THAT(error.what(), HasSubstr("of the 500 rows of variable 'items', got " + number));
      EXPECT_THAT(error.what(), HasSubstr("'rank items'"));
    }
  };
  expect_named(-1);  // while it is traced
  run(499);
  expect_named(500);
}

TEST_F(EmbeddingTables, RefuseWhatTheyCannotDo) {
  ParameterServerStrategy strategy(cluster.resolver(), with_seed());
  ClusterCoordinator coordinator(strategy);
  const auto refused = [&](EmbeddingTableOptions wrong, const std::string& words) {
    EXPECT_THAT([&] { strategy.embedding_table("wrong", wrong); },
                throws_error(ErrorCode::invalid_argument, words));
  };
  refused({}, "set EmbeddingTableOptions::dim");
  refused({.dim = 2, .dtype = at::kLong}, "got 2 of int64");
  refused({.dim = 2, .initializer = Initializer::glorot_uniform()}, "use random_uniform()");
  refused({.dim = 2, .capacity = -1}, "expected a capacity of at least 0");
  refused({.dim = 2, .min_count = 0}, "min_count from 1");
  refused({.dim = 2, .eviction = TableEviction::least_recently_used}, "expected a capacity");
  EmbeddingTableOptions small = options();
  small.capacity = 2;
  const EmbeddingTable table = strategy.embedding_table("users", small);
  EXPECT_THAT([&] { strategy.embedding_table("users", small); },
              throws_error(ErrorCode::already_exists, "'users'"));
  EXPECT_THAT([&] { table.lookup(torch::ones({2})); },
              throws_error(ErrorCode::invalid_argument, "expected keys of int64"));
  const at::Tensor none = keys_of({std::numeric_limits<std::int64_t>::min()});
  EXPECT_THAT([&] { table.lookup(none); },
              throws_error(ErrorCode::invalid_argument, "stands for no key"));
  EXPECT_THAT([&] { table.variable().read(); },
              throws_error(ErrorCode::unimplemented, "got table 'users'"));
  const testing::TemporaryFolder folder;
  EXPECT_THAT(
      [&] {
        save_values(folder.file("values"), {{"users", table.variable()}});
      },
      throws_error(ErrorCode::unimplemented, "got table 'users', which has rows by key"));
  const SGD optimizer({table.variable()}, {.learning_rate = 1});
  const Function step([&](at::Tensor keys) { optimizer.minimize(table.lookup(keys).sum()); });
  coordinator.schedule(step, none);
  EXPECT_THAT([&] { coordinator.join(); },
              throws_error(ErrorCode::invalid_argument, "expected keys of table 'users'"));
  const Function late([&](at::Tensor keys) {
    optimizer.minimize(table.lookup(keys).sum());
    return table.lookup(keys).sum();
  });
  EXPECT_THAT([&] { coordinator.schedule(late, keys_of({1})); },
              throws_error(ErrorCode::invalid_argument, "look all keys up first"));
  coordinator.schedule(step, torch::arange(100));
  EXPECT_THAT([&] { coordinator.join(); },
              throws_error(ErrorCode::resource_exhausted, "in table 'users'"));
}

}  // namespace
}  // namespace cohort
