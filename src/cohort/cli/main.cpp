// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "cohort/cli/commands.h"
#include "cohort/core/run_main.h"

namespace {

constexpr int kTryAgain = 75;  // see commands.h

// Libraries open descriptors (gRPC) and fill large tables (LibTorch) before main(). This function
// runs before them. Two functions in an array would be aligned to 16 bytes, and leave a gap after
// the one pointer of a sanitizer, which the system would call.
using Initializer = void (*)() noexcept;
[[gnu::section(".preinit_array"), gnu::used]] constinit Initializer before_libraries =
    &cohort::prepare_process;

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
