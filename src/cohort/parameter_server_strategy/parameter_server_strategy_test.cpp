// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/parameter_server_strategy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/parameter_server/remote_variable.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/rpc/channel.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/messages.h"
#include "cohort/rpc/stream_listener_for_tests.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_threads.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

// A parameter server that stores nothing, acknowledges pushes and, if a test says so, refuses new
// variables.
class ForgetfulPs final : public rpc::ControlService, public rpc::CoordinatorSession {
 public:
  explicit ForgetfulPs(std::string task = "ps:0") : task_(std::move(task)) {}

  std::atomic<bool> refuses = false;
  std::atomic<int> taken = 0;
  std::atomic<int> pushes = 0;

  const std::string& address() const { return control_->address(); }

  rpc::HandshakeReply handshake(const rpc::HandshakeRequest&, const rpc::Caller&) override {
    return {rpc::identity_of_process(task_, "job", 1), {{"stream", listener_->address()}}};
  }
  void create_variables(const std::vector<rpc::VariableSpec>& variables) override {
    COHORT_CHECK(!refuses, ErrorCode::resource_exhausted, "no memory for ", variables.size());
    taken += static_cast<int>(variables.size());
    const Lock lock(mutex_);
    last_created_ = variables.back();
  }
  rpc::VariableSpec last_created() {
    const Lock lock(mutex_);
    return last_created_;
  }
  TaskHealth health() override { return {}; }
  void set_membership(const rpc::Membership&) override {}
  void place_variables(const rpc::Placement&) override {}
  void register_function(const rpc::FunctionBody&) override {}
  void create_iterator(const rpc::IteratorSpec&) override {}
  void release(const std::vector<std::uint64_t>&) override {}
  std::shared_ptr<rpc::CoordinatorSession> session_of(const rpc::Caller&) override {
    return {std::shared_ptr<void>(), this};
  }
  void shutdown(const rpc::Caller&, std::chrono::milliseconds) override {}

 private:
  rpc::Channel::Handlers answering(const std::shared_ptr<rpc::Channel>& channel) {
    return {.on_frame = [this, channel](rpc::Frame frame) {
      const bool is_hello = frame.type == static_cast<std::uint16_t>(rpc::MessageType::hello);
      if (frame.type == static_cast<std::uint16_t>(rpc::MessageType::push)) ++pushes;
      rpc::Frame answer =
          is_hello ? rpc::to_frame(rpc::HelloReply{}) : rpc::to_frame(rpc::PushReply{});
      answer.role = rpc::Frame::Role::response;
      answer.id = frame.id;
      channel->send(std::move(answer));
    }};
  }

  const std::string task_;
  Mutex mutex_;
  rpc::VariableSpec last_created_ COHORT_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Listener> listener_ = testing::listen_on_stream(
      [this](const std::shared_ptr<rpc::Channel>& channel) { return answering(channel); });
  std::unique_ptr<rpc::ControlServer> control_ = rpc::serve_control("127.0.0.1:0", *this);
};

SimpleResolver resolver_of(const std::vector<std::string>& servers) {
  return SimpleResolver(
      ClusterSpec({{"chief", {"127.0.0.1:1"}}, {"worker", {"127.0.0.1:2"}}, {"ps", servers}}),
      {.task_type = "chief", .task_id = 0});
}

// The part of torch::nn::Module, other than tensors, that replicate() needs.
struct Modes {
  bool is_training() const { return true; }
  void train(bool) {}
  std::vector<std::shared_ptr<Modes>> modules(bool) const { return {}; }
};

// Two tensors that share memory.
struct SharingModule : Modes {
  struct Entry {
    std::string name;
    at::Tensor tensor;
    const std::string& key() const { return name; }
    const at::Tensor& value() const { return tensor; }
  };
  at::Tensor weight = at::full({2}, 1.0);
  std::vector<Entry> named_parameters() const { return {{"a", weight}, {"b", weight.detach()}}; }
  std::vector<Entry> named_buffers() const { return {}; }
};

// One tensor under two names, as a tied weight.
struct TiedModule : Modes {
  at::Tensor weight = at::full({2}, 1.0);
  std::vector<SharingModule::Entry> named_parameters() const {
    return {{"a", weight}, {"b", weight}};
  }
  std::vector<SharingModule::Entry> named_buffers() const { return {{"c", at::full({1}, 2.0)}}; }
};

struct ChannelsLastModule : Modes {
  at::Tensor weight = at::rand({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  std::vector<SharingModule::Entry> named_parameters() const { return {{"weight", weight}}; }
  std::vector<SharingModule::Entry> named_buffers() const { return {}; }
};

class PublishTest : public ::testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const Variable& variable : strategy.home()->variables().variables())
      all.push_back(variable.name());
    return all;
  }

  ForgetfulPs ps;
  ParameterServerStrategy strategy{resolver_of({ps.address()}), {.cluster = {.job_id = "job"}}};
};

// Regression: the refused variable stayed registered: its name was taken, and run() tried to pull
// it.
TEST_F(PublishTest, AVariableThatAServerRefusedCanBeMadeAgain) {
  const auto make = [&] { return strategy.variable("v", at::full({2}, 1.0)); };
  ps.refuses = true;
  EXPECT_THAT(make, throws_error(ErrorCode::resource_exhausted, "no memory"));
  EXPECT_THAT(names(), ElementsAre());
  ps.refuses = false;
  const Variable made = make();
  EXPECT_THAT(names(), ElementsAre("v"));
  EXPECT_THAT(make, throws_error(ErrorCode::already_exists, "got 'v'"));
  EXPECT_EQ(ps.taken, 1) << "a taken name costs the server nothing";
}

// Regression: the stand-in's old values were sent, without an error.
TEST_F(PublishTest, OutsideOfStepsAStandInIsNoValue) {
  const Variable v = strategy.variable("v", at::full({2}, 1.0));
  const Variable count = strategy.variable("n", at::full({2}, 1.0), {.is_trainable = false});
  const auto is_refused = [](const std::string& name) {
    return throws_error(ErrorCode::invalid_argument,
                        "[variable.assign] expected a value, got tensor() of variable '" + name);
  };
  EXPECT_THAT([&] { v.assign(v.tensor() * 2); }, is_refused("v"));
  EXPECT_THAT([&] { count.assign_sub(v.tensor().detach()); }, is_refused("v"));
  EXPECT_THAT([&] { v.assign_add((at::full({2}, 1.0) - v.tensor()).exp()); }, is_refused("v"));
  EXPECT_THAT([&] { v.assign(count.tensor()); }, is_refused("n"));
  const Variable ids = strategy.variable("ids", at::full({2}, 1, at::TensorOptions(at::kLong)),
                                         {.is_trainable = false});
  EXPECT_THAT([&] { v.scatter_add(ids.tensor(), at::full({2}, 1.0)); },
              throws_error(ErrorCode::invalid_argument,
                           "[variable.scatter] expected a value, got tensor() of variable 'ids'"));
  EXPECT_THAT([&] { strategy.variable("copy", v.tensor()); },
              throws_error(ErrorCode::invalid_argument,
                           "[strategy.variable] expected a value, got tensor() of variable 'v', or "
                           "what was computed from it (initial value of 'copy')"));
  const at::Tensor other = at::full({2}, 1.0).requires_grad_();
  v.assign(other * 2);  // a value with another graph is sent
}

TEST_F(PublishTest, AModelWhoseTensorsShareMemoryLeavesNothingBehind) {
  EXPECT_THAT([&] { strategy.replicate([] { return SharingModule(); }); },
              throws_error(ErrorCode::already_exists, "expected memory of its own"));
  EXPECT_THAT(names(), ElementsAre());
  EXPECT_EQ(ps.taken, 0);
}

// Regression: tied weights were refused: "expected memory of its own".
TEST_F(PublishTest, ATiedWeightIsOneVariable) {
  const auto model = strategy.replicate([] { return TiedModule(); }, {.name = "m"});
  EXPECT_THAT(names(), ElementsAre("m/a", "m/c"));
  EXPECT_EQ(model.variables().size(), 2U);
  EXPECT_EQ(ps.taken, 2);
}

// Regression: LibTorch's exception passed unchanged, and its what() had a page of stack frames.
TEST_F(PublishTest, LibTorchsExceptionsOfAFactoryAreErrors) {
  const auto make = [] {
    at::ones({2}).mm(at::ones({3}));
    return TiedModule();
  };
  EXPECT_THAT([&] { strategy.replicate(make); },
              throws_error(ErrorCode::unknown, "self must be a matrix"));
}

// Regression: such a weight was refused: "expected a dense contiguous tensor".
TEST_F(PublishTest, AWeightInAnotherOrderBecomesRowMajor) {
  const auto model = strategy.replicate([] { return ChannelsLastModule(); }, {.name = "m"});
  const at::Tensor stand_in = model.variables()[0].tensor();
  EXPECT_TRUE(stand_in.is_contiguous());
  EXPECT_EQ(stand_in.sizes(), at::IntArrayRef({2, 3, 4, 4}));
}

// Regression: each variable of a model was uploaded separately.
TEST_F(PublishTest, AModelIsUploadedInOnePush) {
  strategy.replicate([] { return TiedModule(); });
  EXPECT_EQ(ps.pushes, 1);
}

class PlacementTest : public ::testing::Test {
 protected:
  Variable make(const std::string& name, VariableOptions options = {}) {
    return strategy.variable(name, at::full({2}, 1.0), std::move(options));
  }
  std::uint64_t ps_of(const Variable& variable) const {
    return strategy.home()->servers_of(variable).at(0);
  }

  ForgetfulPs first{"ps:0"};
  ForgetfulPs second{"ps:1"};
  ParameterServerStrategy strategy{resolver_of({first.address(), second.address()}),
                                   {.cluster = {.job_id = "job", .seed = 7}}};
};

// Regression: a refused variable advanced the round robin, so a program that created it again had
// its variables on other servers.
TEST_F(PlacementTest, AdvancesOnceForEachVariableThatIsMade) {
  const Variable a = make("a");
  EXPECT_EQ(ps_of(a), 0U);
  EXPECT_THAT([&] { make("a"); }, throws_error(ErrorCode::already_exists, "got 'a'"));
  second.refuses = true;
  EXPECT_THAT([&] { make("b"); }, throws_error(ErrorCode::resource_exhausted, "no memory"));
  EXPECT_THAT([&] { strategy.replicate([] { return SharingModule(); }); },
              throws_error(ErrorCode::already_exists, "expected memory of its own"));
  second.refuses = false;
  const Variable b = make("b");
  EXPECT_EQ(ps_of(b), 1U);
  EXPECT_EQ(ps_of(make("beside b", {.colocate_with = b})), 1U) << "does not count";
  EXPECT_EQ(ps_of(make("c")), 0U);
}

// Regression: the other strategy's server index was used in this cluster, which may have fewer
// servers.
TEST_F(PlacementTest, NothingIsPlacedBesideAVariableOfAnotherStrategy) {
  ParameterServerStrategy other(resolver_of({second.address(), first.address()}),
                                {.cluster = {.job_id = "job"}});
  EXPECT_THAT([&] { other.variable("v", at::full({}, 1.0), {.colocate_with = make("a")}); },
              throws_error(ErrorCode::failed_precondition, "mixing strategies"));
}

TEST_F(PlacementTest, NothingIsPlacedBesideALocalVariable) {
  EXPECT_THAT([&] { make("v", {.colocate_with = local_variable("local", at::full({}, 1.0))}); },
              throws_error(ErrorCode::invalid_argument, "got 'local' of another kind"));
}

// Regression: the coordinator sent values that a server can compute itself.
TEST_F(PlacementTest, AnInitialValueTravelsAsItsRecipe) {
  const Variable made =
      strategy.variable("w", {at::kFloat, {{4, 3}}}, Initializer::random_normal(0.5, 0.25));
  EXPECT_EQ(first.pushes, 0);
  const rpc::InitialValue sent = first.last_created().initial.value();
  EXPECT_EQ(sent.kind, 2);
  EXPECT_EQ(sent.first, 0.5);
  EXPECT_EQ(sent.second, 0.25);
  EXPECT_EQ(sent.seed, 7U);
  EXPECT_EQ(sent.name, "w");
  EXPECT_EQ(sent.whole, made.spec());
  EXPECT_FALSE(sent.rows.has_value());
  const Variable given = strategy.variable("given", at::ones({2}));
  EXPECT_FALSE(second.last_created().initial.has_value());
  EXPECT_EQ(second.pushes, 1);
}

TEST_F(PlacementTest, InitialValuesComeFromTheSeedAndTheNameAlone) {
  const TensorSpec spec{at::kFloat, {{4, 3}}};
  const Initializer initializer = Initializer::glorot_uniform();
  for (const std::string name : {"b", "a"}) {
    const Variable made = strategy.variable(name, spec, initializer);
    EXPECT_TRUE(made.is_trainable());
    EXPECT_TRUE(made.tensor().detach().equal(initializer.make(spec, name, 7)));
  }
  EXPECT_THAT(
      [&] {
        strategy.variable("c", {at::kFloat, {{3}}}, initializer);
      },
      throws_error(ErrorCode::invalid_argument, "at least two dimensions"));
}

// Regression: these calls were allowed (spec 1.3.6 and 1.3.11).
TEST_F(PlacementTest, VariablesAreMadeAndUsedInNoOtherScope) {
  ParameterServerStrategy other{resolver_of({first.address()}), {.cluster = {.job_id = "job"}}};
  Variable v = make("v");
  const auto is_mixing = throws_error(ErrorCode::failed_precondition, "mixing strategies");
  {
    const StrategyScope scope = other.scope();
    EXPECT_THAT([&] { make("w"); }, is_mixing);
    EXPECT_THAT([&] { strategy.replicate([] { return TiedModule(); }); }, is_mixing);
    EXPECT_THAT([&] { v.read(); }, is_mixing);
    EXPECT_THAT([&] { v.assign(at::full({2}, 2.0)); }, is_mixing);
    EXPECT_THAT([&] { v.assign_add(at::full({2}, 2.0)); }, is_mixing);
    EXPECT_THAT([&] { other.run([&] { v.assign_sub(at::full({2}, 2.0)); }); }, is_mixing);
  }
  const StrategyScope scope = strategy.scope();
  const int before = first.pushes;
  v.assign(at::full({2}, 2.0));
  EXPECT_EQ(first.pushes, before + 1);
  EXPECT_EQ(ps_of(make("w")), 1U);
}

TEST_F(PlacementTest, NoVariableIsMadeBelowTheDefaultScope) {
  const auto is_mixing = throws_error(ErrorCode::failed_precondition, "got 'default'");
  {
    const StrategyScope below = default_strategy().scope();
    EXPECT_THAT([&] { make("v"); }, is_mixing);
    const StrategyScope scope = strategy.scope();
    EXPECT_THAT([&] { make("v"); }, is_mixing);
  }
  EXPECT_EQ(ps_of(make("v")), 0U);
}

// Regression: the remedy was for datasets only.
TEST(ParameterServerStrategyTest, TellsHowWorkersGetValues) {
  ParameterServerStrategy strategy(SimpleResolver(
      ClusterSpec(
          {{"chief", {"127.0.0.1:3"}}, {"worker", {"127.0.0.1:1"}}, {"ps", {"127.0.0.1:2"}}}),
      {.task_type = "chief", .task_id = 0}));
  EXPECT_THAT(
      [&] {
        strategy.distribute_values_from_function([](const ValueContext&) { return Nest(1); });
      },
      throws_error(ErrorCode::unimplemented,
                   "pass other values to ClusterCoordinator::schedule() as arguments"));
}

// Regression: std::thread threw while other threads were already connecting, which ended the
// process.
TEST(ParameterServerStrategyTest, SaysThatItGetsNoThreads) {
  ParameterServerStrategy strategy(SimpleResolver(
      ClusterSpec(
          {{"chief", {"127.0.0.1:3"}}, {"worker", {"127.0.0.1:1"}}, {"ps", {"127.0.0.1:2"}}}),
      {.task_type = "chief", .task_id = 0}));
  const testing::WithoutThreads none;
  EXPECT_THAT([&] { strategy.variable("v", at::full({}, 1.0)); },
              throws_error(ErrorCode::resource_exhausted,
                           "cannot start a thread for each task to connect to"));
}

// Regression: an evaluator that ran the training program replaced the chief as coordinator and
// ended its job.
TEST(ParameterServerStrategyTest, OnlyAChiefCoordinates) {
  for (const std::string task : {"evaluator", "worker", "ps"}) {
    ParameterServerStrategy strategy(
        SimpleResolver(ClusterSpec({{"worker", {"127.0.0.1:1"}}, {"ps", {"127.0.0.1:2"}}}),
                       {.task_type = task, .task_id = 0}));
    EXPECT_THAT([&] { strategy.variable("v", at::full({}, 1.0)); },
                throws_error(ErrorCode::invalid_argument,
                             "expected a coordinator's task (chief, or none), got " + task + ":0"));
  }
}

}  // namespace
}  // namespace cohort
