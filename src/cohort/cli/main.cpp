// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cohort/cli/commands.h"
#include "cohort/cli/task_process.h"
#include "cohort/core/run_main.h"

namespace {

constexpr int kTryAgain = 75;  // see commands.h

// Until a launch handles these signals itself, they end it with the exit code that its README names
// for them, and not by the signal: libraries take half a second to start.
void end_early_launches() noexcept {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!cohort::cli::is_ignored(signal)) std::signal(signal, [](int s) { std::_Exit(128 + s); });
  }
}

void prepare(int argc, char** argv, char** /*environment*/) noexcept {
  cohort::prepare_process();
  if (argc > 1 && std::string_view(argv[1]) == "launch") end_early_launches();
}

// Libraries open descriptors (gRPC) and fill large tables (LibTorch) before main(). This function
// runs before them. Two functions in an array would be aligned to 16 bytes, and leave a gap after
// the one pointer of a sanitizer, which the system would call.
using Initializer = void (*)(int, char**, char**) noexcept;
[[gnu::section(".preinit_array"), gnu::used]] constinit Initializer before_libraries = &prepare;

}  // namespace

int main(int argc, char** argv) {
  // If the reader of our output goes away, writing returns an error instead of ending this process,
  // which would leave tasks behind.
  std::signal(SIGPIPE, SIG_IGN);
  const int code = cohort::cli::run(argc, argv);
  if (code != kTryAgain) return code;
  // Perhaps too little memory or too few threads: then exit() could wait forever for threads of
  // libraries, as OpenBLAS does for those that find no memory to start with.
  std::fflush(nullptr);
  std::_Exit(code);
}
