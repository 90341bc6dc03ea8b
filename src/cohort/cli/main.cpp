// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "cohort/cli/commands.h"
#include "cohort/core/standard_streams.h"

namespace {

// Libraries open descriptors before main(), as gRPC does: this runs before theirs.
using Initializer = void (*)() noexcept;
[[gnu::section(".preinit_array"), gnu::used]] constinit Initializer before_libraries =
    &cohort::open_standard_streams;

}  // namespace

int main(int argc, char** argv) {
  // A reader of our output that goes away is no reason to end, or to leave tasks behind.
  std::signal(SIGPIPE, SIG_IGN);
  return cohort::cli::run(argc, argv);
}
