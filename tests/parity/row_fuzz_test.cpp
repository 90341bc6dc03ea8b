// SPDX-License-Identifier: Apache-2.0
// Random programs over rows, on 1 to 4 servers: variables with dense and with sparse gradients have
// the bits of whole ones in this process, and a table by key those of a map of rows. With one
// lookup in a step, a sparse gradient has the bits of the dense one; those of several are added one
// row after the other, as LibTorch does, and not one sum to the other.
//
//   COHORT_FUZZ_PROGRAMS=1000 build/dev/tests/row_fuzz_test    # a long run
//   COHORT_FUZZ_SEED=17 build/dev/tests/row_fuzz_test          # one program
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/fuzz_range.h"
#include "cohort/variable/initializer_recipe.h"
#include "cohort/variable/state_walk.h"

namespace cohort::parity {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr std::uint64_t kSeed = 11;
constexpr int kServersMax = 4;
constexpr std::int64_t kKeys = 24;

using MakeOptimizer = std::function<Optimizer(const Variable&, bool is_lazy)>;
struct Rule {
  const char* name;
  MakeOptimizer make;
};
const std::vector<Rule>& rules() {
  static const std::vector<Rule> kRules = {
      {"sgd",
       [](const Variable& v, bool is_lazy) -> Optimizer {
         return SGD({v}, {.learning_rate = 0.3, .lazy_rows = is_lazy, .name = "rows"});
       }},
      {"nesterov",
       [](const Variable& v, bool is_lazy) -> Optimizer {
         return SGD({v}, {.learning_rate = 0.3,
                          .momentum = 0.7,
                          .nesterov = true,
                          .weight_decay = 0.01,
                          .lazy_rows = is_lazy,
                          .name = "rows"});
       }},
      {"adagrad",
       [](const Variable& v, bool is_lazy) -> Optimizer {
         return Adagrad(
             {v}, {.learning_rate = 0.3, .lr_decay = 0.1, .lazy_rows = is_lazy, .name = "rows"});
       }},
      {"rmsprop",
       [](const Variable& v, bool is_lazy) -> Optimizer {
         return RMSprop({v}, {.learning_rate = 0.1,
                              .momentum = 0.5,
                              .centered = true,
                              .lazy_rows = is_lazy,
                              .name = "rows"});
       }},
      {"adam",
       [](const Variable& v, bool is_lazy) -> Optimizer {
         return Adam({v}, {.learning_rate = 0.1, .lazy_rows = is_lazy, .name = "rows"});
       }},
      {"adamw", [](const Variable& v, bool is_lazy) -> Optimizer {
         return AdamW(
             {v}, {.learning_rate = 0.1, .amsgrad = true, .lazy_rows = is_lazy, .name = "rows"});
       }}};
  return kRules;
}

struct RowStep {
  // A step that is scheduled, or in run(); the tables' states go to other numbers of servers; the
  // rows of some keys are erased; the table is dropped, and a new one has its name.
  enum class Kind { schedule, run, move, erase, renew } kind = Kind::schedule;
  std::array<at::Tensor, 2> places = {};  // of two lookups among the keys; one may be empty
  std::uint64_t chunk_bytes = 0;
};

struct RowProgram {
  std::string name;  // of its table
  const Rule* rule = nullptr;
  at::ScalarType dtype = at::kFloat;
  std::int64_t width = 1;
  std::int64_t min_count = 1;
  bool has_two_lookups = false;
  at::Tensor keys;  // int64 [kKeys], distinct
  std::vector<RowStep> steps;

  static RowProgram random(std::uint64_t seed);
  std::string text() const {
    return std::string(rule->name) + ", width " + std::to_string(width) + ", min_count " +
           std::to_string(min_count) + (dtype == at::kFloat ? ", float32" : ", float64") +
           (has_two_lookups ? ", two lookups" : ", one lookup");
  }
  EmbeddingTableOptions options() const {
    return {.dim = width, .dtype = dtype, .initializer = initializer(), .min_count = min_count};
  }
  static Initializer initializer() { return Initializer::random_normal(0, 0.5); }
  at::Tensor first_rows() const {
    const at::Tensor rows = torch::empty({kKeys, width}, dtype);
    InitializerRecipe::fill_rows(initializer(), rows, {keys.data_ptr<std::int64_t>(), kKeys}, name,
                                 kSeed);
    return rows;
  }
};

RowProgram RowProgram::random(std::uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15U + 1);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  RowProgram program{.name = "program" + std::to_string(seed)};
  program.rule =
      &rules()[static_cast<std::size_t>(below(static_cast<std::int64_t>(rules().size())))];
  program.dtype = below(3) == 0 ? at::kDouble : at::kFloat;
  program.width = std::array<std::int64_t, 5>{1, 2, 3, 8, 17}[static_cast<std::size_t>(below(5))];
  program.min_count = below(2) == 0 ? 1 : 1 + below(3);
  program.has_two_lookups = below(2) == 0;
  std::set<std::int64_t> keys{std::numeric_limits<std::int64_t>::max(),
                              std::numeric_limits<std::int64_t>::min() + 1, 0, -1};
  while (keys.size() < kKeys)
    keys.insert(below(2) == 0 ? below(100) : static_cast<std::int64_t>(random() | 1));
  program.keys = torch::tensor(std::vector<std::int64_t>(keys.begin(), keys.end()), torch::kLong);
  for (std::int64_t i = 4 + below(6); i > 0; --i) {
    RowStep step;
    const std::int64_t kind = below(9);
    step.kind = kind < 4   ? RowStep::Kind::schedule
                : kind < 6 ? RowStep::Kind::run
                : kind < 7 ? RowStep::Kind::move
                : kind < 8 ? RowStep::Kind::erase
                           : RowStep::Kind::renew;
    step.chunk_bytes = std::uint64_t{1} << (4 * below(6));
    const std::int64_t used = 1 + below(kKeys);  // few keys come often
    for (at::Tensor& places : step.places) {
      const bool is_matrix = below(2) == 0;
      const std::int64_t count = below(4) == 0 ? 0 : 1 + below(9);
      std::vector<std::int64_t> numbers(static_cast<std::size_t>(is_matrix ? 2 * count : count));
      for (std::int64_t& number : numbers) number = below(used);
      places = torch::tensor(numbers, torch::kLong);
      if (is_matrix) places = places.view({2, count});
    }
    if (!program.has_two_lookups) step.places[1] = torch::empty({0}, torch::kLong);
    program.steps.push_back(step);
  }
  return program;
}

// The loss of the rows of two lookups; its gradient depends on each row.
at::Tensor loss_of(const std::function<at::Tensor(const at::Tensor&)>& look_up,
                   const at::Tensor& one, const at::Tensor& two) {
  const at::Tensor loss = look_up(one).sigmoid().sum();
  return loss + look_up(two).mul(3).sin().sum();
}

// Rows in this process, which those of the servers must equal.
class PlainRows {
 public:
  explicit PlainRows(const RowProgram& program)
      : program_(program),
        dense_(local_variable("dense", program.first_rows())),
        sparse_(local_variable("sparse", program.first_rows())),
        dense_optimizer_(program.rule->make(dense_, false)),
        sparse_optimizer_(program.rule->make(sparse_, false)) {
    renew();
  }

  // A table without any updates; the variables go on.
  void renew() {
    rows_.emplace(local_variable("rows", program_.first_rows()));
    rows_optimizer_.emplace(program_.rule->make(*rows_, true));
    updates_.clear();
    has_row_.clear();
  }
  // All rules have zeros as their first slots.
  void erase(const at::Tensor& places) {
    const at::Tensor all = places.reshape({-1});
    VariableRecord state = whole_state({&*rows_, 1}, {})[0];
    state.values[0] = copy_of(state.values[0]);
    state.values[0].tensor.index_copy_(0, all, program_.first_rows().index_select(0, all));
    for (internal::OptimizerSlots& slots : state.values[0].slots)
      for (at::Tensor& slot : slots.tensors)
        if (slot.dim() > 0) slot.index_fill_(0, all, 0);
    import_state(*rows_, state);
    for (std::int64_t i = 0; i < all.numel(); ++i) {
      has_row_.erase(all[i].item<std::int64_t>());
      updates_.erase(all[i].item<std::int64_t>());
    }
  }
  Tensors step(const RowStep& step) {
    dense_optimizer_.apply_gradients({{gradient_of(dense_, step, false), dense_}});
    Tensors losses{loss_};
    sparse_optimizer_.apply_gradients({{gradient_of(sparse_, step, true), sparse_}});
    losses.push_back(loss_);
    const at::Tensor of_rows = gradient_of(*rows_, step, false);
    losses.push_back(loss_);
    std::set<std::int64_t> used;
    for (const at::Tensor& places : step.places)
      for (std::int64_t i = 0; i < places.numel(); ++i)
        used.insert(places.reshape({-1})[i].item<std::int64_t>());
    std::vector<std::int64_t> admitted;
    for (const std::int64_t place : used)
      if (has_row_.contains(place) || ++updates_[place] >= program_.min_count)
        admitted.push_back(place);
    has_row_.insert(admitted.begin(), admitted.end());
    const at::Tensor places = torch::tensor(admitted, torch::kLong);
    const at::Tensor sparse = torch::sparse_coo_tensor(
        places.unsqueeze(0), of_rows.index_select(0, places), of_rows.sizes());
    rows_optimizer_->apply_gradients({{sparse, *rows_}});
    return losses;
  }
  at::Tensor dense() const { return dense_.read(); }
  at::Tensor sparse() const { return sparse_.read(); }
  at::Tensor rows() const { return rows_->read(); }
  std::int64_t size() const { return static_cast<std::int64_t>(has_row_.size()); }

 private:
  at::Tensor gradient_of(const Variable& variable, const RowStep& step, bool is_sparse) {
    const at::Tensor value = variable.read().detach().requires_grad_();
    const at::Tensor loss = loss_of(
        [&](const at::Tensor& places) {
          return torch::embedding(value, places, /*padding_idx=*/-1, false, is_sparse);
        },
        step.places[0], step.places[1]);
    loss_ = loss.detach();
    return torch::autograd::grad({loss}, {value})[0];
  }

  const RowProgram& program_;
  const Variable dense_, sparse_;
  const Optimizer dense_optimizer_, sparse_optimizer_;
  std::optional<Variable> rows_;
  std::optional<Optimizer> rows_optimizer_;
  std::map<std::int64_t, std::int64_t> updates_;
  std::set<std::int64_t> has_row_;
  at::Tensor loss_;
};

struct Cluster {
  explicit Cluster(int servers)
      : tasks({.workers = 1, .ps = servers, .command = {COHORT_COMMAND, "server"}}),
        strategy(tasks.resolver(),
                 {.cluster = {.seed = kSeed}, .partitioner = FixedShardsPartitioner(servers)}),
        coordinator(strategy) {}
  testing::TestCluster tasks;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
};

// A program's state on servers.
class RemoteRows {
 public:
  RemoteRows(Cluster& cluster, const RowProgram& program)
      : cluster_(cluster),
        program_(program),
        dense_(cluster.strategy.variable(program.name + "/dense", program.first_rows())),
        sparse_(cluster.strategy.variable(program.name + "/sparse", program.first_rows())),
        dense_optimizer_(program.rule->make(dense_, false)),
        sparse_optimizer_(program.rule->make(sparse_, false)) {
    renew();
  }

  void renew() {
    function_.reset();
    table_optimizer_.reset();
    table_.reset();
    table_.emplace(cluster_.strategy.embedding_table(program_.name, program_.options()));
    table_optimizer_.emplace(program_.rule->make(table_->variable(), true));
    function_.emplace([this](at::Tensor one, at::Tensor two, at::Tensor first, at::Tensor second) {
      return step(one, two, first, second);
    });
  }
  Tensors step(const RowStep& step) {
    const at::Tensor &one = step.places[0], &two = step.places[1];
    at::Tensor losses;
    if (step.kind == RowStep::Kind::run) {
      losses = cluster_.strategy.run(
          [&] { return this->step(one, two, keys_at(one), keys_at(two)); })[0];
    } else {
      losses = cluster_.coordinator.schedule(*function_, one, two, keys_at(one), keys_at(two))
                   .fetch()
                   .tensor();
    }
    cluster_.coordinator.join();
    return losses.unbind();
  }
  void erase(const at::Tensor& places) const { table_->erase(keys_at(places)); }
  std::vector<VariableRecord> state(std::uint64_t chunk_bytes) const {
    std::vector<VariableRecord> records;
    export_state({&table_->variable(), 1}, {.chunk_bytes = chunk_bytes},
                 [&](std::size_t, VariableRecord record) { records.push_back(std::move(record)); });
    return records;
  }
  void take(const std::vector<VariableRecord>& state) const {
    for (const VariableRecord& record : state) import_state(table_->variable(), record);
  }
  at::Tensor dense() const { return dense_.read(); }
  at::Tensor sparse() const { return sparse_.read(); }
  at::Tensor rows() const { return table_->lookup(program_.keys); }
  std::int64_t size() const { return table_->size(); }

 private:
  at::Tensor keys_at(const at::Tensor& places) const {
    return program_.keys.index_select(0, places.reshape({-1})).view(places.sizes());
  }
  at::Tensor step(const at::Tensor& one, const at::Tensor& two, const at::Tensor& first,
                  const at::Tensor& second) const {
    const auto train = [](const Optimizer& optimizer, const at::Tensor& loss) {
      optimizer.minimize(loss);
      return loss.detach();
    };
    // A product reads the whole value, so that the gradient is dense.
    const at::Tensor whole = dense_.tensor().mul(1);
    const at::Tensor dense = train(
        dense_optimizer_,
        loss_of([&](const at::Tensor& ids) { return torch::embedding(whole, ids); }, one, two));
    const auto rows_of = [&](const at::Tensor& ids) {
      return torch::embedding(sparse_.tensor(), ids, /*padding_idx=*/-1, false, /*sparse=*/true);
    };
    const at::Tensor sparse = train(sparse_optimizer_, loss_of(rows_of, one, two));
    const at::Tensor table =
        train(*table_optimizer_,
              loss_of([&](const at::Tensor& keys) { return table_->lookup(keys); }, first, second));
    return torch::stack({dense, sparse, table});
  }

  Cluster& cluster_;
  const RowProgram& program_;
  const Variable dense_, sparse_;
  const Optimizer dense_optimizer_, sparse_optimizer_;
  std::optional<EmbeddingTable> table_;
  std::optional<Optimizer> table_optimizer_;
  std::optional<Function> function_;
};

class RowFuzz : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);  // as on a worker
    for (int servers = 1; servers <= kServersMax; ++servers)
      clusters.push_back(std::make_unique<Cluster>(servers));
  }
  // The state of each number of servers goes to the next one.
  static void move(std::vector<std::unique_ptr<RemoteRows>>& all, std::uint64_t chunk_bytes) {
    std::vector<std::vector<VariableRecord>> states;
    for (const auto& each : all) states.push_back(each->state(chunk_bytes));
    for (std::size_t i = 0; i < all.size(); ++i) all[(i + 1) % all.size()]->take(states[i]);
  }
  void run(const RowProgram& program) {
    PlainRows plain(program);
    std::vector<std::unique_ptr<RemoteRows>> all;
    for (const auto& cluster : clusters)
      all.push_back(std::make_unique<RemoteRows>(*cluster, program));
    for (const RowStep& step : program.steps) {
      SCOPED_TRACE("step " + std::to_string(&step - program.steps.data()) + " of kind " +
                   std::to_string(static_cast<int>(step.kind)));
      ++steps_[step.kind];
      if (step.kind == RowStep::Kind::move) {
        move(all, step.chunk_bytes);
      } else if (step.kind == RowStep::Kind::renew) {
        plain.renew();
        for (const auto& each : all) each->renew();
      } else if (step.kind == RowStep::Kind::erase) {
        plain.erase(step.places[0]);
        for (const auto& each : all) each->erase(step.places[0]);
      } else {
        const Tensors expected = plain.step(step);
        for (const auto& each : all) {
          const Tensors losses = each->step(step);
          for (std::size_t i = 0; i < expected.size(); ++i)
            EXPECT_TRUE(losses.at(i).equal(expected[i])) << "loss " << i;
        }
      }
      for (std::size_t i = 0; i < all.size(); ++i) {
        SCOPED_TRACE(std::to_string(i + 1) + " servers");
        EXPECT_TRUE(all[i]->dense().equal(plain.dense())) << "dense gradient";
        EXPECT_TRUE(all[i]->sparse().equal(plain.sparse())) << "sparse gradient";
        EXPECT_TRUE(all[i]->rows().equal(plain.rows())) << "table";
        EXPECT_EQ(all[i]->size(), plain.size());
      }
      EXPECT_TRUE(program.has_two_lookups || plain.sparse().equal(plain.dense()));
      if (HasFailure()) return;
    }
  }

  std::vector<std::unique_ptr<Cluster>> clusters;
  std::map<RowStep::Kind, int> steps_;
};

TEST_F(RowFuzz, RowsOnServersHaveTheBitsOfRowsHere) {
  const testing::FuzzRange range = testing::fuzz_range(40);
  for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    const RowProgram program = RowProgram::random(seed);
    SCOPED_TRACE("COHORT_FUZZ_SEED=" + std::to_string(seed) + ": " + program.text());
    run(program);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_TRUE(range.count < 40 || steps_.size() == 5) << "a kind of step never came";
}

}  // namespace
}  // namespace cohort::parity
