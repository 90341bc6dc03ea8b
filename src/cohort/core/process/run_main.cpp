// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/run_main.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

#include "cohort/core/address_room.h"
#include "cohort/core/error.h"
#include "cohort/core/kept_memory.h"
#include "cohort/core/process/launcher_fd.h"
#include "cohort/core/spelling.h"

namespace cohort {
namespace {

constexpr int kExitWithoutMemory = 75;
constexpr std::string_view kTextWithoutMemory =
    "error: resource_exhausted: not enough memory (std::bad_alloc) for the libraries of this "
    "process; give it more (ulimit -v, the memory limit of its container)\n";

std::terminate_handler handler_before = nullptr;

// Allocates nothing.
void end_the_process() {
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      [[maybe_unused]] const auto written =
          ::write(STDERR_FILENO, kTextWithoutMemory.data(), kTextWithoutMemory.size());
      ::_exit(kExitWithoutMemory);
    } catch (...) {
      // Not ours: the handler before reports it.
    }
  }
  handler_before();
}

// Where address space is limited, threads of OpenBLAS that found too little wait for it for ever,
// and exit() would wait for them.
bool must_end_without_exit(const Error& error) {
  return error.code() == ErrorCode::resource_exhausted && has_address_limit();
}

// An error in a step of one worker is thrown on all of them. The launcher names the one where it
// arose, which may end last.
void tell_origin(const Error& error) {
  const int fd = launcher_fd("COHORT_ORIGIN_FD");
  if (fd < 0 || error.origin().empty()) return;
  [[maybe_unused]] const ssize_t written =
      ::write(fd, error.origin().data(), error.origin().size());
}

}  // namespace

void open_standard_streams() noexcept {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);  // the lowest number that is free
  } while (fd >= 0 && fd <= STDERR_FILENO && ::fcntl(fd, F_SETFD, 0) == 0);
  if (fd > STDERR_FILENO) ::close(fd);
}

void end_by_name_without_memory() noexcept {
  if (std::get_terminate() != &end_the_process)
    handler_before = std::set_terminate(&end_the_process);
}

void prepare_process() noexcept {
  open_standard_streams();
  end_by_name_without_memory();
  std::signal(SIGXFSZ, SIG_IGN);
}

int run_main(int argc, char** argv, const std::function<int(Arguments)>& program) {
  prepare_process();
  keep_freed_memory();
  warn_of_misspelled_variables();
  try {
    return program({argc > 0 ? argv[0] : "",
                    std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc)});
  } catch (...) {
    const Error error = current_error();
    std::fprintf(stderr, "error: %s\n", error.what());
    tell_origin(error);
    if (must_end_without_exit(error)) {
      std::fflush(nullptr);
      std::_Exit(exit_code_of(error));
    }
    return exit_code_of(error);
  }
}

}  // namespace cohort
