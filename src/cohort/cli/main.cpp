// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "cohort/cli/commands.h"

int main(int argc, char** argv) {
  // A reader of our output that goes away is no reason to end, or to leave tasks behind.
  std::signal(SIGPIPE, SIG_IGN);
  return cohort::cli::run(argc, argv);
}
