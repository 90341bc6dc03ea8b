// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/remote_variable.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "cohort/parameter_server/remote_home.h"
#include "cohort/parameter_server/store/fake_parameter_server.h"
#include "cohort/testing/slotless_rule.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/hyperparameter.h"

namespace cohort {
namespace {

using testing::FakeParameterServer;
using ::testing::HasSubstr;
using testing::throws_error;

constexpr std::uint64_t kId = 42;

class PlainRule final : public testing::SlotlessRule {
 public:
  std::string_view name() const override { return "plain"; }
  void update(at::Tensor&, const at::Tensor&, std::span<at::Tensor>, const at::Tensor&,
              std::span<const double>) const override {}
};

class RemoteVariableTest : public ::testing::Test {
 protected:
  RemoteVariableTest() { server_.set_value(kId, filled(7)); }
  static at::Tensor filled(double value, std::vector<std::int64_t> sizes = {2}) {
    return at::full(sizes, value, at::TensorOptions(at::kFloat));
  }
  Variable variable_of(const std::shared_ptr<RemoteHome>& home) {
    home->placement().take({.slices = {{.variable = kId, .server = 0}}});
    return Variable(std::make_shared<RemoteVariable>("model/w", stand_in_, true, kId, home));
  }
  void apply(const at::Tensor& gradient, double rate) {
    const std::array hyper{make_hyperparameter(rate)};
    apply_updates({PlainRule(), "plain_1"}, std::array{Update{variable_, gradient}}, hyper);
  }
  // The only effect of the only push.
  rpc::Effect pushed() {
    const auto pushes = server_.pushes();
    EXPECT_EQ(pushes.size(), 1U);
    EXPECT_EQ(pushes.at(0).id.number, 0U);
    EXPECT_EQ(pushes.at(0).effects.size(), 1U);
    EXPECT_EQ(pushes.at(0).effects.at(0).variable, kId);
    return pushes.at(0).effects.at(0);
  }

  FakeParameterServer server_{"ps:3"};
  std::shared_ptr<parameter_server::ServerLinks> links_ = testing::links_to({&server_});
  at::Tensor stand_in_ = filled(1).requires_grad_();
  std::shared_ptr<RemoteHome> home_ = std::make_shared<RemoteHome>(links_);
  Variable variable_ = variable_of(home_);
};

TEST_F(RemoteVariableTest, ReadPullsTheValue) {
  EXPECT_TRUE(at::equal(variable_.read(), filled(7)));
  server_.set_value(kId, filled(8));
  EXPECT_TRUE(at::equal(variable_.read(), filled(8)));
}

TEST_F(RemoteVariableTest, StepsComputeWithTheStandIn) {
  EXPECT_TRUE(variable_.tensor().is_same(stand_in_));
  EXPECT_EQ(variable_.spec().to_string(), "float32[2]");
}

TEST_F(RemoteVariableTest, AssignmentsArePushedAsTheirKinds) {
  variable_.assign(filled(1));
  variable_.assign_add(filled(2));
  variable_.assign_sub(filled(3));
  const auto pushes = server_.pushes();
  ASSERT_EQ(pushes.size(), 3U);
  EXPECT_EQ(pushes[0].effects[0].kind, rpc::Effect::Kind::assign);
  EXPECT_EQ(pushes[1].effects[0].kind, rpc::Effect::Kind::assign_add);
  EXPECT_EQ(pushes[2].effects[0].kind, rpc::Effect::Kind::assign_sub);
  EXPECT_TRUE(at::equal(pushes[2].effects[0].tensors.at(0), filled(3)));
}

TEST_F(RemoteVariableTest, AnAssignedValueMayBeAViewWithHistory) {
  variable_.assign(filled(5, {1}).expand({2}).requires_grad_());
  EXPECT_TRUE(at::equal(pushed().tensors.at(0), filled(5)));
}

TEST_F(RemoteVariableTest, AStepIsPushedWithItsRuleAndNumbers) {
  apply(filled(4), 0.5);
  const rpc::Effect effect = pushed();
  EXPECT_EQ(effect.kind, rpc::Effect::Kind::apply);
  EXPECT_EQ(effect.rule, "plain");
  EXPECT_EQ(effect.optimizer, "plain_1");
  EXPECT_EQ(effect.hyper, std::vector<double>{0.5});
  EXPECT_TRUE(at::equal(effect.tensors.at(0), filled(4)));
}

TEST_F(RemoteVariableTest, WrongSpecsAreRefusedHereAndNothingIsSent) {
  EXPECT_THAT([&] { variable_.assign(filled(0, {3})); },
              throws_error(ErrorCode::invalid_argument,
                           "expected float32[2], got float32[3] (variable 'model/w')"));
  EXPECT_THAT([&] { apply(filled(0, {3}), 0.5); },
              throws_error(ErrorCode::invalid_argument,
                           "got float32[3] (variable 'model/w', rule 'plain')"));
  EXPECT_TRUE(server_.pushes().empty());
}

TEST_F(RemoteVariableTest, RowsAreChangedThere) {
  const auto row = [](std::int64_t i) { return at::full({1}, i, at::TensorOptions(at::kInt)); };
  EXPECT_THAT([&] { variable_.scatter_max(row(2), filled(1, {1})); },
              throws_error(ErrorCode::invalid_argument, "got 2 at position 0"));
  EXPECT_TRUE(server_.pushes().empty());
  variable_.scatter_max(row(1), filled(7, {1}));
  const rpc::Effect effect = server_.pushes().at(0).effects.at(0);
  EXPECT_EQ(effect.kind, rpc::Effect::Kind::scatter_max);
  EXPECT_TRUE(at::equal(effect.row_ids, row(1).to(at::kLong)));
  EXPECT_TRUE(at::equal(effect.tensors.at(0), filled(7, {1})));
}

TEST_F(RemoteVariableTest, AValueOfAnotherSpecIsDataLoss) {
  server_.set_value(kId, filled(1, {5}));
  EXPECT_THAT([&] { variable_.read(); },
              throws_error(ErrorCode::data_loss,
                           "expected float32[2], got float32[5] (variable 'model/w' on ps:3)"));
}

TEST_F(RemoteVariableTest, TheServersErrorKeepsItsCodeAndNamesTheOperation) {
  server_.refuse_with(Error(ErrorCode::not_found, "no variable 42"));
  try {
    variable_.assign(filled(0));
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_EQ(error.origin(), "ps:3");
    EXPECT_THAT(error.what(), HasSubstr("assign to variable 'model/w'"));
  }
}

TEST_F(RemoteVariableTest, ALostServerIsNamed) {
  links_->get(0);
  server_.stop();
  try {
    variable_.read();
    FAIL() << "read from nobody";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_EQ(error.cause(), ErrorCause::peer_lost);
    EXPECT_EQ(error.origin(), "ps:3");
    EXPECT_EQ(error.context(), std::vector<std::string>{"pull of variable 'model/w'"}) << "once";
  }
}

TEST_F(RemoteVariableTest, AServerThatCannotBeReachedIsNamed) {
  const auto links =
      std::make_shared<parameter_server::ServerLinks>(parameter_server::ServerLinks::Options{
          .self = "chief:0",
          .connect = [](const rpc::Member&, Duration, const auto&) -> rpc::Connection {
            throw Error(ErrorCode::unavailable, "gone");
          }});
  links->set({.servers = {{.id = 0, .task = "ps:3"}}});
  const auto home = std::make_shared<RemoteHome>(links);
  const Variable variable = variable_of(home);
  try {
    variable.read();
    FAIL() << "read from nobody";
  } catch (const Error& error) {
    EXPECT_EQ(error.origin(), "ps:3");
    EXPECT_EQ(error.context(), std::vector<std::string>{"pull of variable 'model/w'"}) << "once";
  }
}

// Regression: a connection whose bytes were damaged may be silent for ever, and later calls over it
// got no answer either.
TEST_F(RemoteVariableTest, AServerThatDoesNotAnswerInTimeIsReachedOverAnotherConnection) {
  server_.fall_silent();
  const auto links = testing::links_to({&server_}, Duration::zero());
  const auto home = std::make_shared<RemoteHome>(links);
  const Variable variable = variable_of(home);
  try {
    variable.read();
    ADD_FAILURE() << "read from a server that is silent";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::deadline_exceeded);
    EXPECT_THAT(error.message(), HasSubstr("expected an answer from ps:3"));
    EXPECT_EQ(error.context(), std::vector<std::string>{"pull of variable 'model/w'"}) << "once";
  }
  EXPECT_FALSE(links->last(0).data->is_open());
}

TEST_F(RemoteVariableTest, WhereItMayNotBeUsedNothingIsSent) {
  class Elsewhere final : public RemoteHome {
   public:
    using RemoteHome::RemoteHome;
    void check_use(std::string_view method, std::string_view) const override {
      throw Error(ErrorCode::failed_precondition, "no " + std::string(method));
    }
  };
  const auto elsewhere = std::make_shared<Elsewhere>(links_);
  const Variable variable = variable_of(elsewhere);
  const auto refused = [](const std::string& words) {
    return throws_error(ErrorCode::failed_precondition, words);
  };
  EXPECT_THAT([&] { variable.read(); }, refused("no read"));
  EXPECT_THAT([&] { variable.assign_add(filled(1)); }, refused("no assign"));
  const std::array hyper{make_hyperparameter(1)};
  EXPECT_THAT(
      [&] {
        apply_updates({PlainRule(), "plain_1"}, std::array{Update{variable, filled(1)}}, hyper);
      },
      refused("no apply"));
  EXPECT_TRUE(server_.pushes().empty());
}

TEST_F(RemoteVariableTest, WithoutItsStrategyItSaysSo) {
  home_.reset();
  EXPECT_THAT([&] { variable_.read(); },
              throws_error(ErrorCode::failed_precondition,
                           "the strategy of variable 'model/w' has been destroyed"));
}

// Regression: in a scheduled step this was a fault of Cohort.
TEST_F(RemoteVariableTest, AVariableOfAnotherKindIsRefusedByName) {
  EXPECT_EQ(RemoteVariable::of(variable_).id(), kId);
  EXPECT_THAT([] { RemoteVariable::of(local_variable("local", filled(1))); },
              throws_error(ErrorCode::invalid_argument,
                           "expected a variable that one parameter server holds, got 'local' of "
                           "another kind, which pulls, pushes, scheduled steps and colocate_with "
                           "do not support"));
}

TEST_F(RemoteVariableTest, ATrainableStandInMustRequireAGradient) {
  EXPECT_THAT([&] { RemoteVariable("model/w", filled(1), true, kId, home_); },
              throws_error(ErrorCode::invalid_argument,
                           "requires a gradient, got one that does not require it"));
}

}  // namespace
}  // namespace cohort
