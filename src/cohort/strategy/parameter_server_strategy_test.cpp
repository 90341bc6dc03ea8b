// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/parameter_server_strategy.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>

#include "cohort/cluster/resolvers/simple_resolver.h"
#include "cohort/rpc/channel.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/control.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

// A parameter server that keeps nothing, and refuses new variables when told so.
class ForgetfulPs final : public rpc::ControlService {
 public:
  std::atomic<bool> refuses = false;
  std::atomic<int> taken = 0;

  SimpleResolver resolver() const {
    return SimpleResolver(ClusterSpec({{"chief", {"127.0.0.1:1"}},
                                       {"worker", {"127.0.0.1:2"}},
                                       {"ps", {control_->address()}}}),
                          {.task_type = "chief", .task_id = 0});
  }

  rpc::HandshakeReply handshake(const rpc::HandshakeRequest&) override {
    return {rpc::identity_of_process("ps:0", "job", 1), {{"stream", listener_->address()}}};
  }
  void create_variables(const std::vector<rpc::VariableSpec>& variables) override {
    COHORT_CHECK(!refuses, ErrorCode::resource_exhausted, "no memory for ", variables.size());
    taken += static_cast<int>(variables.size());
  }
  rpc::Health health() override { return {}; }
  void register_function(const rpc::FunctionBody&) override {}
  void create_iterator(const rpc::IteratorSpec&) override {}
  void release(const std::vector<std::uint64_t>&) override {}
  void shutdown(std::chrono::milliseconds) override {}

 private:
  static rpc::Channel::Handlers answering(const std::shared_ptr<rpc::Channel>& channel) {
    return {.on_frame = [channel](rpc::Frame frame) {
      frame.role = rpc::Frame::Role::response;
      frame.metadata.clear();
      frame.tensors.clear();
      channel->send(std::move(frame));
    }};
  }

  std::unique_ptr<rpc::Listener> listener_ =
      rpc::backend_of("stream").listen({.address = "127.0.0.1:0"}, answering);
  std::unique_ptr<rpc::ControlServer> control_ = rpc::serve_control("127.0.0.1:0", *this);
};

// As much of a torch::nn module as replicate() needs; both of its tensors are one.
struct TiedModule {
  struct Entry {
    std::string name;
    at::Tensor tensor;
    const std::string& key() const { return name; }
    const at::Tensor& value() const { return tensor; }
  };
  at::Tensor weight = at::full({2}, 1.0);
  std::vector<Entry> named_parameters() const { return {{"a", weight}, {"b", weight}}; }
  std::vector<Entry> named_buffers() const { return {}; }
};

class PublishTest : public ::testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const Variable& variable : strategy.variables().variables())
      all.push_back(variable.name());
    return all;
  }

  ForgetfulPs ps;
  ParameterServerStrategy strategy{ps.resolver(), {.cluster = {.job_id = "job"}}};
};

// It stayed among the variables: its name was taken, and run() asked the servers for it.
TEST_F(PublishTest, AVariableThatAServerRefusedCanBeMadeAgain) {
  const auto make = [&] { strategy.variable("v", at::full({2}, 1.0)); };
  ps.refuses = true;
  EXPECT_THAT(make, throws_error(ErrorCode::resource_exhausted, "no memory"));
  EXPECT_THAT(names(), ElementsAre());
  ps.refuses = false;
  make();
  EXPECT_THAT(names(), ElementsAre("v"));
  EXPECT_THAT(make, throws_error(ErrorCode::already_exists, "got 'v'"));
  EXPECT_EQ(ps.taken, 1) << "a taken name costs the server nothing";
}

TEST_F(PublishTest, AModelWithTiedWeightsLeavesNothingBehind) {
  EXPECT_THAT([&] { strategy.replicate([] { return TiedModule(); }); },
              throws_error(ErrorCode::already_exists, "expected memory of its own"));
  EXPECT_THAT(names(), ElementsAre());
  EXPECT_EQ(ps.taken, 0);
}

// What std::thread threw ended the process, where other threads were connecting already.
TEST(ParameterServerStrategyTest, SaysThatItGetsNoThreads) {
  ParameterServerStrategy strategy(SimpleResolver(
      ClusterSpec(
          {{"chief", {"127.0.0.1:3"}}, {"worker", {"127.0.0.1:1"}}, {"ps", {"127.0.0.1:2"}}}),
      {.task_type = "chief", .task_id = 0}));
  pthread_attr_t before;
  pthread_attr_t huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 47), 0);  // of all there is
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  EXPECT_THAT(
      [&] { strategy.variable("v", at::full({}, 1.0)); },
      throws_error(ErrorCode::resource_exhausted, "expected a thread for each task, got 0"));
  pthread_setattr_default_np(&before);
  pthread_attr_destroy(&huge);
  pthread_attr_destroy(&before);
}

}  // namespace
}  // namespace cohort
