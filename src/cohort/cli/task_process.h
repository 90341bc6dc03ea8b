// SPDX-License-Identifier: Apache-2.0
// One task as a child process: started, watched, signalled, never left behind.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cohort::cli {

// The file that a shell would run for `program`; invalid_argument if there is none.
std::string find_program(const std::string& program);

// "SIGSEGV"; "signal 40" for one without a name.
std::string name_of_signal(int number);

// How a process ended.
struct ProcessExit {
  int code = 0;    // exit code, when signal is 0
  int signal = 0;  // the signal that ended it

  // As a shell has it: 128 + signal.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
  // "exit code 3" or "SIGSEGV (Segmentation fault)".
  std::string to_string() const;
};

struct ProcessOptions {
  std::vector<std::string> command = {};
  // Added to this process's own environment.
  std::vector<std::pair<std::string, std::string>> environment = {};
  // A captured process writes into pipes, reads nothing and leads a process group of its own, so
  // that Ctrl-C on the terminal does not reach it. Otherwise it has this process's streams and
  // group.
  bool is_captured = true;
  // A descriptor that the program keeps, with its number; -1: none but the standard three.
  int kept_fd = -1;
};

// Owns the child: the destructor kills it and waits. The kernel kills it when this process's
// starting thread dies. Used only from the thread that started it.
class TaskProcess {
 public:
  // Throws invalid_argument when the program cannot be run.
  explicit TaskProcess(const ProcessOptions& options);
  ~TaskProcess();
  TaskProcess(const TaskProcess&) = delete;
  TaskProcess& operator=(const TaskProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Becomes readable when the process has ended; -1 where the kernel cannot tell.
  int exit_fd() const { return exit_fd_; }
  // The reading ends, not blocking; -1 when not captured.
  int stdout_fd() const { return stdout_fd_; }
  int stderr_fd() const { return stderr_fd_; }

  // How it ended, once it has.
  std::optional<ProcessExit> poll_exit();
  // To the process and, when captured, to everything of its group.
  void signal(int number);

 private:
  pid_t pid_ = -1;
  bool is_group_ = false;
  int exit_fd_ = -1;
  int stdout_fd_ = -1;
  int stderr_fd_ = -1;
  std::optional<ProcessExit> exit_;
};

}  // namespace cohort::cli
