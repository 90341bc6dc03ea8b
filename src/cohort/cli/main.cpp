// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "cohort/cli/commands.h"
#include "cohort/core/run_main.h"

namespace {

constexpr int kTryAgain = 75;  // see commands.h

// Libraries open descriptors (gRPC) and fill large tables (LibTorch) before main(). These functions
// run before them.
using Initializer = void (*)() noexcept;
[[gnu::section(".preinit_array"), gnu::used]] constinit Initializer before_libraries[] = {
    &cohort::open_standard_streams, &cohort::end_by_name_without_memory};

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
