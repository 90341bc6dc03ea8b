// SPDX-License-Identifier: Apache-2.0
// The frame of a program's main: an escaping error becomes one line on stderr and its exit code.
//
//   int main(int argc, char** argv) { return cohort::run_main(argc, argv, [](cohort::Arguments
//   arguments) { …; return 0; }); }
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

struct Arguments {
  std::string program;
  std::vector<std::string> values;  // without the program's name
};

// 64 configuration, 69 peer unavailable, 70 internal, 75 try again; otherwise what `program`
// returns.
COHORT_API int run_main(int argc, char** argv, const std::function<int(Arguments)>& program);

}  // namespace cohort
