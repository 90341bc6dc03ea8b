// SPDX-License-Identifier: Apache-2.0
// A store exports of a cut, bit by bit, the state of that moment, while updates go on.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cohort/optimizer/optimizer.h"
#include "cohort/parameter_server/parameter_store.h"
#include "cohort/parameter_server/store/step_of.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/initializer_recipe.h"

namespace cohort {
namespace {

using parameter_server::step_of;

using testing::throws_error;

constexpr std::uint64_t kCut = 77, kDense = 1, kTable = 2, kNumber = 3;
constexpr std::int64_t kDenseRows = 3000;

// The values and slots of a variable or a table, by row or key.
using RowsByKey = std::map<std::int64_t, std::vector<at::Tensor>>;

class StoreCuts : public ::testing::Test {
 protected:
  void create(std::uint64_t capacity, std::uint32_t min_count) {
    rpc::TableSpec table;
    table.capacity = capacity;
    table.min_count = min_count;
    if (capacity > 0) table.eviction = rpc::TableSpec::Eviction::least_recently_used;
    const auto [kind, first, second] = InitializerRecipe::of(Initializer::random_normal(0, 1));
    store_.create(
        {{.id = kDense, .name = "dense", .spec = {at::kFloat, {{kDenseRows, 8}}}},
         {.id = kTable,
          .name = "table",
          .spec = {at::kFloat, {{-1, 8}}},
          .initial =
              rpc::InitialValue{
                  .kind = kind, .first = first, .second = second, .seed = 5, .name = "table"},
          .table = table},
         {.id = kNumber, .name = "number", .spec = {at::kLong, {{}}}}});
  }
  void push(std::vector<rpc::Effect> effects) {
    store_.push({.id = {.number = ++number_}, .effects = std::move(effects)});
  }
  at::Tensor ids(std::int64_t count, std::int64_t below) {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < count; ++i)
      all.push_back(static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(below)));
    return std::get<0>(at::_unique(at::tensor(all, at::kLong)));
  }
  // Some updates of all kinds.
  void update() {
    const std::string rule = std::vector<std::string>{"adam", "adagrad", "sgd"}.at(random_() % 3);
    const at::Tensor rows = ids(20, kDenseRows), keys = ids(20, 4000);
    std::vector<rpc::Effect> effects{step_of(kDense, "adagrad", at::randn({rows.numel(), 8}), rows),
                                     step_of(kTable, rule, at::randn({keys.numel(), 8}), keys)};
    if (random_() % 8 == 0) effects.push_back(step_of(kDense, "adam", at::randn({kDenseRows, 8})));
    rpc::Effect one =
        internal::write_effect(rpc::Effect::Kind::assign_add, at::ones({}, at::kLong));
    one.variable = kNumber;
    effects.push_back(std::move(one));
    push(std::move(effects));
    if (random_() % 4 == 0) store_.erase({{kTable}, {ids(5, 4000)}});
  }
  void begin(std::uint64_t bytes_max = 1 << 30, std::uint64_t wait_max_ms = 60'000,
             std::uint64_t idle_max_ms = 60'000) {
    store_.take_cut({.cut = kCut,
                     .bytes_max = bytes_max,
                     .wait_max_ms = wait_max_ms,
                     .idle_max_ms = idle_max_ms});
  }
  rpc::StateOfRange export_cut(const rpc::StateRange& range) {
    return store_.export_cut({kCut, {.ranges = {range}}}).states.at(0);
  }
  using Get = std::function<rpc::StateOfRange(const rpc::StateRange&)>;
  rpc::StateOfRange export_now(const rpc::StateRange& range) {
    return store_.export_state({.ranges = {range}}).states.at(0);
  }

  static std::vector<at::Tensor> row_of(const rpc::StateOfRange& state, std::int64_t row) {
    std::vector<at::Tensor> all{state.value[row].clone()};
    for (const auto& slots : state.slots)
      for (const at::Tensor& slot : slots.tensors)
        all.push_back(slot.dim() == 0 ? slot.clone() : slot[row].clone());
    return all;
  }
  RowsByKey dense_by(
      const Get& get, const std::function<void()>& between = [] {}) {
    RowsByKey rows;
    for (std::int64_t first = 0; first < kDenseRows; first += 700) {
      const std::int64_t count = std::min<std::int64_t>(700, kDenseRows - first);
      const rpc::StateOfRange state = get({kDense, first, count});
      for (std::int64_t i = 0; i < count; ++i) rows[first + i] = row_of(state, i);
      between();
    }
    return rows;
  }
  RowsByKey table_by(
      const Get& get, const std::function<void()>& between = [] {}) {
    RowsByKey rows;
    std::int64_t end = 1;
    for (std::int64_t first = 0; first < end; first += 700) {
      const rpc::StateOfRange state = get({kTable, first, 700});
      end = static_cast<std::int64_t>(state.table->rows_end);
      const std::int64_t* const keys = state.table->keys.data_ptr<std::int64_t>();
      for (std::int64_t i = 0; i < state.table->keys.numel(); ++i)
        EXPECT_TRUE(rows.emplace(keys[i], row_of(state, i)).second) << keys[i] << " twice";
      between();
    }
    return rows;
  }
  std::map<std::int64_t, std::int64_t> counts_by(const Get& get) {
    const rpc::StateOfRange state = get({.variable = kTable, .is_of_counts = true});
    std::map<std::int64_t, std::int64_t> counts;
    for (std::int64_t i = 0; i < state.value.numel(); ++i)
      counts[state.table->keys[i].item<std::int64_t>()] = state.value[i].item<std::int64_t>();
    return counts;
  }
  Get now() {
    return [this](const rpc::StateRange& range) { return export_now(range); };
  }
  Get of_cut() {
    return [this](const rpc::StateRange& range) { return export_cut(range); };
  }

  std::mt19937_64 random_{11};
  std::uint64_t number_ = 0;
  ParameterStore store_;
};

void expect_equal_rows(const RowsByKey& one, const RowsByKey& two) {
  ASSERT_EQ(one.size(), two.size());
  for (const auto& [key, tensors] : one) {
    const auto other = two.find(key);
    ASSERT_NE(other, two.end()) << key;
    ASSERT_EQ(tensors.size(), other->second.size()) << key;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      ASSERT_TRUE(at::equal(tensors[i], other->second[i])) << key << ", tensor " << i;
  }
}

// By capacity and min_count of the table.
class StoreCutsOfTables
    : public StoreCuts,
      public ::testing::WithParamInterface<std::pair<std::uint64_t, std::uint32_t>> {};

TEST_P(StoreCutsOfTables, HaveTheBitsOfTheirMoment) {
  create(GetParam().first, GetParam().second);
  for (int i = 0; i < 60; ++i) update();
  const RowsByKey dense = dense_by(now()), table = table_by(now());
  const auto counts = counts_by(now());
  EXPECT_EQ(counts.empty(), GetParam().second == 1);
  begin();
  const auto updates = [this] {
    for (int i = 0; i < 10; ++i) update();
  };
  updates();
  expect_equal_rows(dense_by(of_cut(), updates), dense);
  expect_equal_rows(table_by(of_cut(), updates), table);
  EXPECT_EQ(counts_by(of_cut()), counts);
  EXPECT_EQ(export_cut({.variable = kNumber}).value.item<std::int64_t>(), 60);
  store_.take_cut({.cut = kCut, .is_end = true});
  EXPECT_EQ(store_.cut_bytes(), 0U);
  EXPECT_FALSE(at::equal(dense_by(now()).at(0)[0], dense.at(0)[0]));
}

INSTANTIATE_TEST_SUITE_P(Tables, StoreCutsOfTables,
                         ::testing::Values(std::pair{0, 1}, std::pair{1500, 1}, std::pair{0, 3}));

TEST_F(StoreCuts, WhatWasExportedIsNotKept) {
  create(0, 1);
  begin();
  push({step_of(kDense, "sgd", at::ones({kDenseRows, 8}))});
  const std::uint64_t all = store_.cut_bytes();
  EXPECT_GE(all, kDenseRows * 8 * sizeof(float));
  export_cut({kDense, 0, 1500});
  EXPECT_LE(store_.cut_bytes(), all / 2 + 1024);
  push({step_of(kDense, "sgd", at::ones({kDenseRows, 8}))});
  EXPECT_LE(store_.cut_bytes(), all / 2 + 1024);
  export_cut({kDense, 1500, 1500});
  EXPECT_EQ(store_.cut_bytes(), 0U);
}

TEST_F(StoreCuts, AnUpdateWaitsForMemory) {
  create(0, 1);
  for (int i = 0; i < 10; ++i) update();
  const RowsByKey dense = dense_by(now()), table = table_by(now());
  constexpr std::uint64_t kBytesMax = 20'000;
  begin(kBytesMax);
  std::atomic<bool> has_ended = false;
  std::thread updates([&] {
    for (int i = 0; i < 4; ++i)
      push({step_of(kDense, "sgd", at::ones({kDenseRows, 8})),
            step_of(kTable, "sgd", at::ones({1, 8}), at::zeros({1}, at::kLong))});
    has_ended = true;
  });
  // An update of all rows needs more than there is until most of them are exported.
  const Deadline deadline = Deadline::after(std::chrono::seconds(30));
  while (store_.cut_bytes() + 2048 < kBytesMax && !deadline.has_expired())
    std::this_thread::yield();
  EXPECT_FALSE(has_ended);
  // An update of a table may take a block more.
  const auto check = [&] { EXPECT_LE(store_.cut_bytes(), kBytesMax + 4096); };
  expect_equal_rows(dense_by(of_cut(), check), dense);
  expect_equal_rows(table_by(of_cut(), check), table);
  updates.join();
}

TEST_F(StoreCuts, AnUpdateThatWaitsTooLongEndsTheCut) {
  create(0, 1);
  begin(/*bytes_max=*/1000, /*wait_max_ms=*/1);
  push({step_of(kDense, "sgd", at::ones({kDenseRows, 8}))});
  EXPECT_EQ(store_.counters().pushes_applied, 1U);
  EXPECT_THAT(
      [&] {
        export_cut({kDense, 0, 100});
      },
      throws_error(ErrorCode::aborted, "an update has waited too long for memory"));
}

// The sender of an update that cannot come again may be the one who exports.
TEST_F(StoreCuts, AnUpdateOfTheCoordinatorTakesMoreMemory) {
  create(0, 1);
  const RowsByKey dense = dense_by(now());
  begin(/*bytes_max=*/1000, /*wait_max_ms=*/1);
  store_.push({.effects = {step_of(kDense, "sgd", at::ones({kDenseRows, 8}))}});
  expect_equal_rows(dense_by(of_cut()), dense);
}

TEST_F(StoreCuts, EndByThemselves) {
  create(0, 1);
  begin();
  store_.take_cut({.cut = kCut + 1, .bytes_max = 1, .wait_max_ms = 1, .idle_max_ms = 0});
  EXPECT_THAT(
      [&] {
        export_cut({kDense, 0, 100});
      },
      throws_error(ErrorCode::aborted, "another save has begun"));
  push({step_of(kDense, "sgd", at::ones({kDenseRows, 8}))});  // nobody asks for the second one
  EXPECT_EQ(store_.cut_bytes(), 0U);
  begin();
  rpc::StateOfRange state = export_now({.variable = kDense});
  store_.import_state({.states = {state}});
  EXPECT_THAT(
      [&] {
        export_cut({kDense, 0, 100});
      },
      throws_error(ErrorCode::aborted, "replaced by others"));
}

TEST_F(StoreCuts, GiveEachRowOnceInOrder) {
  create(0, 1);
  begin();
  export_cut({kDense, 0, 100});
  EXPECT_THAT(
      [&] {
        export_cut({kDense, 0, 100});
      },
      throws_error(ErrorCode::failed_precondition, "from row 100 on, got"));
  EXPECT_THAT(
      [&] {
        export_cut({kDense, 200, 100});
      },
      throws_error(ErrorCode::failed_precondition, "from row 100 on, got"));
  EXPECT_THAT([&] { store_.take_cut({.cut = 0}); },
              throws_error(ErrorCode::invalid_argument, "number of a cut"));
}

}  // namespace
}  // namespace cohort
