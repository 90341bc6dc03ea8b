// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/isolation.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <system_error>

namespace cohort::conformance {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

bool write_all(int file, const char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(file, bytes, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes += written;
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

// A child process that runs the pieces from `first` on and sends each result as length and bytes.
class Child {
 public:
  Child(std::size_t first, std::size_t count, const Work& work) {
    int ends[2];
    if (::pipe(ends) != 0) fail("pipe");
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) fail("fork");
    if (pid_ == 0) {
      ::close(ends[0]);
      work_through(first, count, work, ends[1]);
    }
    ::close(ends[1]);
    results_ = ends[0];
  }

  ~Child() {
    ::close(results_);
    if (!is_reaped_) {
      ::kill(pid_, SIGKILL);
      reap();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Ended next(std::chrono::milliseconds deadline) {
    const auto until = Clock::now() + deadline;
    std::uint64_t size = 0;
    std::string text;
    std::optional<Ended::How> broken = receive(reinterpret_cast<char*>(&size), sizeof size, until);
    if (!broken) {
      text.resize(size);
      broken = receive(text.data(), size, until);
    }
    if (!broken) return {Ended::How::result, std::move(text)};
    if (*broken == Ended::How::crash) return {Ended::How::crash, reap()};
    return {Ended::How::hang, ""};
  }

 private:
  [[noreturn]] static void work_through(std::size_t first, std::size_t count, const Work& work,
                                        int results) {
    for (std::size_t i = first; i < count; ++i) {
      const std::string text = work(i);
      const std::uint64_t size = text.size();
      if (!write_all(results, reinterpret_cast<const char*>(&size), sizeof size) ||
          !write_all(results, text.data(), text.size())) {
        break;
      }
    }
    std::fflush(nullptr);
    ::_exit(0);  // does not wait for threads that a piece left running
  }

  std::optional<Ended::How> receive(char* bytes, std::size_t size, Clock::time_point until) {
    while (size > 0) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
      pollfd readable{results_, POLLIN, 0};
      const int ready = left <= 0 ? 0 : ::poll(&readable, 1, static_cast<int>(left));
      if (ready < 0 && errno == EINTR) continue;
      if (ready < 0) fail("poll");
      if (ready == 0) return Ended::How::hang;
      const ssize_t count = ::read(results_, bytes, size);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return Ended::How::crash;
      bytes += count;
      size -= static_cast<std::size_t>(count);
    }
    return std::nullopt;
  }

  std::string reap() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    is_reaped_ = true;
    if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
    return "ended with exit code " + std::to_string(WEXITSTATUS(status));
  }

  pid_t pid_ = -1;
  int results_ = -1;
  bool is_reaped_ = false;
};

}  // namespace

void run_isolated(std::size_t count, std::chrono::milliseconds deadline, const Work& work,
                  const Report& report) {
  for (std::size_t next = 0; next < count;) {
    Child child(next, count, work);
    Ended ended;
    do {
      ended = child.next(deadline);
      report(next++, ended);
    } while (next < count && ended.how == Ended::How::result);
  }
}

}  // namespace cohort::conformance
