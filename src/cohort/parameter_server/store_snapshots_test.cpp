// SPDX-License-Identifier: Apache-2.0
// A store answers pulls of a snapshot with the values of that moment, while updates go on.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/optimizer/optimizer.h"
#include "cohort/parameter_server/parameter_store.h"
#include "cohort/parameter_server/store/step_of.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/initializer_recipe.h"

namespace cohort {
namespace {

using testing::throws_error;

class StoreSnapshots : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kDense = 1, kTable = 2, kOther = 3, kSnapshot = 7;
  static constexpr std::int64_t kRows = 100;

  StoreSnapshots() {
    rpc::TableSpec table;
    table.capacity = 50;
    table.min_count = 2;
    table.eviction = rpc::TableSpec::Eviction::least_recently_used;
    const auto [kind, first, second] = InitializerRecipe::of(Initializer::random_normal(0, 1));
    const rpc::InitialValue initial{
        .kind = kind, .first = first, .second = second, .seed = 5, .name = "table"};
    store.create({{.id = kDense, .name = "dense", .spec = {at::kFloat, {{kRows, 8}}}},
                  {.id = kTable,
                   .name = "table",
                   .spec = {at::kFloat, {{-1, 8}}},
                   .initial = initial,
                   .table = table},
                  {.id = kOther, .name = "other", .spec = {at::kFloat, {{}}}}});
  }

  void push(std::vector<rpc::Effect> effects) {
    store.push({.id = {.number = ++number}, .effects = std::move(effects)});
  }
  void apply(std::uint64_t variable, std::string_view rule, at::Tensor gradient,
             at::Tensor ids = {}) {
    push({parameter_server::step_of(variable, rule, std::move(gradient), std::move(ids))});
  }
  // All rows, some rows, and rows of the table, of which it evicts some.
  void update() {
    apply(kDense, "adam", at::randn({kRows, 8}));
    apply(kDense, "adagrad", at::randn({3, 8}), at::tensor({1, 50, 99}, at::kLong));
    for (int i = 0; i < 2; ++i) apply(kTable, "adam", at::randn({30, 8}), next_keys());
  }
  at::Tensor next_keys() {
    first_key += 5;
    return at::arange(first_key, first_key + 30, at::kLong);
  }
  at::Tensor pull(std::uint64_t variable, std::optional<at::Tensor> ids = {},
                  std::uint64_t snapshot = 0) {
    rpc::PullRequest request{.variables = {variable}, .snapshot = snapshot};
    if (ids) request.row_ids = {*ids};
    return store.pull(request).values.at(0);
  }

  const at::Tensor keys = at::arange(0, 400, at::kLong);
  std::int64_t first_key = 0;
  std::uint64_t number = 0;
  ParameterStore store;
};

TEST_F(StoreSnapshots, PullsOfASnapshotGetItsValues) {
  for (int i = 0; i < 3; ++i) update();
  const at::Tensor dense = pull(kDense).clone(), table = pull(kTable, keys).clone();
  const at::Tensor ids = at::tensor({99, 0, 50}, at::kLong);
  store.take_snapshot({.snapshot = kSnapshot, .variables = {kDense, kTable}});
  for (int i = 0; i < 20; ++i) {
    update();
    EXPECT_TRUE(at::equal(pull(kDense, {}, kSnapshot), dense)) << i;
    EXPECT_TRUE(at::equal(pull(kDense, ids, kSnapshot), dense.index_select(0, ids))) << i;
    EXPECT_TRUE(at::equal(pull(kTable, keys, kSnapshot), table)) << i;
  }
  EXPECT_FALSE(at::equal(pull(kDense), dense));
  EXPECT_FALSE(at::equal(pull(kTable, keys), table));
}

// More rows than are copied at once.
TEST_F(StoreSnapshots, ALargeTableIsCopiedWhole) {
  const std::uint64_t large = 9;
  const auto [kind, first, second] = InitializerRecipe::of(Initializer::random_normal(0, 1));
  store.create({{.id = large,
                 .name = "large",
                 .spec = {at::kFloat, {{-1, 2}}},
                 .initial = rpc::InitialValue{.kind = kind, .second = second, .name = "large"},
                 .table = rpc::TableSpec()}});
  const at::Tensor many = at::arange(0, 150'000, at::kLong);
  apply(large, "sgd", at::ones({many.numel(), 2}), many);
  const at::Tensor values = pull(large, many).clone();
  store.take_snapshot({.snapshot = kSnapshot, .variables = {large}});
  apply(large, "sgd", at::ones({many.numel(), 2}), many);
  EXPECT_TRUE(at::equal(pull(large, many, kSnapshot), values));
  EXPECT_FALSE(at::equal(pull(large, many), values));
}

TEST_F(StoreSnapshots, ThereMayBeSeveral) {
  std::vector<at::Tensor> values;
  for (std::uint64_t i = 0; i < 4; ++i) {
    update();
    values.push_back(pull(kDense).clone());
    store.take_snapshot({.snapshot = kSnapshot + i, .variables = {kDense}});
  }
  store.erase({.variables = {kSnapshot + 1}});
  update();
  for (const std::uint64_t i : {0U, 2U, 3U})
    EXPECT_TRUE(at::equal(pull(kDense, {}, kSnapshot + i), values[i])) << i;
}

// A restore, or a variable that is made again, belongs to training.
TEST_F(StoreSnapshots, ItKeepsWhatIsImportedOverOrDropped) {
  update();
  const at::Tensor dense = pull(kDense).clone();
  store.take_snapshot({.snapshot = kSnapshot, .variables = {kDense, kTable}});
  rpc::ImportRequest import;
  import.states.push_back({.range = {.variable = kDense}, .value = at::ones({kRows, 8})});
  store.import_state(import);
  EXPECT_TRUE(at::equal(pull(kDense), at::ones({kRows, 8})));
  EXPECT_TRUE(at::equal(pull(kDense, {}, kSnapshot), dense));
  store.erase({.variables = {kDense}});
  EXPECT_TRUE(at::equal(pull(kDense, {}, kSnapshot), dense));
}

TEST_F(StoreSnapshots, ItsEndFreesItsMemory) {
  update();
  const std::size_t variables = store.num_variables();
  const std::uint64_t bytes = store.value_bytes();
  const c10::weak_intrusive_ptr<at::TensorImpl> value(pull(kDense).getIntrusivePtr());
  store.take_snapshot({.snapshot = kSnapshot, .variables = {kDense, kTable}});
  EXPECT_EQ(store.num_variables(), variables + 2);
  EXPECT_EQ(store.value_bytes(), 2 * bytes - sizeof(float)) << "all but the other variable";
  apply(kDense, "adam", at::randn({kRows, 8}));
  EXPECT_FALSE(value.expired()) << "the snapshot has it";
  store.erase({.variables = {kSnapshot}});
  EXPECT_TRUE(value.expired());
  EXPECT_EQ(store.num_variables(), variables);
  EXPECT_EQ(store.value_bytes(), bytes);
  store.take_snapshot({.snapshot = kSnapshot, .variables = {kDense}});
  store.clear();
  EXPECT_EQ(store.value_bytes(), 0U);
}

TEST_F(StoreSnapshots, WhatItHasNotIsRefused) {
  EXPECT_THAT([&] { pull(kDense, {}, kSnapshot); },
              throws_error(ErrorCode::not_found, "was restarted since; run the evaluation again"));
  store.take_snapshot({.snapshot = kSnapshot, .variables = {kDense}});
  EXPECT_THAT([&] { pull(kOther, {}, kSnapshot); },
              throws_error(ErrorCode::failed_precondition, "a step reads or updates a variable"));
  EXPECT_THAT([&] { store.take_snapshot({.snapshot = kSnapshot, .variables = {kOther}}); },
              throws_error(ErrorCode::already_exists, "that no snapshot has, got 7"));
  EXPECT_THAT([&] { store.take_snapshot({.variables = {kOther}}); },
              throws_error(ErrorCode::already_exists, "a number above 0"));
  EXPECT_THAT([&] { store.take_snapshot({.snapshot = 8, .variables = {99}}); },
              throws_error(ErrorCode::not_found, "got one that is not"));
  EXPECT_THAT([&] { pull(kDense, {}, 8); }, throws_error(ErrorCode::not_found, "got none"));
}

}  // namespace
}  // namespace cohort
