// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/stored_table.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "cohort/optimizer/optimizer.h"
#include "cohort/parameter_server/parameter_store.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/initializer_recipe.h"

namespace cohort::parameter_server {
namespace {

using Eviction = rpc::TableSpec::Eviction;
using Kind = internal::Effect::Kind;
using testing::throws_error;

constexpr std::uint64_t kSeed = 7;

rpc::VariableSpec table_spec(rpc::TableSpec table = {}, std::int64_t width = 2,
                             const Initializer& initializer = Initializer::zeros()) {
  const auto [kind, first, second] = InitializerRecipe::of(initializer);
  return {.id = 1,
          .name = "users",
          .spec = {at::kFloat, {{-1, width}}},
          .initial =
              rpc::InitialValue{
                  .kind = kind, .first = first, .second = second, .seed = kSeed, .name = "users"},
          .table = table};
}

at::Tensor keys_of(const std::vector<std::int64_t>& keys) { return at::tensor(keys, at::kLong); }

// Valid hyperparameters of a rule, none of which is zero where it need not be.
std::vector<double> hyper_of(const variable::UpdateRule& rule) {
  std::vector<double> hyper(rule.hyperparameter_names().size(), 0.5);
  hyper[0] = 0.125;
  return hyper;
}

internal::Effect step_of(std::string_view rule, const at::Tensor& keys, const at::Tensor& gradient,
                         std::vector<double> hyper) {
  internal::Effect effect = internal::apply_effect({rule, rule, true}, std::move(hyper), gradient);
  effect.row_ids = keys;
  return effect;
}

// A small language: update() adds -1 to the rows of some keys with sgd, value() is the first number
// of a key's row.
class StoredTableTest : public ::testing::Test {
 protected:
  void make(rpc::TableSpec options) { table.emplace(table_spec(options)); }
  void update(const std::vector<std::int64_t>& keys) {
    const auto rule = &optimizer::update_rule_of("sgd");
    const auto count = static_cast<std::int64_t>(keys.size());
    table->apply(table->reserve(
        step_of("sgd", keys_of(keys), at::ones({count, 2}), {/*learning_rate=*/1, 0}), rule));
  }
  float value(std::int64_t key) { return table->rows(keys_of({key})).value[0][0].item<float>(); }
  std::uint64_t size() const { return table->use().rows; }
  // Without a use of a row.
  std::set<std::int64_t> keys() const {
    const at::Tensor all = table->export_state({.variable = 1}, false).table->keys;
    return {all.data_ptr<std::int64_t>(), all.data_ptr<std::int64_t>() + all.numel()};
  }

  std::optional<StoredTable> table{table_spec()};
};

TEST_F(StoredTableTest, AKeyReadsItsFirstValueAndGetsARowWithItsFirstUpdate) {
  EXPECT_EQ(value(5), 0);
  EXPECT_EQ(size(), 0U);
  update({5, -9'000'000'000'000'000'000});
  EXPECT_EQ(size(), 2U);
  EXPECT_EQ(value(5), -1);
  EXPECT_EQ(value(-9'000'000'000'000'000'000), -1);
  EXPECT_EQ(value(6), 0);
}

TEST_F(StoredTableTest, AKeyThatComesTwiceIsOneRow) {
  update({3, 8, 3});
  EXPECT_EQ(size(), 2U);
  EXPECT_EQ(value(3), -2);
  const at::Tensor rows = table->rows(keys_of({3, 8, 3, 1})).value;
  EXPECT_TRUE(rows.select(1, 1).equal(at::tensor({-2.F, -1.F, -2.F, 0.F})));
}

TEST_F(StoredTableTest, FirstRowsAreThoseOfAVariable) {
  const Initializer initializer = Initializer::random_normal(0, 1);
  StoredTable random(table_spec({}, 3, initializer));
  const at::Tensor whole = initializer.make({at::kFloat, {{100, 3}}}, "users", kSeed);
  EXPECT_TRUE(
      random.rows(keys_of({99, 0, 42})).value.equal(whole.index_select(0, keys_of({99, 0, 42}))));
}

// The differential test: every rule, many random steps, some keys several times.
TEST(StoredTable, HasTheBitsOfADenseVariable) {
  constexpr std::int64_t kRows = 50, kWidth = 3;
  const Initializer initializer = Initializer::random_normal(0, 1);
  for (const std::string_view name : optimizer::update_rule_names()) {
    const variable::UpdateRule& rule = optimizer::update_rule_of(name);
    StoredTable table(table_spec({}, kWidth, initializer));
    StoredVariable dense("users",
                         initializer.make({at::kFloat, {{kRows, kWidth}}}, "users", kSeed));
    std::mt19937_64 random(11);
    for (int step = 0; step < 30; ++step) {
      std::vector<std::int64_t> ids(1 + random() % 40);
      for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % kRows);
      const at::Tensor gradient = at::randn({static_cast<std::int64_t>(ids.size()), kWidth});
      const internal::Effect effect = step_of(name, keys_of(ids), gradient, hyper_of(rule));
      table.apply(table.reserve(effect, &rule));
      dense.apply(dense.reserve(effect, &rule));
    }
    const at::Tensor all = at::arange(kRows, at::TensorOptions(at::kLong));
    EXPECT_TRUE(table.rows(all).value.equal(dense.rows(all).value)) << name;
    const rpc::StateOfRange state = table.export_state({.variable = 1}, true);
    const rpc::StateOfRange other = dense.export_state({.variable = 1}, true);
    for (std::size_t i = 0; i < state.slots[0].tensors.size(); ++i) {
      const at::Tensor &slot = state.slots[0].tensors[i], &whole = other.slots[0].tensors[i];
      EXPECT_TRUE(slot.equal(slot.dim() == 0 ? whole : whole.index_select(0, state.table->keys)))
          << name << " slot " << i;
    }
  }
}

TEST_F(StoredTableTest, AKeyGetsARowWithUpdateNumberMinCount) {
  make({.min_count = 3});
  update({1, 2});
  update({1});
  EXPECT_EQ(size(), 0U);
  EXPECT_EQ(value(1), 0);
  update({1});
  EXPECT_EQ(size(), 1U);
  EXPECT_EQ(value(1), -1);  // the earlier updates are dropped
  EXPECT_EQ(value(2), 0);
}

TEST_F(StoredTableTest, CountsOfRareKeysDoNotGrowForever) {
  make({.capacity = 100, .min_count = 2});
  std::uint64_t early = 0;
  for (std::int64_t key = 0; key < 200'000; key += 100) {
    std::vector<std::int64_t> batch(100);
    for (std::int64_t i = 0; i < 100; ++i) batch[static_cast<std::size_t>(i)] = key + i;
    update(batch);
    if (key == 20'000) early = table->use().bytes;
  }
  EXPECT_EQ(size(), 0U);
  EXPECT_EQ(table->use().bytes, early);
}

TEST_F(StoredTableTest, ErasedRowsAndCountsBeginAgain) {
  make({.capacity = 4, .min_count = 2});
  for (int i = 0; i < 2; ++i) update({1, 2, 3});
  update({7});
  table->erase(keys_of({2, 3, 3, 7, 99}));
  EXPECT_EQ(keys(), (std::set<std::int64_t>{1}));
  EXPECT_EQ(value(2), 0);
  EXPECT_EQ(table->use().counted, 0U);
  update({7, 2});
  EXPECT_EQ(size(), 1U);
  for (int i = 0; i < 2; ++i) update({4, 5, 6});  // in the rows that are free again
  EXPECT_EQ(size(), 4U);
  EXPECT_EQ(value(6), -1);
  EXPECT_EQ(value(1), -1);
  EXPECT_THAT([&] { table->erase(keys_of({kNoKey})); },
              throws_error(ErrorCode::invalid_argument, "stands for no key"));
}

TEST_F(StoredTableTest, AnErasedRowLeavesAnUpdateThatWasChecked) {
  const auto* const sgd = &optimizer::update_rule_of("sgd");
  StoredTable::Reserve reserve =
      table->reserve(step_of("sgd", keys_of({1, 2}), at::ones({2, 2}), {1, 0}), sgd);
  table->erase(keys_of({1}));
  table->apply(std::move(reserve));
  EXPECT_EQ(value(1), 0);
  EXPECT_EQ(value(2), -1);
  EXPECT_EQ(size(), 1U);
}

TEST_F(StoredTableTest, WithoutAnEvictionAFullTableRefusesNewKeysAndChangesNothing) {
  make({.capacity = 3});
  update({1, 2});
  EXPECT_THAT(
      [&] {
        update({1, 3, 4});
      },
      throws_error(ErrorCode::resource_exhausted,
                   "expected at most 3 rows on this server in table 'users', got 2 and an "
                   "update of 2 new keys; give EmbeddingTableOptions a larger capacity or an "
                   "eviction"));
  EXPECT_EQ(value(1), -1);
  EXPECT_EQ(size(), 2U);
  update({1, 3});
  EXPECT_EQ(value(1), -2);
  EXPECT_EQ(size(), 3U);
}

TEST_F(StoredTableTest, SaysBeforeItIsFullThatItHasNoEviction) {
  make({.capacity = 10});
  update({1, 2, 3, 4, 5, 6, 7, 8});
  ::testing::internal::CaptureStderr();
  update({9});
  update({10});
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string warning =
      "table 'users' has 9 of at most 10 rows on this server, and no eviction";
  const std::size_t at = log.find(warning);
  EXPECT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find("of at most", at + warning.size()), std::string::npos) << log;
}

TEST_F(StoredTableTest, EvictsTheLeastRecentlyUsedRow) {
  make({.capacity = 3, .eviction = Eviction::least_recently_used});
  update({1});
  update({2});
  update({3});
  value(1);  // a read is a use
  update({4});
  EXPECT_EQ(keys(), (std::set<std::int64_t>{1, 3, 4}));
  update({3});
  update({2});  // begins again with its first value
  EXPECT_EQ(value(2), -1);
  EXPECT_EQ(keys(), (std::set<std::int64_t>{2, 3, 4}));
}

TEST_F(StoredTableTest, EvictsTheLeastFrequentlyUsedRow) {
  make({.capacity = 3, .eviction = Eviction::least_frequently_used});
  for (int i = 0; i < 5; ++i) update({1});
  update({2});
  update({3});
  update({3});
  update({4});
  EXPECT_EQ(keys(), (std::set<std::int64_t>{1, 3, 4}));
}

// Regression: of rows with equal use always those went that come first by their hashes. The others
// stayed forever, and searches among them became hundreds of times longer.
TEST_F(StoredTableTest, EvictsEquallyUsedRowsFromEverywhere) {
  make({.capacity = 1000, .eviction = Eviction::least_frequently_used});
  for (std::int64_t key = 0; key < 10'000; key += 50) {
    std::vector<std::int64_t> batch(50);
    std::iota(batch.begin(), batch.end(), key);
    update(batch);
  }
  const std::set<std::int64_t> left = keys();
  EXPECT_GE(left.size(), 800U);
  EXPECT_LE(std::distance(left.begin(), left.lower_bound(5000)), 50);
}

TEST_F(StoredTableTest, DoesNotEvictTheKeysOfTheUpdate) {
  for (const Eviction eviction : {Eviction::least_recently_used, Eviction::least_frequently_used}) {
    make({.capacity = 4, .eviction = eviction});
    update({1, 2, 3, 4});
    update({1, 2, 5, 6});
    EXPECT_EQ(keys(), (std::set<std::int64_t>{1, 2, 5, 6}));
    EXPECT_EQ(value(1), -2);
    EXPECT_THAT(
        [&] {
          update({1, 2, 3, 7, 8});
        },
        throws_error(ErrorCode::resource_exhausted, "make smaller batches"));
    EXPECT_EQ(keys(), (std::set<std::int64_t>{1, 2, 5, 6}));
  }
}

TEST_F(StoredTableTest, AnEvictedRowBeginsWithFirstSlots) {
  make({.capacity = 1, .eviction = Eviction::least_recently_used});
  const auto& rule = optimizer::update_rule_of("adagrad");
  const auto step = [&](std::int64_t key) {
    const std::vector<double> hyper{0.5, 0.25, 0, 1e-10, 0};
    table->apply(
        table->reserve(step_of("adagrad", keys_of({key}), at::ones({1, 2}), hyper), &rule));
    return value(key);
  };
  const float first = step(1);
  EXPECT_NE(step(1) - first, first);
  EXPECT_EQ(step(2), first);
}

TEST_F(StoredTableTest, RefusesWhatIsNoUpdateOfKeysAndChangesNothing) {
  const auto* const sgd = &optimizer::update_rule_of("sgd");
  const auto refused = [&](internal::Effect effect, ErrorCode code, const std::string& words,
                           const variable::UpdateRule* rule) {
    EXPECT_THAT([&] { table->reserve(effect, rule); }, throws_error(code, words));
    EXPECT_EQ(size(), 0U);
  };
  const at::Tensor keys = keys_of({1, 2});
  refused(step_of("sgd", keys, at::ones({3, 2}), {1, 0}), ErrorCode::invalid_argument,
          "expected a gradient of float32[2, 2], got float32[3, 2] (table 'users')", sgd);
  refused(step_of("sgd", keys, at::ones({2, 2}, at::kDouble), {1, 0}), ErrorCode::invalid_argument,
          "got float64[2, 2]", sgd);
  refused(step_of("sgd", keys.to(at::kInt), at::ones({2, 2}), {1, 0}), ErrorCode::invalid_argument,
          "expected keys int64[n] on the CPU, got int32[2]", sgd);
  refused(step_of("sgd", keys_of({1, kNoKey}), at::ones({2, 2}), {1, 0}),
          ErrorCode::invalid_argument, "which stands for no key, got it at position 1", sgd);
  refused(step_of("sgd", keys, at::ones({2, 2}), {-1, 0}), ErrorCode::invalid_argument,
          "learning_rate", sgd);
  refused(internal::write_effect(Kind::assign, at::ones({2, 2})), ErrorCode::unimplemented,
          "got assign of all rows", nullptr);
  refused(internal::write_effect(Kind::scatter_add, at::ones({2, 2}), keys),
          ErrorCode::unimplemented, "got scatter_add of some rows", nullptr);
  EXPECT_THAT([&] { table->rows(at::ones({2})); },
              throws_error(ErrorCode::invalid_argument, "expected keys int64[n]"));
  EXPECT_THAT([&] { table->snapshot(); }, throws_error(ErrorCode::unimplemented, "look keys up"));
}

TEST_F(StoredTableTest, RefusesAnOptimizerWithAnotherRule) {
  update({1});
  internal::Effect effect = step_of("momentum", keys_of({2}), at::ones({1, 2}), {1, 0.5, 0});
  effect.optimizer = "sgd";
  EXPECT_THAT([&] { table->reserve(effect, &optimizer::update_rule_of("momentum")); },
              throws_error(ErrorCode::already_exists, "expected the rule 'sgd'"));
  EXPECT_EQ(size(), 1U);
}

TEST(StoredTable, RefusesSpecsOfWhichThereIsNoTable) {
  const auto refused = [](rpc::VariableSpec spec, const std::string& words) {
    EXPECT_THAT([&] { StoredTable table(spec); }, throws_error(ErrorCode::invalid_argument, words));
  };
  rpc::VariableSpec spec = table_spec();
  spec.spec = {at::kFloat, {{4, 2}}};
  refused(spec, "expected a table of float32 or float64 rows [?, …]");
  spec.spec = {at::kLong, {{-1, 2}}};
  refused(spec, "got int64[?, 2] (table 'users')");
  refused(table_spec({}, 2, Initializer::glorot_uniform()), "use random_uniform()");
}

// --- state ---------------------------------------------------------------------------------------

// In chunks of so many rows; the second table on another server.
void copy_state(const StoredTable& from, StoredTable& to, std::int64_t chunk) {
  for (std::int64_t first = 0, end = 1; first < end; first += chunk) {
    rpc::StateOfRange state = from.export_state({1, first, chunk}, true);
    end = static_cast<std::int64_t>(state.table->rows_end);
    to.import_state(to.prepare_import(std::move(state)));
  }
}

TEST(StoredTable, ContinuesWithAnImportedStateAsWithItsOwn) {
  for (const std::string_view name : optimizer::update_rule_names()) {
    const variable::UpdateRule& rule = optimizer::update_rule_of(name);
    const auto initial = table_spec({}, 2, Initializer::random_uniform(-1, 1));
    StoredTable first(initial), second(initial);
    const auto step = [&](StoredTable& table, const std::vector<std::int64_t>& keys, double by) {
      const auto count = static_cast<std::int64_t>(keys.size());
      table.apply(table.reserve(
          step_of(name, keys_of(keys), at::full({count, 2}, by, at::kFloat), hyper_of(rule)),
          &rule));
    };
    step(second, {77, 78, 79}, 1);  // is replaced
    step(first, {5, 6, 7, 8, 9}, 0.5);
    step(first, {6, 7}, 0.25);
    copy_state(first, second, /*chunk=*/2);
    EXPECT_EQ(second.use().rows, 5U);
    for (StoredTable* each : {&first, &second}) step(*each, {7, 8, 100}, -0.75);
    const at::Tensor keys = keys_of({5, 6, 7, 8, 9, 77, 100});
    EXPECT_TRUE(first.rows(keys).value.equal(second.rows(keys).value)) << name;
  }
}

// Regression: a row that another optimizer added after an import kept slots of zeros, not the first
// ones of hyperparameters that only the next update tells.
TEST(StoredTable, RowsThatAnotherOptimizerAddsAfterAnImportHaveTheFirstSlots) {
  const variable::UpdateRule& adagrad = optimizer::update_rule_of("adagrad");
  const variable::UpdateRule& momentum = optimizer::update_rule_of("momentum");
  const auto initial = table_spec({}, 2, Initializer::random_uniform(-1, 1));
  StoredTable first(initial), second(initial);
  const auto step = [&](StoredTable& table, const variable::UpdateRule& rule,
                        const std::vector<std::int64_t>& keys) {
    const auto count = static_cast<std::int64_t>(keys.size());
    table.apply(table.reserve(
        step_of(rule.name(), keys_of(keys), at::ones({count, 2}, at::kFloat), hyper_of(rule)),
        &rule));
  };
  for (const auto* rule : {&adagrad, &momentum}) step(first, *rule, {5, 6, 7});
  copy_state(first, second, /*chunk=*/2);
  for (StoredTable* each : {&first, &second}) step(*each, momentum, {6, 100});
  EXPECT_THAT([&] { second.export_state({.variable = 1}, true); },
              testing::throws_error(ErrorCode::failed_precondition, "save after an update"));
  for (StoredTable* each : {&first, &second}) step(*each, adagrad, {6, 100, 101});
  const at::Tensor keys = keys_of({5, 6, 7, 100, 101});
  EXPECT_TRUE(first.rows(keys).value.equal(second.rows(keys).value));
  StoredTable third(initial);
  copy_state(second, third, /*chunk=*/2);
  step(third, momentum, {200});
  for (StoredTable* each : {&first, &third}) step(*each, adagrad, {100, 101, 200});
  step(first, momentum, {200});
  EXPECT_TRUE(first.rows(keys).value.equal(third.rows(keys).value));
}

// In chunks of one part of the index.
TEST_F(StoredTableTest, CountsGoOnInAnotherTable) {
  const rpc::TableSpec three{.capacity = 100'000, .min_count = 3};
  make(three);
  update({1, 2, 3, 1'000'000});
  update({2});
  update({1, 2});
  StoredTable other(table_spec(three));
  copy_state(*table, other, 10);
  for (std::int64_t part = 0, end = 1; part < end; ++part) {
    rpc::StateOfRange counts = table->export_state(
        {.variable = 1, .first_row = part, .rows = 1, .is_of_counts = true}, true);
    end = static_cast<std::int64_t>(counts.table->rows_end);
    EXPECT_GT(end, 1);
    other.import_state(other.prepare_import(std::move(counts)));
  }
  EXPECT_EQ(other.use().rows, 1U);
  EXPECT_EQ(other.use().counted, 3U);
  table.emplace(table_spec(three));
  copy_state(other, *table, 10);
  const auto all = [](bool is_of_counts) {
    return rpc::StateRange{.variable = 1, .is_of_counts = is_of_counts};
  };
  const rpc::StateOfRange counts = other.export_state(all(true), true);
  table->import_state(table->prepare_import(counts));
  update({1, 3});
  EXPECT_EQ(keys(), (std::set<std::int64_t>{1, 2}));
  update({3});
  EXPECT_EQ(keys(), (std::set<std::int64_t>{1, 2, 3}));
  table->import_state(table->prepare_import(counts));  // keys with rows keep them
  EXPECT_EQ(keys(), (std::set<std::int64_t>{1, 2, 3}));
  const auto refused = [&](const std::function<void(rpc::StateOfRange&)>& change,
                           const std::string& words) {
    rpc::StateOfRange wrong = counts;
    wrong.value = wrong.value.clone();
    change(wrong);
    EXPECT_THAT([&] { table->prepare_import(wrong); },
                throws_error(ErrorCode::invalid_argument, words));
  };
  refused([](auto& state) { state.value = state.value.slice(0, 1); },
          "expected counts of int64[3] without slots for table 'users', got int64[2]");
  refused([](auto& state) { state.value[1] = 0; }, "expected counts of 1 to 2147483647");
  refused([](auto& state) { state.value[1] = std::int64_t{1} << 31; }, "got 2147483648");
}

TEST_F(StoredTableTest, RefusesStatesThatDoNotFit) {
  update({1, 2});
  const rpc::StateOfRange good = table->export_state({.variable = 1}, true);
  const auto refused = [&](const std::function<void(rpc::StateOfRange&)>& change, ErrorCode code,
                           const std::string& words) {
    rpc::StateOfRange state = good;
    change(state);
    EXPECT_THAT([&] { table->prepare_import(state); }, throws_error(code, words));
  };
  refused([](auto& state) { state.table.reset(); }, ErrorCode::invalid_argument, "without keys");
  refused(
      [](auto& state) {
        state.table->keys = keys_of({1, 1});
      },
      ErrorCode::invalid_argument, "expected each key once for table 'users', got 1 twice");
  refused(
      [](auto& state) {
        state.value = at::ones({2, 3});
      },
      ErrorCode::invalid_argument, "expected values of float32[2, 2]");
  refused(
      [](auto& state) {
        state.slots[0].tensors.push_back(at::ones({2, 2}));
      },
      ErrorCode::invalid_argument, "expected 0 slots of rule 'sgd'");
  make({.capacity = 1});
  refused([](auto&) {}, ErrorCode::resource_exhausted, "expected at most 1 rows");
}

// --- sizes ---------------------------------------------------------------------------------------

// Ten times more keys than the capacity: the memory is at most 1.5 times that of the rows, and no
// longer grows.
TEST(StoredTable, MemoryStaysFlatWithTenTimesMoreKeysThanItsCapacity) {
  constexpr std::int64_t kCapacity = 100'000, kBatch = 4'000;
  const auto& rule = optimizer::update_rule_of("adagrad");
  for (const Eviction eviction : {Eviction::least_recently_used, Eviction::least_frequently_used}) {
    StoredTable table(table_spec({.capacity = kCapacity, .eviction = eviction}, 16));
    std::uint64_t most = 0, when_full = 0;
    for (std::int64_t first = 0; first < 10 * kCapacity; first += kBatch) {
      const at::Tensor keys = at::arange(first, first + kBatch, at::TensorOptions(at::kLong));
      table.apply(table.reserve(
          step_of("adagrad", keys * 1'000'003, at::ones({kBatch, 16}), {0.1, 0, 0, 1e-10, 0}),
          &rule));
      most = std::max(most, table.use().bytes);
      if (first == 2 * kCapacity) when_full = most;
    }
    const rpc::TableUse use = table.use();
    EXPECT_LE(use.rows, static_cast<std::uint64_t>(kCapacity));
    EXPECT_GE(use.rows, static_cast<std::uint64_t>(kCapacity) * 8 / 10);
    EXPECT_EQ(use.row_bytes, 128U);
    EXPECT_LE(most, kCapacity * use.row_bytes * 3 / 2);
    EXPECT_LE(most, when_full * 101 / 100);
  }
}

TEST(StoredTable, SmallRowsNeedAtMostHalfAsMuchMemoryBeside) {
  StoredTable table(table_spec({}, 16));
  const auto& rule = optimizer::update_rule_of("sgd");
  constexpr std::int64_t kBatch = 10'000;
  for (std::int64_t first = 0; first < 400'000; first += kBatch) {
    const at::Tensor keys = at::arange(first, first + kBatch, at::TensorOptions(at::kLong));
    table.apply(table.reserve(step_of("sgd", keys, at::ones({kBatch, 16}), {0.1, 0}), &rule));
    const rpc::TableUse use = table.use();
    if (use.rows < 200'000) continue;
    EXPECT_LE(use.bytes, use.rows * use.row_bytes * 3 / 2) << use.rows;
  }
}

// Updates, reads, exports and evictions of several threads; thread sanitizer sees races.
TEST(StoredTable, ServesSeveralThreads) {
  StoredTable table(table_spec({.capacity = 200, .eviction = Eviction::least_recently_used}, 2));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(static_cast<std::uint64_t>(thread));
      for (int i = 0; i < 200; ++i) {
        std::vector<std::int64_t> keys(20);
        for (std::int64_t& key : keys) key = static_cast<std::int64_t>(random() % 1000);
        table.apply(table.reserve(step_of("sgd", keys_of(keys), at::ones({20, 2}), {1, 0}),
                                  &optimizer::update_rule_of("sgd")));
        const at::Tensor rows = table.rows(keys_of(keys)).value;
        EXPECT_TRUE(rows.select(1, 0).equal(rows.select(1, 1)));
        if (i % 50 == 0) table.export_state({1, 0, 100}, true);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(table.use().rows, 200U);
}

// --- the store -----------------------------------------------------------------------------------

TEST(ParameterStoreTables, ArePulledPushedAndMovedAsVariablesAre) {
  ParameterStore store, other;
  store.create({table_spec()});
  store.create({table_spec()});  // again: nothing happens
  rpc::PushRequest push{.id = {.number = 1}};
  push.effects.push_back(step_of("sgd", keys_of({-4, 9}), at::ones({2, 2}), {1, 0}));
  push.effects[0].variable = 1;
  EXPECT_TRUE(store.push(push).was_applied);
  EXPECT_FALSE(store.push(push).was_applied);  // applied once
  const rpc::PullRequest pull{.variables = {1}, .row_ids = {keys_of({9, -4, 0})}};
  EXPECT_TRUE(store.pull(pull).values[0].select(1, 0).equal(at::tensor({-1.F, -1.F, 0.F})));
  other.create({table_spec()});
  const rpc::ExportReply reply =
      store.export_state({.ranges = {{.variable = 1}}, .has_applied = true});
  other.import_state({.states = reply.states, .applied = reply.applied});
  EXPECT_TRUE(other.pull(pull).values[0].equal(store.pull(pull).values[0]));
  EXPECT_FALSE(other.push(push).was_applied);
}

TEST(ParameterStoreTables, AFullTableRefusesAPushWithItsOwnRemedy) {
  ParameterStore store;
  store.create({table_spec({.capacity = 1}),
                {.id = 2, .name = "w", .spec = {at::ScalarType::Float, {{2}}}}});
  rpc::PushRequest push{.id = {.number = 1}};
  push.effects.push_back(internal::write_effect(Kind::assign_add, at::ones({2})));
  push.effects[0].variable = 2;
  push.effects.push_back(step_of("sgd", keys_of({1, 2}), at::ones({2, 2}), {1, 0}));
  push.effects[1].variable = 1;
  EXPECT_THAT([&] { store.push(push); },
              throws_error(ErrorCode::resource_exhausted, "in table 'users'"));
  EXPECT_TRUE(store.pull({{2}}).values[0].eq(0).all().item<bool>());
}

}  // namespace
}  // namespace cohort::parameter_server
