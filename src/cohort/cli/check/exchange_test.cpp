// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/check/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <future>

#include "cohort/core/file_descriptor.h"
#include "cohort/net/socket.h"
#include "cohort/rpc/reserved_port.h"

namespace cohort::cli {
namespace {

using PeerState = PeerReport::State;

constexpr auto kLongTime = std::chrono::seconds(60);
constexpr auto kShortTime = std::chrono::milliseconds(300);

// Tasks of one cluster, as threads.
class ExchangedFactsTest : public ::testing::Test {
 protected:
  std::string address(std::size_t task) const {
    return "127.0.0.1:" + std::to_string(ports_.at(task).number());
  }
  static std::string name(std::size_t task) { return "worker:" + std::to_string(task); }
  TaskFacts facts(std::size_t task) const { return own_facts(name(task), "{}", {}); }
  std::vector<PeerReport> peers_of(std::size_t task) const {
    std::vector<PeerReport> peers;
    for (std::size_t other = 0; other < ports_.size(); ++other) {
      if (other != task) peers.push_back({.task = name(other), .address = address(other)});
    }
    return peers;
  }
  ExchangedFacts exchange(std::size_t task, Duration timeout = kLongTime) const {
    return exchange_facts(facts(task), address(task), peers_of(task), Deadline::after(timeout));
  }

  std::vector<rpc::ReservedPort> ports_{3};
};

TEST_F(ExchangedFactsTest, AreThoseOfAllTasks) {
  std::vector<std::future<ExchangedFacts>> tasks;
  for (std::size_t task = 0; task < 3; ++task)
    tasks.push_back(std::async(std::launch::async, [this, task] { return exchange(task); }));
  for (auto& task : tasks) {
    const ExchangedFacts exchanged = task.get();
    EXPECT_TRUE(exchanged.is_listening);
    for (const PeerReport& peer : exchanged.peers) {
      ASSERT_EQ(peer.state, PeerState::answers) << peer.task << ": " << peer.reason;
      EXPECT_EQ(peer.facts->task, peer.task);
      EXPECT_TRUE(peer.has_dialed);
    }
  }
}

TEST_F(ExchangedFactsTest, LackThoseOfATaskThatDoesNotRun) {
  auto other = std::async(std::launch::async, [this] { return exchange(1, kShortTime * 10); });
  const ExchangedFacts exchanged = exchange(0, kShortTime * 10);
  EXPECT_EQ(exchanged.peers[0].state, PeerState::answers);
  EXPECT_EQ(exchanged.peers[1].state, PeerState::refused);
  other.get();
}

TEST_F(ExchangedFactsTest, KnowAStrangerAndATakenPort) {
  std::string of_stranger = address(1), taken = address(0);
  const FileDescriptor stranger = net::listen_on(of_stranger);
  const FileDescriptor taking = net::listen_on(taken);
  const auto greeting = std::async(std::launch::async, [&] {
    FileDescriptor accepted;
    while (!accepted.is_open())
      accepted = FileDescriptor(::accept(stranger.get(), nullptr, nullptr));
    const std::string text = "HTTP/1.1 400 Bad Request, this is another program\r\n";
    ::send(accepted.get(), text.data(), text.size(), MSG_NOSIGNAL);
    ::shutdown(accepted.get(), SHUT_WR);
    char byte = 0;
    while (::recv(accepted.get(), &byte, 1, 0) > 0) {
    }
  });
  std::vector<PeerReport> peers = {{.task = name(1), .address = of_stranger}};
  const ExchangedFacts exchanged =
      exchange_facts(facts(0), address(0), peers, Deadline::after(kShortTime * 10));
  EXPECT_FALSE(exchanged.is_listening);
  ASSERT_TRUE(exchanged.listening);
  EXPECT_EQ(exchanged.listening->code(), ErrorCode::resource_exhausted);
  EXPECT_EQ(exchanged.peers[0].state, PeerState::stranger);
}

TEST_F(ExchangedFactsTest, KnowANameThatDoesNotExist) {
  const ExchangedFacts exchanged =
      exchange_facts(facts(0), "", {{.task = name(1), .address = "no.such.host.invalid:1"}},
                     Deadline::after(kShortTime * 10));
  EXPECT_THAT(exchanged.peers[0].state,
              ::testing::AnyOf(PeerState::name_not_found, PeerState::no_name_server));
}

}  // namespace
}  // namespace cohort::cli
