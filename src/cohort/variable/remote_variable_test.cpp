// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/detail/remote_variable.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/rpc/detail/messages.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/detail/hyperparameter.h"

namespace cohort {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::throws_error;

constexpr std::uint64_t kId = 42;

// Answers every pull with `value` or with `refusal`, and records the pushes. Thread-safe.
class FakeParameterServer {
 public:
  FakeParameterServer() {
    listener_ = backend().listen({}, [this](const std::shared_ptr<rpc::Channel>& channel) {
      channels_.push_back(channel);
      rpc::Channel* to = channel.get();
      return rpc::Channel::Handlers{
          .on_frame = [this, to](rpc::Frame frame) { answer(*to, std::move(frame)); },
          .on_closed = [](const Error&) {}};
    });
  }
  ~FakeParameterServer() { stop(); }

  static rpc::Backend& backend() { return rpc::backend_of("inprocess"); }
  std::shared_ptr<rpc::Requester> connect() {
    return rpc::Requester::connect(backend(), {.address = listener_->address(),
                                               .peer = "ps:3",
                                               .deadline = Deadline::after(seconds(10))});
  }
  void stop() {
    listener_.reset();
    channels_.clear();
  }
  void set_value(at::Tensor value) {
    const Lock lock(mutex_);
    value_ = std::move(value);
  }
  void refuse_with(Error error) {
    const Lock lock(mutex_);
    refusal_ = std::move(error);
  }
  // Stops answering.
  void fall_silent() {
    const Lock lock(mutex_);
    is_silent_ = true;
  }
  std::vector<rpc::PushRequest> pushes() {
    const Lock lock(mutex_);
    return pushes_;
  }

 private:
  void answer(rpc::Channel& to, rpc::Frame frame) {
    rpc::Frame reply;
    const Lock lock(mutex_);
    if (is_silent_) return;
    if (refusal_) {
      to.send(rpc::error_frame(frame.id, *refusal_));
      return;
    }
    const std::uint64_t id = frame.id;
    if (frame.type == static_cast<std::uint16_t>(rpc::MessageType::pull)) {
      EXPECT_EQ(rpc::pull_of(frame).variables, std::vector<std::uint64_t>{kId});
      reply.tensors = {value_};
    } else {
      pushes_.push_back(rpc::push_of(std::move(frame)));
      reply = rpc::to_frame(rpc::PushReply{});
    }
    reply.role = rpc::Frame::Role::response;
    reply.id = id;
    to.send(std::move(reply));
  }

  Mutex mutex_;
  at::Tensor value_ COHORT_GUARDED_BY(mutex_) = at::full({2}, 7.0F);
  std::optional<Error> refusal_ COHORT_GUARDED_BY(mutex_);
  bool is_silent_ COHORT_GUARDED_BY(mutex_) = false;
  std::vector<rpc::PushRequest> pushes_ COHORT_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Listener> listener_;
  std::vector<std::shared_ptr<rpc::Channel>> channels_;
};

class PlainRule final : public UpdateRule {
 public:
  std::string_view name() const override { return "plain"; }
  std::span<const std::string_view> hyperparameter_names() const override {
    static constexpr std::array<std::string_view, 1> kNames{"rate"};
    return kNames;
  }
  std::span<const std::string_view> slot_names() const override { return {}; }
  std::vector<at::Tensor> create_slots(const at::Tensor&, std::span<const double>) const override {
    return {};
  }
  void update(at::Tensor&, const at::Tensor&, std::span<at::Tensor>, const at::Tensor&,
              std::span<const double>) const override {}
};

class RemoteVariableTest : public ::testing::Test {
 protected:
  static at::Tensor filled(double value, std::vector<std::int64_t> sizes = {2}) {
    return at::full(sizes, value, at::TensorOptions(at::kFloat));
  }
  RemotePlacement placement() {
    return {.id = kId,
            .ps = 3,
            .requester = [this] { return requester_; },
            .deadline = [] { return Deadline::after(seconds(10)); }};
  }
  void apply(const at::Tensor& gradient, double rate) {
    const std::array hyper{make_hyperparameter(rate)};
    variable_.impl()->apply(PlainRule(), gradient, hyper);
  }
  // The only effect of the only push.
  rpc::Effect pushed() {
    const auto pushes = server_.pushes();
    EXPECT_EQ(pushes.size(), 1U);
    EXPECT_EQ(pushes.at(0).closure_id, 0U);
    EXPECT_EQ(pushes.at(0).effects.size(), 1U);
    EXPECT_EQ(pushes.at(0).effects.at(0).variable, kId);
    return pushes.at(0).effects.at(0);
  }

  FakeParameterServer server_;
  std::shared_ptr<rpc::Requester> requester_ = server_.connect();
  at::Tensor stand_in_ = filled(1).requires_grad_();
  Variable variable_{std::make_shared<RemoteVariable>("model/w", stand_in_, true, placement())};
};

TEST_F(RemoteVariableTest, ReadPullsTheValue) {
  EXPECT_TRUE(at::equal(variable_.read(), filled(7)));
  server_.set_value(filled(8));
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

TEST_F(RemoteVariableTest, AValueOfAnotherSpecIsDataLoss) {
  server_.set_value(filled(1, {5}));
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
  RemotePlacement unreachable = placement();
  unreachable.requester = []() -> std::shared_ptr<rpc::Requester> {
    throw Error(ErrorCode::unavailable, "gone");
  };
  const Variable variable(
      std::make_shared<RemoteVariable>("model/w", stand_in_, true, std::move(unreachable)));
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
  RemotePlacement hasty = placement();
  hasty.deadline = [] { return Deadline::after(Duration::zero()); };
  const Variable variable(
      std::make_shared<RemoteVariable>("model/w", stand_in_, true, std::move(hasty)));
  try {
    variable.read();
    ADD_FAILURE() << "read from a server that is silent";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::deadline_exceeded);
    EXPECT_THAT(error.message(), HasSubstr("expected an answer from ps:3"));
    EXPECT_EQ(error.context(), std::vector<std::string>{"pull of variable 'model/w'"}) << "once";
  }
  EXPECT_FALSE(requester_->is_open());
}

TEST_F(RemoteVariableTest, WhereItMayNotBeUsedNothingIsSent) {
  RemotePlacement elsewhere = placement();
  elsewhere.check_use = [](std::string_view method) {
    throw Error(ErrorCode::failed_precondition, "no " + std::string(method));
  };
  Variable variable(
      std::make_shared<RemoteVariable>("model/w", stand_in_, true, std::move(elsewhere)));
  const auto refused = [](const std::string& words) {
    return throws_error(ErrorCode::failed_precondition, words);
  };
  EXPECT_THAT([&] { variable.read(); }, refused("no read"));
  EXPECT_THAT([&] { variable.assign_add(filled(1)); }, refused("no assign"));
  const std::array hyper{make_hyperparameter(1)};
  EXPECT_THAT([&] { variable.impl()->apply(PlainRule(), filled(1), hyper); }, refused("no apply"));
  EXPECT_TRUE(server_.pushes().empty());
}

TEST_F(RemoteVariableTest, ATrainableStandInMustRequireAGradient) {
  EXPECT_THAT([&] { RemoteVariable("model/w", filled(1), true, placement()); },
              throws_error(ErrorCode::invalid_argument,
                           "requires a gradient, got one that does not require it"));
}

}  // namespace
}  // namespace cohort
