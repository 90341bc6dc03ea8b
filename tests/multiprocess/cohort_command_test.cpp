// SPDX-License-Identifier: Apache-2.0
// The `cohort` command as a shell meets it: exit codes, messages, signals, nothing left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "cohort/cli/local_cluster.h"
#include "cohort/cli/task_process.h"

namespace cohort::cli {
namespace {

using ::testing::HasSubstr;

// A running `cohort …` and what it wrote.
class RunningCommand {
 public:
  explicit RunningCommand(std::vector<std::string> words, const std::string& tf_config = "")
      : process_({with_program(std::move(words)), {{"TF_CONFIG", tf_config}}, true}) {}

  // Reads until `text` has been written to stdout; false at its end.
  bool await(const std::string& text) {
    while (out_.find(text) == std::string::npos) {
      if (!read_more()) return false;
    }
    return true;
  }
  void signal(int number) { ::kill(process_.pid(), number); }
  ProcessExit wait() {
    while (read_more()) {
    }
    pollfd ended{process_.exit_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&ended, 1, 60'000), 1) << "the command does not end";
    return process_.poll_exit().value_or(ProcessExit{-1, 0});
  }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  static std::vector<std::string> with_program(std::vector<std::string> words) {
    words.insert(words.begin(), COHORT_COMMAND);
    return words;
  }
  // False when both streams have ended, or nothing came for a minute.
  bool read_more() {
    pollfd streams[] = {{is_out_open_ ? process_.stdout_fd() : -1, POLLIN, 0},
                        {is_err_open_ ? process_.stderr_fd() : -1, POLLIN, 0}};
    if (!(is_out_open_ || is_err_open_) || ::poll(streams, 2, 60'000) <= 0) return false;
    if (streams[0].revents != 0) is_out_open_ = take(process_.stdout_fd(), out_);
    if (streams[1].revents != 0) is_err_open_ = take(process_.stderr_fd(), err_);
    return true;
  }
  static bool take(int fd, std::string& text) {
    char bytes[4096];
    const ssize_t count = ::read(fd, bytes, sizeof bytes);
    if (count > 0) text.append(bytes, static_cast<std::size_t>(count));
    return count > 0;
  }

  TaskProcess process_;
  std::string out_;
  std::string err_;
  bool is_out_open_ = true;
  bool is_err_open_ = true;
};

TEST(CohortServer, ServesUntilItIsTold) {
  const LocalCluster cluster(1, 1);
  RunningCommand server({"server", "--json"}, cluster.tf_config({"ps", 0}));
  EXPECT_TRUE(server.await("\"serving\"")) << server.err();
  EXPECT_THAT(server.out(), HasSubstr(cluster.address({"ps", 0})));
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait().to_string(), "exit code 0");
}

TEST(CohortServer, ATakenPortIsAConfigurationError) {
  const LocalCluster cluster(1, 1);
  RunningCommand first({"server"}, cluster.tf_config({"ps", 0}));
  ASSERT_TRUE(first.await("serves at")) << first.err();
  RunningCommand second({"server"}, cluster.tf_config({"ps", 0}));
  EXPECT_EQ(second.wait().to_string(), "exit code 64");
  EXPECT_THAT(second.err(), HasSubstr(cluster.address({"ps", 0})));
}

struct BadConfig {
  const char* name;
  const char* tf_config;
};
class BadTfConfig : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadTfConfig, IsExitCode64AndAMessage) {
  RunningCommand server({"server"}, GetParam().tf_config);
  EXPECT_EQ(server.wait().to_string(), "exit code 64");
  EXPECT_THAT(server.err(), HasSubstr("expected"));
}

INSTANTIATE_TEST_SUITE_P(
    CohortServer, BadTfConfig,
    ::testing::Values(
        BadConfig{"Unset", ""}, BadConfig{"NoJson", "{cluster"},
        BadConfig{"WrongType", R"({"cluster": 3})"},
        BadConfig{
            "NoTask",
            R"({"cluster": {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}})"},
        BadConfig{"NoPs", R"({"cluster": {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]},
                              "task": {"type": "worker", "index": 0}})"},
        BadConfig{"NoWorker", R"({"cluster": {"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:3"]},
                                  "task": {"type": "ps", "index": 0}})"},
        BadConfig{
            "TwiceTheSameAddress",
            R"({"cluster": {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:2"]},
                      "task": {"type": "ps", "index": 0}})"},
        BadConfig{
            "IndexOutOfRange",
            R"({"cluster": {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]},
                      "task": {"type": "worker", "index": 1}})"},
        BadConfig{
            "AddressOfAnotherHost",
            R"({"cluster": {"chief": ["192.0.2.1:1"], "worker": ["192.0.2.1:2"], "ps": ["192.0.2.1:3"]},
                      "task": {"type": "worker", "index": 0}})"}),
    [](const auto& config) { return config.param.name; });

TEST(CohortLaunch, CtrlCEndsAllAndIs130) {
  RunningCommand launch(
      {"launch", "--workers", "1", "--ps", "1", "--", "sh", "-c", "echo $$; exec sleep 1000"});
  ASSERT_TRUE(launch.await("[worker:0] ")) << launch.err();
  launch.signal(SIGINT);
  EXPECT_EQ(launch.wait().to_string(), "exit code 130");
}

TEST(CohortLaunch, StandardServersServeAProgramWithoutThem) {
  RunningCommand launch(
      {"launch", "--workers", "1", "--ps", "1", "--", "sh", "-c",
       "case $TF_CONFIG in *'\"type\":\"chief\"'*) sleep 1000;; *) exec \"$0\" server;; esac",
       COHORT_COMMAND});
  EXPECT_TRUE(launch.await("[worker:0] worker:0 serves at 127.0.0.1:")) << launch.err();
  EXPECT_TRUE(launch.await("[ps:0] ps:0 serves at 127.0.0.1:")) << launch.err();
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait().to_string(), "exit code 143");
}

}  // namespace
}  // namespace cohort::cli
