// SPDX-License-Identifier: Apache-2.0
#include "cohort/testing/cluster/test_cluster.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "cohort/testing/throws_error.h"

namespace cohort::testing {
namespace {

// A port was released before the next one was chosen, so two tasks could get the same port.
TEST(TestCluster, EachTaskHasAPortOfItsOwn) {
  constexpr int kWorkers = 500;
  TestClusterOptions options{.workers = kWorkers, .ps = 0};
  for (int i = 0; i < kWorkers; ++i) options.not_started.push_back("worker:" + std::to_string(i));
  const TestCluster cluster(std::move(options));
  std::set<std::string> addresses;
  for (const std::int64_t i : cluster.spec().task_indices("worker"))
    addresses.insert(cluster.spec().task_address("worker", i));
  EXPECT_EQ(addresses.size(), std::size_t{kWorkers});
}

// A client waited until its deadline.
TEST(TestCluster, SaysThatThereIsNoSuchProgram) {
  EXPECT_THAT([] { TestCluster({.command = {"/no/such/program"}}); },
              throws_error(ErrorCode::not_found, "got '/no/such/program' (No such file"));
}

// A client waited until its deadline, and its error did not have the command's output.
TEST(TestCluster, SaysThatTheProgramEndedAndWhatItPrinted) {
  EXPECT_THAT(
      [] {
        TestCluster({.command = {"/bin/sh", "-c", "echo no library >&2; exit 127"}});
      },
      throws_error(ErrorCode::failed_precondition,
                   "expected ps:0 to serve, got its end (exit code 127) before it did; the "
                   "command was '/bin/sh', which printed:\nno library"));
  EXPECT_THAT(
      [] {
        TestCluster({.command = {"/bin/sh", "-c", "kill -ABRT $$"}});
      },
      throws_error(ErrorCode::failed_precondition, "got its end (signal 6)"));
}

TEST(TestCluster, SaysThatAFileIsNoProgram) {
  const std::string file = ::testing::TempDir() + "no_program_" + std::to_string(::getpid());
  std::ofstream(file) << "#!/no/such/interpreter\n";
  EXPECT_THAT([&] { TestCluster({.command = {file}}); },
              throws_error(ErrorCode::not_found, "(Permission denied)"));
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  EXPECT_THAT([&] { TestCluster({.command = {file}}); },
              throws_error(ErrorCode::not_found, "(No such file or directory: the interpreter"));
  std::filesystem::remove(file);
}

// The coordinator connected to the other program, and failed with "got one of job …".
TEST(TestCluster, APortThatAnotherProgramHasTakenIsSaid) {
  TestCluster cluster({.workers = 0, .ps = 1, .not_started = {"ps:0"}});
  const std::string address = cluster.spec().task_address("ps", 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  const int other = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(other, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ASSERT_EQ(::bind(other, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  ASSERT_EQ(::listen(other, 1), 0);
  EXPECT_THAT(
      [&] { cluster.start("ps:0"); },
      throws_error(ErrorCode::resource_exhausted, "the port of ps:0 to be free, got 127.0.0.1"));
  ::close(other);
}

TEST(FreePort, IsReservedForThisProcess) {
  const int port = free_port();
  std::set<int> others;
  for (int i = 0; i < 300; ++i) others.insert(free_port());
  EXPECT_EQ(others.size(), 300U);
  EXPECT_FALSE(others.contains(port));
}

}  // namespace
}  // namespace cohort::testing
