// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/parameter_store.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <thread>

namespace cohort::server {
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
    rpc::PushRequest request{.closure_id = closure};
    request.effects.push_back({.kind = kind, .variable = variable, .tensors = std::move(tensors)});
    if (kind == Kind::apply) {
      request.effects[0].rule = "sgd";
      request.effects[0].hyper = {0.5};
    }
    return request;
  }
  at::Tensor value(std::uint64_t id = 1) { return store.pull({{id}})[0]; }
  void expect_value(double expected) {
    EXPECT_TRUE(value().eq(expected).all().item<bool>()) << value();
  }
  ErrorCode code_of(const rpc::PushRequest& request) {
    try {
      store.push(request);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::unknown;
  }
  ParameterStore store;
};

TEST_F(ParameterStoreTest, VariablesStartAsZeros) { expect_value(0); }

TEST_F(ParameterStoreTest, AssignsAddsAndSubtracts) {
  store.push(push(0, Kind::assign, {at::full({4}, 5.)}));
  store.push(push(0, Kind::assign_add, {at::full({4}, 2.)}));
  store.push(push(0, Kind::assign_sub, {at::full({4}, 1.)}));
  expect_value(6);
}

// A second optimizer went on with the first one's momentum.
TEST_F(ParameterStoreTest, EachOptimizerHasItsOwnSlots) {
  const auto step = [&](const char* rule) {
    rpc::PushRequest request = push(0, Kind::apply, {at::full({4}, 1.)});
    request.effects[0].rule = rule;
    request.effects[0].hyper = {1, 0.5};
    store.push(request);
  };
  step("momentum#1");
  expect_value(-1);
  step("momentum#2");
  expect_value(-2);
  step("momentum#1");
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

TEST_F(ParameterStoreTest, APulledValueNeverChanges) {
  const at::Tensor before = value();
  store.push(push(1, Kind::assign_add, {at::ones({4})}));
  store.push(push(2, Kind::apply, {at::ones({4})}));
  EXPECT_TRUE(before.eq(0).all().item<bool>());
  expect_value(0.5);
}

TEST_F(ParameterStoreTest, ScattersRows) {
  store.push(push(1, Kind::scatter_add, {at::tensor({2, 0, 2}, at::kLong), at::ones({3, 2})}, 2));
  EXPECT_TRUE(value(2).sum(1).eq(at::tensor({2.F, 0.F, 4.F})).all().item<bool>());
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
  EXPECT_EQ(code_of(push(0, Kind::scatter_add, {at::tensor({3}, at::kLong), at::ones({1, 2})}, 2)),
            ErrorCode::out_of_range);
  EXPECT_EQ(code_of(push(0, Kind::assign, {at::ones({4})}, 77)), ErrorCode::not_found);
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

}  // namespace
}  // namespace cohort::server
