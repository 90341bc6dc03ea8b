// SPDX-License-Identifier: Apache-2.0
// Reads that name the values which the reader has, and reads with a push.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "cohort/parameter_server/parameter_store.h"

namespace cohort {
namespace {

using Kind = rpc::Effect::Kind;

class KnownValuesTest : public ::testing::Test {
 protected:
  KnownValuesTest() {
    store_.create({{.id = 1, .name = "w", .spec = {at::ScalarType::Float, {{4}}}},
                   {.id = 2, .name = "table", .spec = {at::ScalarType::Float, {{3, 2}}}}});
  }
  static rpc::PushRequest push(Kind kind) {
    rpc::PushRequest request{.id = {.number = 1}};
    request.effects.push_back({.kind = kind, .variable = 1, .tensors = {at::ones({4})}});
    return request;
  }
  ParameterStore store_;
};

TEST_F(KnownValuesTest, AValueThatTheReaderHasDoesNotComeAgain) {
  const rpc::PullReply first = store_.pull({.variables = {1, 2}, .wants_versions = true});
  const rpc::PullRequest again{
      .variables = {1, 2}, .wants_versions = true, .known = first.versions};
  EXPECT_TRUE(store_.pull(again).values.empty());
  EXPECT_EQ(store_.pull(again).versions, first.versions);
  store_.push(push(Kind::assign));
  const rpc::PullReply changed = store_.pull(again);
  ASSERT_EQ(changed.values.size(), 1U);
  EXPECT_TRUE(changed.values[0].equal(at::ones({4})));
  EXPECT_EQ(changed.versions.at(0), first.versions.at(0) + 1);
}

// A reader may have read a variable of the same number before this server was started again.
TEST_F(KnownValuesTest, VersionsOfAnotherStartAreNoneOfThisOne) {
  ParameterStore other;
  other.create({{.id = 1, .name = "w", .spec = {at::ScalarType::Float, {{4}}}}});
  const rpc::PullReply there = other.pull({.variables = {1}, .wants_versions = true});
  const rpc::PullReply here =
      store_.pull({.variables = {1}, .wants_versions = true, .known = there.versions});
  EXPECT_EQ(here.values.size(), 1U);
}

TEST_F(KnownValuesTest, APushMayHaveAPullWhichReadsTheValuesAfterIt) {
  rpc::PushRequest request = push(Kind::assign_add);
  request.pull = rpc::PullRequest{.variables = {1}, .wants_versions = true};
  const rpc::PushReply first = store_.push(request);
  EXPECT_TRUE(first.was_applied);
  EXPECT_TRUE(first.pulled.value().values.at(0).equal(at::ones({4})));
  const rpc::PushReply again = store_.push(request);
  EXPECT_FALSE(again.was_applied);
  EXPECT_TRUE(again.pulled.value().values.at(0).equal(at::ones({4})));
  EXPECT_EQ(again.pulled.value().versions, first.pulled.value().versions);
}

}  // namespace
}  // namespace cohort
