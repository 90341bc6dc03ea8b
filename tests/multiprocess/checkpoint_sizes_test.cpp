// SPDX-License-Identifier: Apache-2.0
// A checkpoint of any number of replicas, workers or servers has the same tensors, bit by bit, when
// it is restored on any other number of them, or in a program without a strategy.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/collective/group.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/variable/state_walk.h"

namespace cohort {
namespace {

using testing::TestCluster;

// `parts`: workers of which each has a share of the slots.
enum class Kind { replicas, workers, parts, servers, shards, none };
struct Place {
  Kind kind;
  int count;
  std::string name() const {
    const char* const kinds[] = {"replicas", "workers", "parts", "servers", "shards", "none"};
    return std::to_string(count) + " " + kinds[static_cast<int>(kind)];
  }
};

// They have a name, since workers that are threads share one count of those without.
Optimizer optimizer_of(const std::string& rule, std::vector<Variable> variables) {
  if (rule == "adam") return Adam(std::move(variables), {.learning_rate = 0.1, .name = "own"});
  if (rule == "adamw") return AdamW(std::move(variables), {.learning_rate = 0.1, .name = "own"});
  if (rule == "adagrad")
    return Adagrad(std::move(variables), {.learning_rate = 0.1, .name = "own"});
  if (rule == "rmsprop")
    return RMSprop(std::move(variables), {.learning_rate = 0.1, .name = "own"});
  return SGD(std::move(variables), {.learning_rate = 0.1, .momentum = 0.9, .name = "own"});
}

// All values and slots of a model, and the number of updates.
struct State {
  std::vector<at::Tensor> tensors;
  std::int64_t iterations = 0;
};

bool are_equal(const State& a, const State& b) {
  if (a.tensors.size() != b.tensors.size() || a.iterations != b.iterations) return false;
  for (std::size_t i = 0; i < a.tensors.size(); ++i)
    if (!at::equal(a.tensors[i], b.tensors[i])) return false;
  return true;
}

class Model {
 public:
  using MakeVariable = std::function<Variable(const std::string&, const at::Tensor&)>;
  Model(const MakeVariable& make, const std::string& rule)
      : weight_(make("model/weight", torch::linspace(-1, 1, 21).view({7, 3}))),
        bias_(make("model/bias", torch::zeros({3}))),
        optimizer_(optimizer_of(rule, {weight_, bias_})) {}

  void step(int number) const {
    const at::Tensor x = torch::sin(torch::arange(14, torch::kFloat).view({2, 7}) + number);
    optimizer_.minimize((x.mm(weight_.tensor()) + bias_.tensor()).sigmoid().square().sum());
  }
  State state() const {
    State state{.iterations = optimizer_.iterations()};
    for (const VariableRecord& record : whole_state(std::vector{weight_, bias_}, {})) {
      state.tensors.push_back(record.values[0].tensor.clone());
      for (const auto& slots : record.values[0].slots)
        for (const at::Tensor& tensor : slots.tensors) state.tensors.push_back(tensor.clone());
    }
    return state;
  }
  const std::vector<Variable> variables() const { return {weight_, bias_}; }

 private:
  const Variable weight_;
  const Variable bias_;
  const Optimizer optimizer_;
};

class CheckpointSizes : public ::testing::TestWithParam<const char*> {
 protected:
  // Trains a model at the place and saves it, or restores it, and returns its state.
  State save(const Place& place, const std::string& path) {
    if (place.kind == Kind::parts) {
      // Shares of slots are no state that can be compared; their updates have the bits of whole
      // ones.
      reads_state_ = false;
      save_in(place, path);
      reads_state_ = true;
      return save_in({Kind::workers, place.count}, folder_.file("whole"));
    }
    return save_in(place, path);
  }
  State save_in(const Place& place, const std::string& path) {
    return in(place, [&](Strategy* strategy, const Model& model, const Checkpoint& checkpoint) {
      for (int i = 0; i < 3; ++i) {
        if (strategy == nullptr) {
          model.step(i);
        } else {
          strategy->run([&] { model.step(i); });
        }
      }
      checkpoint.write(path, 3);
    });
  }
  State restore(const Place& place, const std::string& path) {
    return in(place, [&](Strategy*, const Model&, const Checkpoint& checkpoint) {
      const Restored restored = checkpoint.read(path);
      EXPECT_EQ(restored.step, 3);
      restored.assert_consumed();
    });
  }

  // Each source and each target comes once for each optimizer, in other pairs. With
  // COHORT_ALL_PAIRS=1 in the environment all pairs come, in two minutes.
  static std::vector<std::size_t> targets_of(std::size_t source, std::size_t count) {
    const char* const all = std::getenv("COHORT_ALL_PAIRS");
    std::vector<std::size_t> targets;
    if (all == nullptr || std::string_view(all) != "1") {
      const std::size_t rule = std::string_view(GetParam()).size();
      return {(source * 7 + rule) % count};
    }
    for (std::size_t target = 0; target < count; ++target) targets.push_back(target);
    return targets;
  }

  testing::TemporaryFolder folder_;

 private:
  using Action = std::function<void(Strategy*, const Model&, const Checkpoint&)>;

  State with(Strategy& strategy, const Action& action) {
    const Model model([&](const std::string& name,
                          const at::Tensor& value) { return strategy.variable(name, value); },
                      GetParam());
    action(&strategy, model, Checkpoint(strategy));
    return reads_state_ ? model.state() : State();
  }
  State in(const Place& place, const Action& action) {
    switch (place.kind) {
      case Kind::replicas: {
        MirroredStrategy strategy(testing::cpu_devices(place.count));
        return with(strategy, action);
      }
      case Kind::workers:
      case Kind::parts: {
        const InProcessWorkers workers(place.count);
        const auto states = testing::on_workers<State>(place.count, [&](int rank) {
          MultiWorkerMirroredStrategy strategy(
              workers.group(rank), {.shard_optimizer_state = place.kind == Kind::parts});
          return with(strategy, action);
        });
        for (const State& state : states) EXPECT_TRUE(are_equal(state, states[0])) << "of a worker";
        return states[0];
      }
      case Kind::servers:
      case Kind::shards: {
        ParameterServerOptions options;
        if (place.kind == Kind::shards) options.partitioner = FixedShardsPartitioner(place.count);
        ParameterServerStrategy strategy(cluster(place.count).resolver(), options);
        return with(strategy, action);
      }
      case Kind::none:
        break;
    }
    const Model model([](const std::string& name,
                         const at::Tensor& value) { return local_variable(name, value.clone()); },
                      GetParam());
    Checkpoint checkpoint;
    for (const Variable& each : model.variables()) checkpoint.add(each);
    action(nullptr, model, checkpoint);
    return model.state();
  }
  TestCluster& cluster(int servers) {
    std::unique_ptr<TestCluster>& cluster = clusters_[servers];
    if (cluster == nullptr) {
      cluster = std::make_unique<TestCluster>(testing::TestClusterOptions{
          .workers = 1, .ps = servers, .command = {COHORT_COMMAND, "server"}});
    }
    return *cluster;
  }

  std::map<int, std::unique_ptr<TestCluster>> clusters_;
  bool reads_state_ = true;
};

TEST_P(CheckpointSizes, FitEachOther) {
  std::vector<Place> places{{Kind::none, 1}};
  for (const Kind kind : {Kind::replicas, Kind::workers, Kind::servers, Kind::shards})
    for (const int count : {1, 2, 3}) places.push_back({kind, count});
  for (const int count : {2, 3}) places.push_back({Kind::parts, count});
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Place& from = places[i];
    const std::string path = folder_.file("from " + from.name());
    const State saved = save(from, path);
    EXPECT_GT(saved.tensors.size(), 3U);
    for (const std::size_t target : targets_of(i, places.size())) {
      const Place& to = places[target];
      EXPECT_TRUE(are_equal(restore(to, path), saved)) << from.name() << " to " << to.name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, CheckpointSizes,
                         ::testing::Values("sgd", "adam", "adamw", "adagrad", "rmsprop"));

// Rows, slots and counts of a table go to another number of servers.
TEST(CheckpointOfTables, HasTheirRowsByKey) {
  const testing::TemporaryFolder folder;
  TestCluster two({.workers = 1, .ps = 2, .command = {COHORT_COMMAND, "server"}});
  TestCluster three({.workers = 1, .ps = 3, .command = {COHORT_COMMAND, "server"}});
  const EmbeddingTableOptions options{
      .dim = 4, .initializer = Initializer::random_normal(0, 0.5), .min_count = 2};
  const at::Tensor keys = torch::arange(1000, torch::kLong) * 7919;
  at::Tensor rows;
  const auto step = [&](const EmbeddingTable& table, const Optimizer& optimizer,
                        const at::Tensor& of_keys) {
    optimizer.minimize(table.lookup(of_keys).square().sum());
  };
  at::Tensor after_one_more;
  {
    ParameterServerStrategy strategy(two.resolver(), {.cluster = {.seed = 5}});
    const EmbeddingTable table = strategy.embedding_table("table", options);
    const Adagrad optimizer({table.variable()}, {.learning_rate = 0.1});
    for (int i = 0; i < 3; ++i)
      strategy.run([&] { step(table, optimizer, keys.slice(0, 0, 900)); });
    strategy.run([&] { step(table, optimizer, keys.slice(0, 900)); });  // one of two updates
    Checkpoint(strategy).write(folder.file("c"));
    rows = table.lookup(keys);
    strategy.run([&] { step(table, optimizer, keys); });
    after_one_more = table.lookup(keys);
  }
  ParameterServerStrategy strategy(three.resolver(), {.cluster = {.seed = 5}});
  const EmbeddingTable table = strategy.embedding_table("table", options);
  const Adagrad optimizer({table.variable()}, {.learning_rate = 0.1});
  strategy.run([&] { step(table, optimizer, keys + 1); });  // rows that the restore removes
  Checkpoint(strategy).read(folder.file("c")).assert_consumed();
  EXPECT_TRUE(torch::equal(table.lookup(keys), rows));
  strategy.run([&] { step(table, optimizer, keys); });
  EXPECT_TRUE(torch::equal(table.lookup(keys), after_one_more));
}

// Variables, tables and optimizers that are made after a deferred restore have what was saved.
TEST(CheckpointOfServers, IsRestoredIntoWhatIsMadeLater) {
  const testing::TemporaryFolder folder;
  TestCluster cluster({.workers = 1, .ps = 2, .command = {COHORT_COMMAND, "server"}});
  const at::Tensor keys = torch::arange(100, torch::kLong) * 13;
  ParameterServerOptions options{.cluster = {.seed = 5}};
  options.partitioner = FixedShardsPartitioner(2);
  const auto step = [&](ParameterServerStrategy& strategy, const EmbeddingTable& table,
                        const Variable& weight, const Optimizer& optimizer) {
    strategy.run([&] {
      optimizer.minimize(table.lookup(keys).square().sum() + weight.tensor().square().sum());
    });
  };
  const auto optimizer_of_both = [](const EmbeddingTable& table, const Variable& weight) {
    return Adagrad({table.variable(), weight}, {.learning_rate = 0.1, .name = "both"});
  };
  at::Tensor rows, value;
  {
    ParameterServerStrategy strategy(cluster.resolver(), options);
    const EmbeddingTable table = strategy.embedding_table("table", {.dim = 4});
    const Variable weight = strategy.variable("weight", torch::linspace(-1, 1, 21).view({7, 3}));
    const Optimizer optimizer = optimizer_of_both(table, weight);
    for (int i = 0; i < 2; ++i) step(strategy, table, weight, optimizer);
    Checkpoint(strategy).write(folder.file("c"));
    step(strategy, table, weight, optimizer);
    rows = table.lookup(keys);
    value = weight.read();
  }
  options.partitioner = nullptr;  // whole
  ParameterServerStrategy strategy(cluster.resolver(), options);
  Checkpoint checkpoint(strategy);
  checkpoint.read(folder.file("c"), {.deferred = true});
  const Variable weight = strategy.variable("weight", torch::zeros({7, 3}));
  const EmbeddingTable table = strategy.embedding_table("table", {.dim = 4});
  const Optimizer optimizer = optimizer_of_both(table, weight);
  EXPECT_EQ(optimizer.iterations(), 2);
  EXPECT_NO_THROW(checkpoint.restored().assert_consumed());
  step(strategy, table, weight, optimizer);
  EXPECT_TRUE(torch::equal(table.lookup(keys), rows));
  EXPECT_TRUE(torch::equal(weight.read(), value));
}

}  // namespace
}  // namespace cohort
