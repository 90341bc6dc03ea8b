// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/commands.h"

int main(int argc, char** argv) { return cohort::cli::run(argc, argv); }
