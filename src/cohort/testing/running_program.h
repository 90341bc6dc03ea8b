// SPDX-License-Identifier: Apache-2.0
// Runs a program and captures its output and exit status.
//
//   RunningProgram server({"cohort", "server"}, {{"TF_CONFIG", config}});
//   EXPECT_TRUE(server.await("serves at"));  server.signal(SIGTERM);
//   EXPECT_EQ(server.wait().to_string(), "exit code 0");
//
// The test fails if the program exits but leaves a process of its group running.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cohort/cli/task_process.h"
#include "cohort/core/clock.h"

namespace cohort::testing {

// The destructor kills the program. Used only from one thread.
class RunningProgram {
 public:
  explicit RunningProgram(std::vector<std::string> words,
                          std::vector<std::pair<std::string, std::string>> environment = {})
      : process_({std::move(words), std::move(environment), true}) {}

  // Reads until stdout contains `text`; returns false at the end of the output.
  bool await(const std::string& text) { return await(out_, text); }
  // The same for stderr.
  bool await_error(const std::string& text) { return await(err_, text); }
  pid_t pid() const { return process_.pid(); }
  // Does nothing after wait() returned, since the pid may belong to another process.
  void signal(int number) {
    if (!has_ended_) ::kill(process_.pid(), number);
  }
  cli::ProcessExit wait() {
    while (read_more()) {
    }
    pollfd ended{process_.exit_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&ended, 1, kPatience), 1) << "the program does not end; it wrote:\n"
                                               << out_ << err_;
    EXPECT_EQ(left_behind(), "") << "left running by the program";
    const std::optional<cli::ProcessExit> exit = process_.poll_exit();
    has_ended_ = exit.has_value();
    return exit.value_or(cli::ProcessExit{-1, 0});
  }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  static constexpr int kPatience = 60'000;  // milliseconds

  bool await(const std::string& written, const std::string& text) {
    while (written.find(text) == std::string::npos) {
      if (!read_more()) return false;
    }
    return true;
  }
  // The pids of other processes in the program's group, if the program exited by itself. Call this
  // before poll_exit(), which kills them.
  std::string left_behind() const {
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(process_.pid()), &info, WEXITED | WNOHANG | WNOWAIT);
    std::string found;
    if (info.si_pid == 0 || info.si_code != CLD_EXITED) return found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "stat");  // "17 (name) R parent group …"
      std::string text;
      std::getline(file, text);
      std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
      char state = 'Z';
      pid_t parent = 0;
      pid_t group = 0;
      const bool is_process = static_cast<bool>(fields >> state >> parent >> group);
      const bool runs = is_process && state != 'Z' && state != 'X';
      if (runs && group == process_.pid()) found += " " + entry.path().filename().string();
    }
    return found;
  }
  // Returns false when both streams have ended, or if nothing arrives for a minute.
  bool read_more() {
    pollfd streams[] = {{is_out_open_ ? process_.stdout_fd() : -1, POLLIN, 0},
                        {is_err_open_ ? process_.stderr_fd() : -1, POLLIN, 0}};
    if (!(is_out_open_ || is_err_open_) || ::poll(streams, 2, kPatience) <= 0) return false;
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

  cli::TaskProcess process_;
  std::string out_;
  std::string err_;
  bool is_out_open_ = true;
  bool is_err_open_ = true;
  bool has_ended_ = false;
};

// Makes this process the parent of orphaned descendants, and fails the test if a child process
// still runs at its end. One that was killed just then has a moment to end.
class LeavesNoProcess : public ::testing::Test {
 protected:
  LeavesNoProcess() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~LeavesNoProcess() override {
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (!children().empty() && !deadline.has_expired()) ::poll(nullptr, 0, 5);
    EXPECT_EQ(children(), "") << "left running";
  }

  // The pids of the child processes that still run.
  static std::string children() {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {  // reaps those that have ended
    }
    std::ifstream file("/proc/self/task/" + std::to_string(::getpid()) + "/children");
    std::string text;
    std::getline(file, text);
    return text;
  }
};

}  // namespace cohort::testing
