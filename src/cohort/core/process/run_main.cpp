// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/run_main.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "cohort/core/address_room.h"
#include "cohort/core/error.h"
#include "cohort/core/kept_memory.h"
#include "cohort/core/process/launcher_fd.h"
#include "cohort/core/spelling.h"

namespace cohort {
namespace {

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
