// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "cohort/core/error.h"
#include "cohort/net/name_lookup.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/control_calls/grpc_setup.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort::rpc {
namespace {

using cohort::testing::patience;
using cohort::testing::Promised;
using cohort::testing::throws_error;
using net::GetAddresses;
using ::testing::HasSubstr;

// Answers health calls, those of a closed gate when it opens. Thread-safe.
struct AskedTask final : ControlService {
  HandshakeReply handshake(const HandshakeRequest&, const Caller&) override { return {}; }
  TaskHealth health() override {
    entered.set(true);
    if (is_gated) gate.wait();
    return {};
  }
  std::shared_ptr<CoordinatorSession> session_of(const Caller&) override { return nullptr; }
  void shutdown(const Caller&, std::chrono::milliseconds) override {}

  Promised<bool> entered;
  Promised<bool> gate;
  std::atomic<bool> is_gated{false};
};

// A resolver whose names have these numbers.
GetAddresses answering(std::vector<const char*> numbers) {
  return [numbers](const char*, const char* port, const addrinfo* hints, addrinfo** found) {
    addrinfo** end = found;
    for (const char* number : numbers) {
      const int result = ::getaddrinfo(number, port, hints, end);
      if (result != 0) return result;
      end = &(*end)->ai_next;
    }
    return 0;
  };
}

class ControlClientTest : public ::testing::Test {
 protected:
  // Clients of a name, whose resolver is the test's.
  std::shared_ptr<ControlClient> client(const std::string& host, const GetAddresses& resolver) {
    return control_client(host + port_, "ps:1", 7, resolver);
  }
  static void ask(ControlClient& client, Deadline deadline = patience()) {
    client.health(deadline);
  }

  AskedTask task_;
  std::unique_ptr<ControlServer> server_ = serve_control("127.0.0.1:0", task_);
  const std::string port_ = server_->address().substr(server_->address().rfind(':'));
};

// gRPC's own resolver waited for a dead name server, although /etc/hosts had the name.
TEST_F(ControlClientTest, NamesAreNotLookedUpByGrpc) {
  const auto named = client("grpc-knows-no.test", answering({"127.0.0.1"}));
  EXPECT_NO_THROW(ask(*named));
}

TEST_F(ControlClientTest, ANameOfBothFamiliesIsTriedAtEachAddress) {
  const auto named = client("both.test", answering({"::1", "127.0.0.1"}));
  EXPECT_NO_THROW(ask(*named));
}

TEST_F(ControlClientTest, ALookupWithoutAnAnswerEndsAtTheDeadline) {
  std::promise<void> answer;
  const auto named = client("unanswered.test", [answered = answer.get_future().share()](auto...) {
    answered.wait();
    return EAI_AGAIN;
  });
  EXPECT_THAT([&] { ask(*named, Deadline::after(std::chrono::milliseconds(20))); },
              throws_error(ErrorCode::deadline_exceeded,
                           "expected the address of host 'unanswered.test' for ps:1 "
                           "(unanswered.test" +
                               port_ +
                               ", grpc) before the deadline, got none; see whether name "
                               "resolution (DNS) works on this host"));
  answer.set_value();
}

// A pod that is started again has its old name and a new address.
TEST_F(ControlClientTest, ATaskThatComesBackWithAnotherAddressIsFound) {
  std::atomic<bool> has_moved{false};
  const auto named = client("pod.test", [&has_moved](auto... question) {
    return answering({has_moved ? "127.0.0.2" : "127.0.0.1"})(question...);
  });
  ask(*named);
  AskedTask moved;
  const auto next = serve_control("127.0.0.2" + port_, moved);
  server_.reset();
  has_moved = true;
  EXPECT_NO_THROW(ask(*named));
  EXPECT_TRUE(moved.entered.is_set());
}

TEST_F(ControlClientTest, ACancelledLookupEnds) {
  std::promise<void> answer;
  Promised<bool> is_asked;
  const auto named =
      client("cancelled.test", [&is_asked, answered = answer.get_future().share()](auto...) {
        is_asked.set(true);
        answered.wait();
        return EAI_AGAIN;
      });
  std::thread owner([&] {
    is_asked.wait();
    named->cancel();
  });
  EXPECT_THAT([&] { ask(*named); }, throws_error(ErrorCode::cancelled, "cancelled its calls"));
  answer.set_value();
  owner.join();
}

// It was unavailable (peer_lost), as if the task had gone.
TEST_F(ControlClientTest, CancelledCallsSaySoAndDoNotBlameTheTask) {
  const auto own = client("127.0.0.1", answering({}));
  task_.is_gated = true;
  std::thread owner([&] {
    task_.entered.wait();
    own->cancel();
  });
  for (const char* call : {"the running one", "a later one"}) {
    try {
      ask(*own);
      ADD_FAILURE() << call << " was answered";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::cancelled) << call << ": " << error.what();
      EXPECT_EQ(error.cause(), ErrorCause::none);
      EXPECT_EQ(error.origin(), "");
      EXPECT_THAT(error.what(), HasSubstr("asking the health of ps:1"));
    }
  }
  task_.gate.set(true);
  owner.join();
}

TEST_F(ControlClientTest, ALookupKeepsNoOtherTaskFromBeingAsked) {
  const auto named = client("waits-for-the-other.test", [this](auto...) {
    task_.entered.wait();
    return EAI_NONAME;
  });
  const auto errors = health_of_all({named, client("127.0.0.1", answering({}))}, patience());
  EXPECT_FALSE(errors.at(1)) << errors[1]->what();
  ASSERT_TRUE(errors.at(0));
  EXPECT_EQ(errors[0]->cause(), ErrorCause::peer_lost);
  EXPECT_THAT(errors[0]->message(), HasSubstr(gai_strerror(EAI_NONAME)));
}

TEST(GrpcTarget, HasAllAddressesInOneFamily) {
  const auto target_of = [](std::vector<const char*> numbers) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST;
    addrinfo* found = nullptr;
    EXPECT_EQ(answering(std::move(numbers))("", "80", &hints, &found), 0);
    std::string target = internal::grpc_target_of(*found);
    ::freeaddrinfo(found);
    return target;
  };
  EXPECT_EQ(target_of({"10.0.0.1", "10.0.0.2"}), "ipv4:10.0.0.1:80,10.0.0.2:80");
  EXPECT_EQ(target_of({"2001:db8::1"}), "ipv6:[2001:db8::1]:80");
  EXPECT_EQ(target_of({"10.0.0.1", "::1"}), "ipv6:[::ffff:10.0.0.1]:80,[::1]:80");
}

}  // namespace
}  // namespace cohort::rpc
