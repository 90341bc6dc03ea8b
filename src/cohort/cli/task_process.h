// SPDX-License-Identifier: Apache-2.0
// A task as a child process, which ends when this process ends.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/file_descriptor.h"

namespace cohort::cli {

// The file that a shell would run for `program`. Throws invalid_argument if there is none.
std::string find_program(const std::string& program);

// "SIGSEGV", or "signal 40" for a signal without a name.
std::string name_of_signal(int number);

// Whether this process ignores the signal, as nohup makes it do. Then it must stay ignored.
bool is_ignored(int number);

// How a process ended.
struct ProcessExit {
  int code = 0;    // the exit code if `signal` is 0
  int signal = 0;  // the signal that ended it, or 0

  // The exit code that a shell reports: 128 + signal for a signal.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
  // "exit code 3" or "SIGSEGV (Segmentation fault)".
  std::string to_string() const;
};

struct ProcessOptions {
  std::vector<std::string> command = {};
  // Added to this process's own environment.
  std::vector<std::pair<std::string, std::string>> environment = {};
  // A captured process writes to pipes, reads /dev/null, and has its own process group, so that
  // Ctrl-C on the terminal does not reach it. Otherwise it has this process's streams and group.
  bool is_captured = true;
  // The descriptors that the program inherits besides the standard streams.
  std::vector<int> kept_fds = {};
};

// Owns the child: the destructor kills it and waits for its end. The kernel kills it when the
// thread that started it ends. Used only from that thread.
class TaskProcess {
 public:
  // Throws invalid_argument if the program cannot be run, resource_exhausted if the system has no
  // process left.
  explicit TaskProcess(const ProcessOptions& options);
  ~TaskProcess();
  TaskProcess(const TaskProcess&) = delete;
  TaskProcess& operator=(const TaskProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Can be read when the process has ended; -1 on kernels without pidfd.
  int exit_fd() const { return exit_fd_.get(); }
  // The non-blocking reading ends of its pipes; -1 if the process is not captured.
  int stdout_fd() const { return stdout_fd_.get(); }
  int stderr_fd() const { return stderr_fd_.get(); }

  // How the process has ended; nothing while it runs.
  std::optional<ProcessExit> poll_exit();
  // Sends a signal to the process, and to its whole group if it is captured.
  void signal(int number);

 private:
  pid_t pid_ = -1;
  bool is_group_ = false;
  FileDescriptor exit_fd_;
  FileDescriptor stdout_fd_;
  FileDescriptor stderr_fd_;
  std::optional<ProcessExit> exit_;
};

}  // namespace cohort::cli
