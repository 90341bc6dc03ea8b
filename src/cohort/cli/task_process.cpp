// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/task_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "cohort/cli/launch/pipe.h"
#include "cohort/core/error.h"
#include "cohort/core/start_thread.h"
#include "cohort/core/system_error.h"

namespace cohort::cli {
namespace {

// Everything that the child needs. It is made before fork(), because after that the child may only
// make system calls.
struct Prepared {
  std::string path;
  std::vector<std::string> environment;
  std::vector<char*> argv;
  std::vector<char*> envp;
};

void prepare(const ProcessOptions& options, Prepared& out) {
  out.path = find_program(options.command.front());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    bool is_replaced = false;
    for (const auto& [replaced, value] : options.environment) is_replaced |= replaced == name;
    if (!is_replaced) out.environment.emplace_back(*entry);
  }
  for (const auto& [name, value] : options.environment)
    out.environment.push_back(name + "=" + value);
  for (const std::string& word : options.command)
    out.argv.push_back(const_cast<char*>(word.c_str()));
  for (std::string& entry : out.environment) out.envp.push_back(entry.data());
  out.argv.push_back(nullptr);
  out.envp.push_back(nullptr);
}

// Runs in the child, where all signals are blocked: executes the program, or writes errno to
// `error_fd` and ends.
[[noreturn]] void become(const Prepared& program, pid_t parent, const ProcessOptions& options,
                         int error_fd, int out_fd, int err_fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent ended before prctl()
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(number)) ::signal(number, SIG_DFL);
  }
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int fd : options.kept_fds) ::fcntl(fd, F_SETFD, 0);
  if (options.is_captured) {
    ::setpgid(0, 0);
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(out_fd, STDOUT_FILENO);
    ::dup2(err_fd, STDERR_FILENO);
  }
  ::execve(program.path.c_str(), program.argv.data(), program.envp.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(error_fd, &error, sizeof error);
  ::_exit(127);
}

bool is_executable_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_program(const std::string& program) {
  std::vector<std::string> candidates;
  if (program.find('/') != std::string::npos) {
    candidates.push_back(program);
  } else if (!program.empty()) {
    const char* path = std::getenv("PATH");
    std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
    for (std::string folder; std::getline(folders, folder, ':');)
      candidates.push_back((folder.empty() ? "." : folder) + "/" + program);
  }
  const auto found = std::find_if(candidates.begin(), candidates.end(), is_executable_file);
  COHORT_CHECK(found != candidates.end(), ErrorCode::invalid_argument,
               "[cli.launch] expected a program that can be run, got '", program,
               "', which is no executable file; write its path, as ./program");
  return *found;
}

std::string name_of_signal(int number) {
  const char* name = ::sigabbrev_np(number);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(number);
}

bool is_ignored(int number) {
  struct sigaction now {};
  ::sigaction(number, nullptr, &now);
  return now.sa_handler == SIG_IGN;
}

std::string ProcessExit::to_string() const {
  if (signal == 0) return "exit code " + std::to_string(code);
  return name_of_signal(signal) + " (" + ::strsignal(signal) + ")";
}

TaskProcess::TaskProcess(const ProcessOptions& options) : is_group_(options.is_captured) {
  Prepared program;
  prepare(options, program);
  Pipe failure, out, err;
  const pid_t parent = ::getpid();
  // Between fork() and the program's start the child has the handlers of this process: a signal to
  // the child would count as one to this process, and would not end the child.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  if (pid_ == 0) become(program, parent, options, failure.writer(), out.writer(), err.writer());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  COHORT_CHECK(pid_ >= 0, ErrorCode::resource_exhausted,
               "[cli.launch] expected a new process to run '", program.path,
               "', got: ", text_of_errno(errno), "; ", kThreadLimitsRemedy);
  if (is_group_) ::setpgid(pid_, pid_);  // in parent and child, as either may run first
  failure.close_writer();
  int error = 0;
  ssize_t count = 0;
  do {
    count = ::read(failure.reader(), &error, sizeof error);
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    ::waitpid(pid_, nullptr, 0);
    internal::throw_error(code_of_errno(error, ErrorCode::invalid_argument),
                          "[cli.launch] expected a program that can be run, got '", program.path,
                          "': ", text_of_errno(error));
  }
  if (is_group_) {
    for (Pipe* pipe : {&out, &err}) pipe->make_reader_nonblocking();
    stdout_fd_ = out.take_reader();
    stderr_fd_ = err.take_reader();
  }
  exit_fd_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
}

TaskProcess::~TaskProcess() {
  if (poll_exit()) return;
  signal(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::optional<ProcessExit> TaskProcess::poll_exit() {
  if (exit_) return exit_;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0)
    return {};
  // The processes that the task has started end with it. Until waitpid() below, no other process
  // group can have this number.
  if (is_group_) ::kill(-pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  exit_ = ProcessExit{WIFEXITED(status) ? WEXITSTATUS(status) : 0,
                      WIFSIGNALED(status) ? WTERMSIG(status) : 0};
  return exit_;
}

void TaskProcess::signal(int number) {
  if (!exit_) ::kill(is_group_ ? -pid_ : pid_, number);
}

}  // namespace cohort::cli
