// SPDX-License-Identifier: Apache-2.0
// Wraps a program's main(): an exception is printed on stderr, after "error: ", and becomes an exit
// code. The message comes first; below it are indented lines for the places in the program that it
// names and for what was going on ("while …"). The codes are those of sysexits.h, the same as the
// `cohort` command's:
//
//  64 EX_USAGE        a configuration or a call that Cohort refused: TF_CONFIG, options, files,
//                     arguments (invalid_argument, not_found, failed_precondition, …)
//  69 EX_UNAVAILABLE  a task that cannot be reached, does not answer, or was lost
//  70 EX_SOFTWARE     the program failed: an exception of its own or of LibTorch (as for a wrong
//                     shape), here or in a step on a worker; or a broken invariant of Cohort
//  75 EX_TEMPFAIL     nothing is wrong with the program: too little memory, descriptors or disk,
//                     a cancelled call, or another coordinator that has its place
//
//   int main(int argc, char** argv) {
//     return cohort::run_main(argc, argv, [](cohort::Arguments arguments) {
//       …
//       return 0;
//     });
//   }
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

// Returns the result of `program`; if it throws, an exit code of the table above.
// First opens /dev/null for the standard streams that are closed, as
// open_standard_streams() does.
COHORT_API int run_main(int argc, char** argv, const std::function<int(Arguments)>& program);

// Opens /dev/null in the place of each standard stream (descriptors 0, 1 and 2) that is closed, as
// after `program <&- >&- 2>&-`. Otherwise the next socket or file that the process opens gets the
// number, and what is printed goes into it. For the start of main(), before anything is opened:
// run_main() and `cohort` do it. What a library has opened before main() keeps its number.
COHORT_API void open_standard_streams() noexcept;

}  // namespace cohort
