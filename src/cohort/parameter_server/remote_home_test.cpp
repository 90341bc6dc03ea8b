// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/remote_home.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "cohort/parameter_server/store/fake_parameter_server.h"
#include "cohort/testing/slotless_rule.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/eager_step.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/replica_count.h"
#include "cohort/variable/row_gradient.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::throws_error;

using Kind = rpc::Effect::Kind;

class RateRule final : public testing::SlotlessRule {
 public:
  std::string_view name() const override { return "rated"; }
  void update(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor>,
              const at::Tensor& gradient, std::span<const double> hyper) const override {
    new_value.detach().copy_(value.detach() - gradient * hyper[0]);
  }
};

at::Tensor of_two(double value) { return at::full({2}, value, at::TensorOptions(at::kFloat)); }

std::vector<std::uint64_t> variables_of(const rpc::PushRequest& push) {
  std::vector<std::uint64_t> ids;
  for (const rpc::Effect& effect : push.effects) ids.push_back(effect.variable);
  return ids;
}

// Variables 1, 2 and 3, of which ps:0 has 1 and 3; a buffer 4 is on ps:1.
class RemoteHomeTest : public ::testing::Test {
 protected:
  RemoteHomeTest() {
    for (const std::uint64_t id : {1, 3}) first_.set_value(id, of_two(double(id)));
    for (const std::uint64_t id : {2, 4}) second_.set_value(id, of_two(double(id)));
  }
  Variable make(std::uint64_t id, std::uint32_t ps, bool is_trainable = true) {
    at::Tensor stand_in = of_two(0);
    if (is_trainable) stand_in.requires_grad_();
    home_->placement().take({.slices = {{.variable = id, .server = ps}}});
    return Variable(std::make_shared<RemoteVariable>("v" + std::to_string(id), stand_in,
                                                     is_trainable, id, home_));
  }
  std::vector<Update> updates() const {
    return {{a_, of_two(10)}, {b_, of_two(20)}, {c_, of_two(30)}};
  }
  void apply(const std::vector<Update>& updates) const {
    apply_updates({RateRule(), "rated_1"}, updates, std::array{make_hyperparameter(0.5)});
  }
  void expect_nothing_sent() {
    EXPECT_THAT(first_.pushes(), IsEmpty());
    EXPECT_THAT(second_.pushes(), IsEmpty());
  }

  testing::FakeParameterServer first_{"ps:0"}, second_{"ps:1"};
  std::shared_ptr<parameter_server::ServerLinks> links_ = testing::links_to({&first_, &second_});
  std::shared_ptr<RemoteHome> home_ = std::make_shared<RemoteHome>(links_);
  const Variable a_ = make(1, 0), b_ = make(2, 1), c_ = make(3, 0);
  const Variable buffer_ = make(4, 1, false);
};

// Regression: each variable was pushed separately, and the caller waited for each answer.
TEST_F(RemoteHomeTest, UpdatesOfManyVariablesAreOnePushToEachServer) {
  apply(updates());
  ASSERT_THAT(first_.pushes(), SizeIs(1));
  ASSERT_THAT(second_.pushes(), SizeIs(1));
  EXPECT_THAT(variables_of(first_.pushes()[0]), ElementsAre(1, 3));
  EXPECT_THAT(variables_of(second_.pushes()[0]), ElementsAre(2));
  const rpc::Effect last = first_.pushes()[0].effects[1];
  EXPECT_EQ(last.rule, "rated");
  EXPECT_EQ(last.optimizer, "rated_1");
  EXPECT_THAT(last.hyper, ElementsAre(0.5));
  EXPECT_TRUE(at::equal(last.tensors.at(0), of_two(30)));
}

// A server knows no groups: each effect has the numbers of its variable.
TEST_F(RemoteHomeTest, AnUpdateIsSentWithTheNumbersOfItsGroup) {
  const auto groups = std::make_shared<const HyperGroups>(
      1, HyperGroups::Numbers{{b_.impl().get(), 1}, {c_.impl().get(), 2}});
  apply_updates(
      {RateRule(), "rated_1", nullptr, false, groups}, updates(),
      std::array{make_hyperparameter(0.5), make_hyperparameter(0.25), make_hyperparameter(0.125)});
  EXPECT_THAT(first_.pushes().at(0).effects.at(0).hyper, ElementsAre(0.5));
  EXPECT_THAT(first_.pushes().at(0).effects.at(1).hyper, ElementsAre(0.125));
  EXPECT_THAT(second_.pushes().at(0).effects.at(0).hyper, ElementsAre(0.25));
}

// Row 7 comes twice, and is sent once.
TEST_F(RemoteHomeTest, ASparseGradientIsSentAsItsRows) {
  home_->placement().take({.slices = {{.variable = 9, .server = 0}}});
  const at::Tensor stand_in = at::zeros({1'000'000, 2}).requires_grad_();
  const Variable table(std::make_shared<RemoteVariable>("table", stand_in, true, 9, home_));
  const at::Tensor gradient = variable::row_gradient(at::tensor({7, 999'999, 7}, at::kLong),
                                                     at::ones({3, 2}), {1'000'000, 2});
  const RateRule rule{};
  for (const bool lazy_rows : {false, true}) {
    const Update update{table, gradient};
    apply_updates({rule, "rated_1", nullptr, lazy_rows}, {&update, 1},
                  std::array{make_hyperparameter(0.5)});
    const rpc::PushRequest push = first_.pushes().back();
    ASSERT_THAT(push.effects, SizeIs(1));
    const rpc::Effect& effect = push.effects[0];
    EXPECT_TRUE(at::equal(effect.row_ids, at::tensor({7, 999'999}, at::kLong)));
    ASSERT_THAT(effect.tensors, SizeIs(1));
    EXPECT_TRUE(at::equal(effect.tensors[0], at::tensor({2.F, 2.F, 1.F, 1.F}).view({2, 2})));
    EXPECT_EQ(effect.lazy_rows, lazy_rows);
  }
}

TEST_F(RemoteHomeTest, ValuesOfManyVariablesAreOnePullFromEachServerInTheirOrder) {
  const std::vector<at::Tensor> values = read_values(std::array{c_, b_, a_});
  EXPECT_TRUE(at::equal(values.at(0), of_two(3)));
  EXPECT_TRUE(at::equal(values.at(1), of_two(2)));
  EXPECT_TRUE(at::equal(values.at(2), of_two(1)));
  ASSERT_THAT(first_.pulls(), SizeIs(1));
  EXPECT_THAT(first_.pulls()[0].variables, ElementsAre(3, 1));
  EXPECT_THAT(second_.pulls(), SizeIs(1));
}

TEST_F(RemoteHomeTest, VariablesOfSeveralHomesAreReadAndUpdatedWhereTheyAre) {
  const Variable local = local_variable("local", of_two(5));
  apply({{local, of_two(2)}, {b_, of_two(4)}});
  EXPECT_TRUE(at::equal(local.read(), of_two(4)));
  EXPECT_THAT(second_.pushes(), SizeIs(1));
  const std::vector<at::Tensor> values = read_values(std::array{b_, local});
  EXPECT_TRUE(at::equal(values.at(0), of_two(2)));
  EXPECT_TRUE(at::equal(values.at(1), of_two(4)));
}

TEST_F(RemoteHomeTest, OneBadArgumentLeavesAllVariablesAsTheyAre) {
  const Variable local = local_variable("local", of_two(5));
  const at::Tensor three = at::full({3}, 1.0F);
  EXPECT_THAT(
      [&] {
        apply({{local, of_two(2)}, {a_, of_two(2)}, {b_, three}});
      },
      throws_error(ErrorCode::invalid_argument, "(variable 'v2', rule 'rated')"));
  const std::array assignments{VariableWrite{local, internal::Effect::Kind::assign, of_two(2)},
                               VariableWrite{a_, internal::Effect::Kind::assign, three}};
  EXPECT_THAT([&] { write_values(assignments); },
              throws_error(ErrorCode::invalid_argument, "(variable 'v1')"));
  const variable::ReplicaCount several(2);
  EXPECT_THAT([&] { apply(updates()); }, throws_error(ErrorCode::unimplemented, "[variable.apply"));
  EXPECT_TRUE(at::equal(local.read(), of_two(5)));
  expect_nothing_sent();
}

TEST_F(RemoteHomeTest, AnErrorNamesTheServerAndItsVariablesAndTheOtherServerIsUpdated) {
  first_.refuse_with(Error(ErrorCode::not_found, "no variable 1"));
  try {
    apply(updates());
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_EQ(error.origin(), "ps:0");
    EXPECT_THAT(error.context(), ElementsAre("'rated' step of variables 'v1', 'v3'"));
  }
  EXPECT_THAT(second_.pushes(), SizeIs(1));
}

TEST_F(RemoteHomeTest, NothingIsSentIfAServerCannotBeReached) {
  second_.stop();
  EXPECT_THAT([&] { apply(updates()); }, throws_error(ErrorCode::unavailable, "gone"));
  expect_nothing_sent();
}

TEST_F(RemoteHomeTest, AnEagerStepPushesAndPullsOnceAServer) {
  VariableTraffic traffic;
  EagerStep step(traffic);
  step.note(*buffer_.impl(), of_two(0));
  buffer_.tensor().add_(1);
  first_.set_value(1, of_two(-1));
  write_values(std::array{VariableWrite{a_, internal::Effect::Kind::assign_add, of_two(1)},
                          VariableWrite{buffer_, internal::Effect::Kind::assign_add, of_two(1)}});
  ASSERT_THAT(first_.pushes(), SizeIs(1));
  ASSERT_THAT(second_.pushes(), SizeIs(1));
  const rpc::PushRequest push = second_.pushes()[0];
  ASSERT_THAT(push.effects, SizeIs(2));
  EXPECT_EQ(push.effects[0].kind, Kind::assign) << "what the step wrote comes first";
  EXPECT_TRUE(at::equal(push.effects[0].tensors.at(0), of_two(1)));
  EXPECT_EQ(push.effects[1].kind, Kind::assign_add);
  EXPECT_THAT(first_.pulls(), SizeIs(1));
  EXPECT_THAT(second_.pulls(), SizeIs(1));
  EXPECT_TRUE(at::equal(a_.tensor().detach(), of_two(-1))) << "the stand-in follows the server";
  EXPECT_TRUE(at::equal(buffer_.tensor(), of_two(4)));
  EXPECT_EQ(traffic.pushed_bytes, 3U * 8);
  EXPECT_EQ(traffic.pulled_bytes, 2U * 8);
}

TEST_F(RemoteHomeTest, AtItsEndAnEagerStepAssignsWhatItWroteIntoBuffersAlone) {
  VariableTraffic traffic;
  EagerStep step(traffic);
  for (const Variable& variable : {a_, buffer_}) step.note(*variable.impl(), of_two(0));
  home_->write_back(std::array{a_, buffer_});
  expect_nothing_sent();
  buffer_.tensor().add_(3);
  home_->write_back(std::array{a_, buffer_});
  home_->write_back(std::array{a_, buffer_});
  ASSERT_THAT(second_.pushes(), SizeIs(1)) << "once";
  EXPECT_TRUE(at::equal(second_.pushes()[0].effects.at(0).tensors.at(0), of_two(3)));
  a_.tensor().detach().add_(1);
  EXPECT_THAT([&] { home_->write_back(std::array{a_}); },
              throws_error(ErrorCode::invalid_argument, "expected variable 'v1'"));
  EXPECT_THAT(first_.pushes(), IsEmpty());
}

}  // namespace
}  // namespace cohort
