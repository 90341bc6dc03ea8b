// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/parameter_store.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "cohort/testing/error_of.h"
#include "cohort/testing/failing_allocator.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/initializer_recipe.h"

namespace cohort {
namespace {

using Kind = rpc::Effect::Kind;

class ParameterStoreTest : public ::testing::Test {
 protected:
  ParameterStoreTest() {
    store.create({{.id = 1, .name = "w", .spec = {at::ScalarType::Float, {{4}}}},
                  {.id = 2, .name = "table", .spec = {at::ScalarType::Float, {{3, 2}}}}});
  }
  static rpc::PushRequest push(std::uint64_t closure, Kind kind, std::vector<at::Tensor> tensors,
                               std::uint64_t variable = 1) {
    rpc::PushRequest request{.id = {.number = closure}};
    request.effects.push_back({.kind = kind, .variable = variable, .tensors = std::move(tensors)});
    if (kind == Kind::apply) {
      request.effects[0].rule = "sgd";
      request.effects[0].optimizer = "sgd";
      request.effects[0].hyper = {0.5, 0};
    }
    return request;
  }
  // Adds 1 to these rows of variable 2.
  static rpc::PushRequest push_rows(std::uint64_t closure, const std::vector<std::int64_t>& ids) {
    const auto count = static_cast<std::int64_t>(ids.size());
    rpc::PushRequest request = push(closure, Kind::scatter_add, {at::ones({count, 2})}, 2);
    request.effects[0].row_ids = at::tensor(ids, at::kLong);
    return request;
  }
  at::Tensor value(std::uint64_t id = 1) { return store.pull({{id}}).values[0]; }
  void expect_value(double expected) {
    EXPECT_TRUE(value().eq(expected).all().item<bool>()) << value();
  }
  // The averages of a worker: the values that it pulled, moved by `momentum` towards `statistic`.
  rpc::PushRequest move(std::uint64_t closure, const rpc::PullReply& pulled,
                        const at::Tensor& statistic, double momentum) {
    const at::Tensor value = pulled.values[0].lerp(statistic, momentum);
    rpc::PushRequest request = push(closure, Kind::merge_average, {value, statistic});
    request.effects[0].hyper = {momentum};
    request.effects[0].version = pulled.versions.at(0);
    return request;
  }
  rpc::PullReply pull_version() { return store.pull({.variables = {1}, .wants_versions = true}); }
  ErrorCode code_of(const rpc::PushRequest& request) {
    return testing::code_of([&] { store.push(request); });
  }
  ParameterStore store;
};

TEST_F(ParameterStoreTest, RequestsOfAnEarlierPlacementAreToldThatVariablesHaveMoved) {
  store.expect_placement(2);
  store.expect_placement(1);  // comes late
  rpc::PushRequest update = push(7, Kind::assign, {at::ones({4})});
  EXPECT_EQ(code_of(update), ErrorCode::aborted);
  EXPECT_THAT([&] { store.pull({.variables = {1}, .placement = 1}); },
              testing::throws_error(ErrorCode::aborted, "variables have moved"));
  update.placement = 2;
  EXPECT_TRUE(store.push(update).was_applied);
  const rpc::PullReply reply = store.pull({.variables = {1}, .placement = 3});
  EXPECT_TRUE(reply.values.at(0).eq(1).all().item<bool>());
}

TEST_F(ParameterStoreTest, VariablesStartAsZeros) { expect_value(0); }

rpc::VariableSpec filled_by(const Initializer& initializer, const TensorSpec& spec) {
  const auto [kind, first, second] = InitializerRecipe::of(initializer);
  return {
      .id = 9,
      .name = "w/part_1",
      .spec = spec,
      .initial = rpc::InitialValue{
          .kind = kind, .first = first, .second = second, .seed = 7, .name = "w", .whole = spec}};
}

TEST(InitialValues, AreBitForBitThoseOfTheInitializer) {
  const std::vector<Initializer> initializers{
      Initializer::constant(0.1), Initializer::random_uniform(-0.3, 0.7),
      Initializer::random_normal(0.5, 0.05), Initializer::glorot_uniform()};
  for (const Initializer& initializer : initializers) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf}) {
      const TensorSpec spec{dtype, {{5, 3}}};
      rpc::VariableSpec variable = filled_by(initializer, spec);
      ParameterStore whole, part;
      whole.create({variable});
      const at::Tensor expected = initializer.make(spec, "w", 7);
      EXPECT_TRUE(whole.pull({{9}}).values[0].equal(expected));
      variable.spec.sizes = {{2, 3}};
      variable.initial->rows = rpc::InitialValue::Rows{.begin = 1, .end = 3};
      part.create({variable});
      EXPECT_TRUE(part.pull({{9}}).values[0].equal(expected.slice(0, 1, 3)));
    }
  }
}

TEST(InitialValues, ThatDoNotFitCreateNoVariable) {
  const TensorSpec spec{at::kFloat, {{5, 3}}};
  rpc::VariableSpec other_spec = filled_by(Initializer::zeros(), spec);
  other_spec.spec.sizes = {{5, 4}};
  rpc::VariableSpec other_kind = filled_by(Initializer::zeros(), spec);
  other_kind.initial->kind = 4;
  rpc::VariableSpec of_integers = filled_by(Initializer::glorot_uniform(), spec);
  of_integers.spec.dtype = of_integers.initial->whole.dtype = at::kLong;
  for (const rpc::VariableSpec& wrong : {other_spec, other_kind, of_integers}) {
    ParameterStore store;
    rpc::VariableSpec good = filled_by(Initializer::zeros(), spec);
    good.id = 1;
    EXPECT_THAT(
        [&] {
          store.create({good, wrong});
        },
        testing::throws_error(ErrorCode::invalid_argument, "expected"));
    EXPECT_THROW(store.pull({{1}}), Error);
  }
}

TEST_F(ParameterStoreTest, AssignsAddsAndSubtracts) {
  store.push(push(0, Kind::assign, {at::full({4}, 5.)}));
  store.push(push(0, Kind::assign_add, {at::full({4}, 2.)}));
  store.push(push(0, Kind::assign_sub, {at::full({4}, 1.)}));
  expect_value(6);
}

// Regression: one such push retired every later closure, so their updates were dropped without an
// error.
TEST_F(ParameterStoreTest, AWatermarkAboveItsClosureIsRefusedAndRetiresNothing) {
  rpc::PushRequest wrong = push(5, Kind::assign_add, {at::ones({4})});
  wrong.low_watermark = 6;
  EXPECT_EQ(code_of(wrong), ErrorCode::data_loss);
  expect_value(0);
  wrong.low_watermark = 5;
  EXPECT_TRUE(store.push(wrong).was_applied);
  expect_value(1);
}

// Regression: a second optimizer used the momentum of the first one.
TEST_F(ParameterStoreTest, EachOptimizerHasItsOwnSlots) {
  const auto step = [&](const char* optimizer) {
    rpc::PushRequest request = push(0, Kind::apply, {at::full({4}, 1.)});
    request.effects[0].rule = "momentum";
    request.effects[0].optimizer = optimizer;
    request.effects[0].hyper = {1, 0.5, 0};
    store.push(request);
  };
  step("a");
  expect_value(-1);
  step("b");
  expect_value(-2);
  step("a");
  expect_value(-3.5);
}

TEST_F(ParameterStoreTest, AppliesARule) {
  store.push(push(1, Kind::apply, {at::full({4}, 2.)}));
  expect_value(-1);
}

TEST_F(ParameterStoreTest, AppliesAClosureOnce) {
  EXPECT_TRUE(store.push(push(9, Kind::assign_add, {at::ones({4})})).was_applied);
  EXPECT_FALSE(store.push(push(9, Kind::assign_add, {at::ones({4})})).was_applied);
  expect_value(1);
  EXPECT_EQ(store.counters().pushes_dropped, 1U);
}

TEST_F(ParameterStoreTest, AppliesEachSegmentOfAClosureOnce) {
  const auto add = [&](std::uint32_t segment, double value) {
    rpc::PushRequest request = push(9, Kind::assign_add, {at::full({4}, value)});
    request.id.segment = segment;
    return store.push(request).was_applied;
  };
  EXPECT_TRUE(add(0, 1));
  // The worker was lost, and another one runs the closure from its start.
  EXPECT_FALSE(add(0, 1));
  EXPECT_TRUE(add(1, 10));
  EXPECT_FALSE(add(1, 10));
  expect_value(11);
}

TEST_F(ParameterStoreTest, EveryUpdateIsAVersion) {
  const std::uint64_t first = pull_version().versions.at(0);
  store.push(push(1, Kind::assign, {at::ones({4})}));
  store.push(push(2, Kind::apply, {at::ones({4})}));
  EXPECT_EQ(pull_version().versions.at(0), first + 2);
  EXPECT_TRUE(store.pull({.variables = {1}}).versions.empty()) << "nobody wants them";
}

TEST_F(ParameterStoreTest, AnAverageThatNobodyElseMovedIsAssigned) {
  store.push(push(0, Kind::assign, {at::full({4}, 1.1)}));
  rpc::PushRequest request = move(1, pull_version(), at::full({4}, 0.7), 0.3);
  store.push(request);
  EXPECT_TRUE(value().equal(request.effects[0].tensors[0]));
}

TEST_F(ParameterStoreTest, AveragesOfTwoWorkersBothCount) {
  store.push(push(0, Kind::assign, {at::full({4}, 8.)}));
  const rpc::PullReply pulled = pull_version();
  store.push(move(1, pulled, at::full({4}, 4.), 0.5));
  expect_value(6);
  store.push(move(2, pulled, at::full({4}, 0.), 0.25));
  expect_value(4.5);
}

TEST_F(ParameterStoreTest, AveragesRefuseWhatDoesNotFit) {
  const rpc::PullReply pulled = pull_version();
  for (const double momentum : {0.0, -0.5, 1.5, std::nan("")}) {
    EXPECT_EQ(code_of(move(0, pulled, at::ones({4}), momentum)), ErrorCode::invalid_argument);
  }
  rpc::PushRequest request = move(0, pulled, at::ones({4}), 0.5);
  request.effects[0].tensors[1] = at::ones({5});
  EXPECT_EQ(code_of(request), ErrorCode::invalid_argument);
  expect_value(0);
}

// Regression: the updates before the wrong one in the push were applied.
TEST_F(ParameterStoreTest, WhatLibTorchDoesNotSubtractIsRefusedBeforeAnyUpdate) {
  store.create({{.id = 3, .name = "mask", .spec = {at::ScalarType::Bool, {{2}}}}});
  const auto request_of = [](Kind kind) {
    rpc::PushRequest request = push(1, Kind::assign_add, {at::ones({4})});
    request.effects.push_back(
        {.kind = kind, .variable = 3, .tensors = {at::zeros({2}, at::kBool)}});
    return request;
  };
  EXPECT_EQ(code_of(request_of(Kind::assign_sub)), ErrorCode::invalid_argument);
  expect_value(0);
  EXPECT_TRUE(store.push(request_of(Kind::assign_add)).was_applied);
  expect_value(1);
}

// Like batch norm on 16 workers, with a counter and a variance that is often near zero.
TEST_F(ParameterStoreTest, SixteenWorkersCountExactlyAndKeepAVariance) {
  constexpr int kWorkers = 16;
  constexpr std::uint64_t kSteps = 200;
  store.create({{.id = 3, .name = "count", .spec = {at::ScalarType::Long, {{}}}}});
  store.push(push(0, Kind::assign, {at::ones({4})}));
  std::atomic<bool> is_negative = false;
  std::vector<std::thread> workers;
  for (std::uint64_t worker = 0; worker < kWorkers; ++worker) {
    workers.emplace_back([&, worker] {
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        const rpc::PullReply pulled = pull_version();
        if (pulled.values[0].lt(0).any().item<bool>()) is_negative = true;
        const double variance = step % 2 == 0 ? 0 : 0.5;
        const std::uint64_t closure = 1 + worker * kSteps + step;
        rpc::PushRequest request = move(closure, pulled, at::full({4}, variance), 0.4);
        request.effects.push_back(
            {.kind = Kind::assign_add, .variable = 3, .tensors = {at::ones({}, at::kLong)}});
        store.push(request);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_FALSE(is_negative);
  EXPECT_EQ(value(3).item<std::int64_t>(), kWorkers * kSteps);
  EXPECT_TRUE(value().ge(0).logical_and(value().le(0.5)).all().item<bool>()) << value();
}

TEST_F(ParameterStoreTest, APushWithoutMemoryForAllOfItChangesNothing) {
  store.create({{.id = 3, .name = "slots", .spec = {at::ScalarType::Float, {{4}}}}});
  rpc::PushRequest request = push(7, Kind::assign_add, {at::ones({4})});
  request.effects.push_back({.kind = Kind::apply,
                             .variable = 3,
                             .rule = "momentum",
                             .optimizer = "momentum_1",
                             .hyper = {0.5, 0.5, 0},
                             .tensors = {at::ones({4})}});
  request.effects.push_back({.kind = Kind::scatter_add,
                             .variable = 2,
                             .row_ids = at::tensor({1}, at::kLong),
                             .tensors = {at::ones({1, 2})}});
  request.effects.push_back({.kind = Kind::assign, .variable = 3, .tensors = {at::ones({4})}});
  request.effects.push_back(request.effects[1]);
  int failures = 0;
  while (true) {
    try {
      const testing::FailingAllocator::After limit(failures);
      EXPECT_TRUE(store.push(request).was_applied);
      break;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.what();
      EXPECT_NE(error.message().find("use more parameter servers"), std::string::npos);
      ++failures;
    }
    for (const std::uint64_t id : {1, 2, 3})
      EXPECT_FALSE(value(id).any().item<bool>()) << id << " after failure " << failures;
  }
  EXPECT_GE(failures, 5) << "memory for each update";
  EXPECT_FALSE(store.push(request).was_applied);
  expect_value(1);
  EXPECT_EQ(value(2).sum().item<float>(), 2);
  EXPECT_TRUE(value(3).eq(1 - 0.75).all().item<bool>()) << "two steps of momentum: " << value(3);
}

TEST_F(ParameterStoreTest, APulledValueNeverChanges) {
  const at::Tensor before = value();
  store.push(push(1, Kind::assign_add, {at::ones({4})}));
  store.push(push(2, Kind::apply, {at::ones({4})}));
  EXPECT_TRUE(before.eq(0).all().item<bool>());
  expect_value(0.5);
}

TEST_F(ParameterStoreTest, ScattersRows) {
  store.push(push_rows(1, {2, 0, 2}));
  EXPECT_TRUE(value(2).sum(1).eq(at::tensor({2.F, 0.F, 4.F})).all().item<bool>());
}

TEST_F(ParameterStoreTest, PullsRowsBesideWholeVariables) {
  store.push(push_rows(1, {2, 0, 2}));
  const rpc::PullRequest pull{
      .variables = {2, 1}, .wants_versions = true, .row_ids = {at::tensor({2, 1, 2}, at::kLong)}};
  const rpc::PullReply reply = store.pull(pull);
  const at::Tensor rows = at::tensor({2.F, 2.F, 0.F, 0.F, 2.F, 2.F}).view({3, 2});
  EXPECT_TRUE(at::equal(reply.values.at(0), rows));
  EXPECT_TRUE(at::equal(reply.values.at(1), at::zeros({4})));
  const at::Tensor narrow = at::tensor({2, 1, 2}, at::kInt);
  EXPECT_TRUE(at::equal(store.pull({.variables = {2}, .row_ids = {narrow}}).values[0], rows));
  store.push(push_rows(2, {2}));
  EXPECT_TRUE(at::equal(reply.values.at(0), rows)) << "they are copies";
  EXPECT_EQ(
      store.pull({.variables = {2}, .row_ids = {at::zeros({0}, at::kLong)}}).values[0].sizes(),
      at::IntArrayRef({0, 2}));
}

TEST_F(ParameterStoreTest, RefusesToPullWhatAreNoRows) {
  const auto pull = [&](std::uint64_t variable, at::Tensor ids) {
    return [=, this] { store.pull({.variables = {variable}, .row_ids = {ids}}); };
  };
  for (const std::int64_t wrong : {-1, 3}) {
    EXPECT_THAT(pull(2, at::tensor({std::int64_t{0}, wrong}, at::kLong)),
                testing::throws_error(ErrorCode::invalid_argument,
                                      "expected indices of the 3 rows of variable 'table', got " +
                                          std::to_string(wrong) + " at position 1"));
  }
  EXPECT_THAT(pull(2, at::zeros({1, 1}, at::kLong)),
              testing::throws_error(ErrorCode::invalid_argument, "int64[n]"));
  EXPECT_THAT(pull(2, at::zeros({1})),
              testing::throws_error(ErrorCode::invalid_argument, "int64[n]"));
}

// Steps of Adam with a gradient of all rows, and then with one of rows 2 and 0.
class RowsOfGradients : public ::testing::Test {
 protected:
  static rpc::PushRequest step(const at::Tensor& gradient, const at::Tensor& row_ids = {}) {
    rpc::PushRequest request;
    request.effects.push_back({.kind = Kind::apply,
                               .variable = 2,
                               .rule = "adam",
                               .optimizer = "adam",
                               .hyper = {0.1, 0.9, 0.999, 1e-8, 0.0},
                               .row_ids = row_ids,
                               .tensors = {gradient}});
    return request;
  }
  enum class Way : std::uint8_t { dense, rows, lazy_rows };
  at::Tensor value_after(Way way) const {
    ParameterStore store;
    store.create({{.id = 2, .name = "table", .spec = {at::ScalarType::Float, {{3, 2}}}}});
    store.push(step(at::full({3, 2}, 0.5F)));
    const at::Tensor before = store.pull({{2}}).values[0];  // so that a reader has the value
    rpc::PushRequest last =
        way == Way::dense ? step(at::zeros({3, 2}).index_copy(0, ids_, rows_)) : step(rows_, ids_);
    last.effects[0].lazy_rows = way == Way::lazy_rows;
    store.push(std::move(last));
    EXPECT_TRUE(at::equal(before, at::full({3, 2}, before[0][0].item<float>())));
    return store.pull({{2}}).values[0];
  }

  const at::Tensor ids_ = at::tensor({2, 0}, at::kLong);
  const at::Tensor rows_ = at::tensor({1.F, 2.F, 3.F, 4.F}).view({2, 2});
};

TEST_F(RowsOfGradients, AreAppliedAsTheDenseGradient) {
  EXPECT_TRUE(at::equal(value_after(Way::rows), value_after(Way::dense)));
}

TEST_F(RowsOfGradients, ChangeTheOtherRowsOnlyIfTheyAreNotLazy) {
  const at::Tensor lazy = value_after(Way::lazy_rows), dense = value_after(Way::dense);
  EXPECT_TRUE(at::equal(lazy.index_select(0, ids_), dense.index_select(0, ids_)));
  EXPECT_FALSE(at::equal(lazy[1], dense[1]));
  EXPECT_NEAR(lazy[1][0].item<float>(), -0.1, 1e-6) << "the first step alone";
}

// Rows in ascending order, each once, take a shorter way.
TEST_F(RowsOfGradients, InAnyOrderChangeTheSameBits) {
  const at::Tensor order = at::tensor({1, 0}, at::kLong);
  const auto value_of = [&](const at::Tensor& ids, const at::Tensor& rows, bool is_lazy) {
    ParameterStore store;
    store.create({{.id = 2, .name = "table", .spec = {at::ScalarType::Float, {{3, 2}}}}});
    store.push(step(at::full({3, 2}, 0.5F)));
    rpc::PushRequest last = step(rows, ids);
    last.effects[0].lazy_rows = is_lazy;
    store.push(last);
    last.effects[0].hyper.pop_back();
    EXPECT_THAT([&] { store.push(last); },
                testing::throws_error(ErrorCode::invalid_argument, "expected 5 hyperparameters"));
    return store.pull({{2}}).values[0];
  };
  for (const bool is_lazy : {false, true}) {
    const at::Tensor ascending =
        value_of(ids_.index_select(0, order), rows_.index_select(0, order), is_lazy);
    EXPECT_TRUE(at::equal(value_of(ids_, rows_, is_lazy), ascending));
  }
}

TEST_F(RowsOfGradients, OfOtherRowsAreRefused) {
  ParameterStore store;
  store.create({{.id = 2, .name = "table", .spec = {at::ScalarType::Float, {{3, 2}}}}});
  EXPECT_THAT(
      [&] {
        store.push(step(rows_, at::tensor({2, 3}, at::kLong)));
      },
      testing::throws_error(ErrorCode::invalid_argument,
                            "[variable.apply] expected indices of the 3 rows of variable 'table', "
                            "got 3 at position 1"));
  EXPECT_THAT([&] { store.push(step(rows_, at::tensor({2}, at::kLong))); },
              testing::throws_error(ErrorCode::invalid_argument, "one for each index"));
  EXPECT_TRUE(at::equal(store.pull({{2}}).values[0], at::zeros({3, 2})));
}

// As variables move: what the first server has applied is not applied again by the second one.
TEST_F(ParameterStoreTest, VariablesMoveWithTheirSlotsAndAppliedPushes) {
  const auto step = [](std::uint64_t closure) {
    rpc::PushRequest request = push(closure, Kind::apply, {at::ones({3, 2})}, 2);
    request.effects[0].rule = request.effects[0].optimizer = "momentum";
    request.effects[0].hyper = {0.5, 0.5, 0.0};
    return request;
  };
  store.push(step(7));
  ParameterStore other;
  other.create({{.id = 2, .name = "table", .spec = {at::ScalarType::Float, {{3, 2}}}}});
  store.expect_placement(0);
  for (const std::int64_t first_row : {0, 2}) {
    const rpc::StateRange range{2, first_row, first_row == 0 ? 2 : 1};
    rpc::ExportReply exported = store.export_state({.ranges = {range}, .has_applied = true});
    other.import_state({.states = std::move(exported.states), .applied = exported.applied});
  }
  store.erase({.variables = {2}});
  EXPECT_EQ(code_of(step(8)), ErrorCode::not_found);
  EXPECT_FALSE(other.push(step(7)).was_applied) << "the first server has applied it";
  EXPECT_TRUE(other.push(step(8)).was_applied);
  // 0.5 * 1 at first, then 0.5 * (0.5 * 1 + 1).
  EXPECT_TRUE(other.pull({{2}}).values[0].eq(-1.25).all().item<bool>());
}

// A table of many chunks would otherwise be copied once for each of them.
TEST_F(ParameterStoreTest, RowsAreImportedInPlace) {
  const rpc::StateRange first{2, 0, 2}, second{2, 2, 1};
  const auto rows_of = [](const rpc::StateRange& range, double content) {
    const at::Tensor rows = at::full({range.rows, 2}, content, at::kFloat);
    return rpc::StateOfRange{range, 0, rows, {{"momentum", "momentum", {rows.mul(2)}}}};
  };
  const void* const memory = value(2).data_ptr();
  store.import_state({.states = {rows_of(first, 1), rows_of(second, 2)}});
  EXPECT_EQ(value(2).data_ptr(), memory);
  const auto exported = [&] {
    return store.export_state({.ranges = {{2}}, .has_slots = true}).states.at(0);
  };
  const rpc::StateOfRange both = exported();
  EXPECT_TRUE(at::equal(both.value, at::tensor({1.F, 1.F, 1.F, 1.F, 2.F, 2.F}).view({3, 2})));
  EXPECT_TRUE(at::equal(both.slots.at(0).tensors.at(0), both.value.mul(2)));
  // Now `both` holds the value, as a reader does.
  store.import_state({.states = {rows_of(first, 3)}});
  EXPECT_TRUE(both.value[0].eq(1).all().item<bool>());
  EXPECT_TRUE(at::equal(value(2), at::tensor({3.F, 3.F, 3.F, 3.F, 2.F, 2.F}).view({3, 2})));
  EXPECT_TRUE(at::equal(exported().slots.at(0).tensors.at(0), value(2).mul(2)));
  store.import_state({.states = {{{2}, 0, at::ones({3, 2}), {}}}});
  EXPECT_TRUE(value(2).eq(1).all().item<bool>());
  EXPECT_TRUE(exported().slots.empty()) << "the state has none";
}

TEST_F(ParameterStoreTest, RefusesStatesThatDoNotFit) {
  const auto refusal = [&](const rpc::StateOfRange& state) {
    return [this, state] { store.import_state({.states = {state}}); };
  };
  const rpc::StateOfRange rows{{2, 1, 2}, 0, at::ones({2, 2}), {}};
  rpc::StateOfRange wrong = rows;
  wrong.range.rows = 3;
  EXPECT_THAT(refusal(wrong), testing::throws_error(ErrorCode::invalid_argument, "3 from row 1"));
  wrong = rows;
  wrong.value = at::ones({1, 2});
  EXPECT_THAT(refusal(wrong),
              testing::throws_error(ErrorCode::invalid_argument, "expected values"));
  wrong = rows;
  wrong.slots = {{"adam", "adam", {at::ones({2, 2})}}};
  EXPECT_THAT(refusal(wrong),
              testing::throws_error(ErrorCode::invalid_argument, "expected 3 slots"));
  wrong.slots = {{"adam", "no rule", {}}};
  EXPECT_THAT(refusal(wrong), testing::throws_error(ErrorCode::not_found, "no rule"));
  EXPECT_TRUE(value(2).eq(0).all().item<bool>());
  EXPECT_THAT(
      [&] {
        store.export_state({.ranges = {{2, 2, 2}}});
      },
      testing::throws_error(ErrorCode::invalid_argument, "2 from row 2"));
}

TEST_F(ParameterStoreTest, AFaultyEffectLeavesAllAsItWas) {
  rpc::PushRequest request = push(4, Kind::assign_add, {at::ones({4})});
  request.effects.push_back({.kind = Kind::assign, .variable = 2, .tensors = {at::ones({4})}});
  EXPECT_EQ(code_of(request), ErrorCode::invalid_argument);
  expect_value(0);
  EXPECT_TRUE(store.push(push(4, Kind::assign_add, {at::ones({4})})).was_applied)
      << "the closure may try again";
}

TEST_F(ParameterStoreTest, RefusesWhatDoesNotFit) {
  EXPECT_EQ(code_of(push(0, Kind::assign, {at::ones({5})})), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of(push(0, Kind::assign, {at::ones({4}, at::kDouble)})),
            ErrorCode::invalid_argument);
  EXPECT_EQ(code_of(push(0, Kind::assign, {})), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of(push_rows(0, {3})), ErrorCode::invalid_argument);
  rpc::PushRequest rows = push(0, Kind::assign, {at::ones({4})});
  rows.effects[0].row_ids = at::tensor({0}, at::kLong);
  EXPECT_EQ(code_of(rows), ErrorCode::invalid_argument) << "an assignment of rows";
  EXPECT_EQ(code_of(push(0, Kind::scatter_add, {at::ones({1, 2})}, 2)), ErrorCode::invalid_argument)
      << "no rows";
  EXPECT_EQ(code_of(push(0, Kind::assign, {at::ones({4})}, 77)), ErrorCode::not_found);
}

TEST_F(ParameterStoreTest, AStepNamesItsOptimizerWhichHasOneRule) {
  rpc::PushRequest request = push(0, Kind::apply, {at::ones({4})});
  request.effects[0].optimizer = "";
  EXPECT_EQ(code_of(request), ErrorCode::invalid_argument);
  request.effects[0].optimizer = "mine";
  store.push(request);
  request.effects[0].rule = "momentum";
  request.effects[0].hyper = {0.5, 0.5, 0};
  EXPECT_EQ(code_of(request), ErrorCode::already_exists);
}

TEST_F(ParameterStoreTest, CreatingAgainIsNothingUnlessTheSpecDiffers) {
  store.create({{.id = 1, .name = "w", .spec = {at::ScalarType::Float, {{4}}}}});
  EXPECT_THROW(store.create({{.id = 1, .name = "w", .spec = {at::ScalarType::Float, {{5}}}}}),
               Error);
}

TEST_F(ParameterStoreTest, ReadersAndWritersAtOnceSeeWholeVersions) {
  std::thread writer([&] {
    for (std::uint64_t id = 1; id <= 500; ++id)
      store.push(push(id, Kind::assign_add, {at::ones({4})}));
  });
  for (int i = 0; i < 500; ++i) {
    const at::Tensor seen = value();
    EXPECT_TRUE(seen.eq(seen[0]).all().item<bool>()) << seen;
  }
  writer.join();
  expect_value(500);
}

// The chief ended with exit code 70, and no remedy.
TEST_F(ParameterStoreTest, AVariableThatDoesNotFitIntoMemoryIsALackOfResources) {
  const testing::FailingAllocator::After limit(0);
  EXPECT_THAT(
      [&] {
        store.create({{.id = 9, .name = "large", .spec = {at::ScalarType::Float, {{4}}}}});
      },
      testing::throws_error(ErrorCode::resource_exhausted, "use more parameter servers"));
}

}  // namespace
}  // namespace cohort
