// SPDX-License-Identifier: Apache-2.0
// Foreign clients that connect to the ports of a cluster while it trains.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/messages.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/test_seed.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::RawSocket;
using testing::TestCluster;

constexpr int kStrangers = 1000;
constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

// Foreign clients. The number of a client determines its task and what it sends. Used only from one
// thread.
class Strangers {
 public:
  explicit Strangers(const TestCluster& cluster) : cluster_(cluster) {}

  void come(int number) {
    const bool is_worker = number / kKinds % 2 == 0;
    task_ = is_worker ? "worker:0" : "ps:0";
    address_ = cluster_.spec().task_address(is_worker ? "worker" : "ps", 0);
    switch (number % kKinds) {
      case 0:
        return say(garbage(static_cast<std::size_t>(random_() % 4096)), false);
      case 1:
        return say(std::string(kPreface.substr(0, random_() % kPreface.size())), true);
      case 2:
        return say("", true);
      case 3:
        return say(std::string(kPreface) + garbage(1000), true);
      case 4:
        return say("COHF" + garbage(4000), true);
      case 5:
        return call([](auto& to) { to.register_function({.id = 0}, soon()); }, 0);
      case 6:
        return call([](auto& to) { to.release({0, 1, 2}, soon()); }, random_());
      case 7:
        return call([](auto& to) { to.shutdown(std::chrono::milliseconds(0), soon()); }, random_());
      case 8:
        return call([this](auto& to) { shake(to, "another job"); }, 5);
      case 9:
        return call([this](auto& to) { shake(to, std::string(100'000, 'x')); }, 5);
      case 10:
        return greet();
      default:
        return call(
            [](auto& to) {
              to.create_variables({{0, "sum", {at::kFloat, std::vector<std::int64_t>{}}, true}},
                                  soon());
            },
            1);
    }
  }
  int accepted() const { return accepted_; }
  const std::string& words() const { return words_; }

 private:
  static constexpr int kKinds = 12;

  std::string garbage(std::size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }
  // Sends bytes. A client that stays keeps the connection open until the server closes it.
  void say(const std::string& bytes, bool stays) {
    RawSocket socket = RawSocket::connected(address_);
    socket.write(std::string_view(bytes));
    if (stays) open_.push_back(std::move(socket));
  }
  void call(const std::function<void(rpc::ControlClient&)>& what, std::uint64_t coordinator) {
    refused([&] { what(*rpc::control_client(address_, task_, coordinator)); });
  }
  void shake(rpc::ControlClient& to, const std::string& job) {
    to.handshake({.caller = rpc::identity_of_process("chief:0", job, 5),
                  .expected_task = task_,
                  .coordinator_incarnation = 5},
                 soon());
  }
  void greet() {
    refused([&] {
      const auto requester =
          rpc::Requester::connect(rpc::backend_of("stream"),
                                  {.address = address_, .peer = task_, .deadline = soon()}, {}, {});
      requester->call(rpc::to_frame(rpc::Hello{"chief:0", "another job", 5, 0}), soon(), "hello");
    });
  }
  void refused(const std::function<void()>& act) {
    try {
      act();
      ++accepted_;
    } catch (const Error& error) {
      words_ += std::string(error.what()) + "\n";
    }
  }

  const TestCluster& cluster_;
  const testing::TestSeed seed_{5489};
  std::mt19937_64 random_{seed_.value()};
  std::string task_;
  std::string address_;
  std::vector<RawSocket> open_;
  std::string words_;
  int accepted_ = 0;
};

class StrangersTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, StrangersTest, ::testing::Values("stream", "grpc"),
                         [](const auto& one) { return std::string(one.param); });

// A call without a handshake could shut down a server, and one with a guessed id could overwrite a
// function.
TEST_P(StrangersTest, AThousandChangeNothing) {
  const TestCluster cluster(
      {.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server", "--backend", GetParam()}});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  Variable sum = strategy.variable("sum", at::zeros({}));
  const Function step([&] { sum.assign_add(at::ones({})); });
  coordinator.schedule(step);
  coordinator.join();

  std::atomic<bool> have_come = false;
  Strangers strangers(cluster);
  std::thread crowd([&] {
    for (int i = 0; i < kStrangers; ++i) strangers.come(i);
    have_come = true;
  });
  int scheduled = 1;
  while (!have_come) {
    for (int i = 0; i < 100; ++i) coordinator.schedule(step);
    scheduled += 100;
    coordinator.join();
  }
  crowd.join();
  EXPECT_EQ(strangers.accepted(), 0);
  EXPECT_EQ(sum.read().item<float>(), static_cast<float>(scheduled));
  EXPECT_EQ(coordinator.statistics().retries, 0U) << "a connection of the job was ended";
  const std::string job = rpc::default_job_id(cluster.spec().to_json());
  EXPECT_THAT(strangers.words(), Not(HasSubstr(job)));
  for (const char* task : {"worker:0", "ps:0"}) {
    const std::string output = cluster.output(task);
    std::size_t lines = 0;
    for (std::size_t at = output.find("refused 127"); at != std::string::npos;
         at = output.find("refused 127", at + 1)) {
      ++lines;
    }
    EXPECT_GT(lines, 0U) << output;
    EXPECT_LT(lines, static_cast<std::size_t>(kStrangers) / 10) << output;
  }
}

// Each task could open up to fifteen ports, chosen by the system.
TEST(DataPort, TensorsTravelOverIt) {
  const std::string port = std::to_string(testing::free_port());
  const TestCluster cluster({.workers = 1,
                             .ps = 1,
                             .command = {COHORT_COMMAND, "server", "--data-port", port},
                             .not_started = {"worker:0"}});
  const std::string job = rpc::default_job_id(cluster.spec().to_json());
  const auto connection =
      rpc::connect_task({.address = cluster.spec().task_address("ps", 0),
                         .task = "ps:0",
                         .caller = rpc::identity_of_process("chief:0", job, 5),
                         .coordinator_incarnation = 5,
                         .deadline = Deadline::after(std::chrono::seconds(60))});
  EXPECT_TRUE(connection.data->is_open());
  EXPECT_FALSE(RawSocket::connected("127.0.0.1:" + port).has_ended());
}

}  // namespace
}  // namespace cohort
