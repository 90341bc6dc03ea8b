// SPDX-License-Identifier: Apache-2.0
// Wraps a program's main(): prints an exception on stderr and turns it into an exit code. The first
// line is "error: " and the message; indented lines below it name the places in the program and the
// calls in progress ("while …"). The codes are those of sysexits.h, as for the `cohort` command:
//
//  64 EX_USAGE        Cohort refused a configuration or a call: TF_CONFIG, options, files,
//                     arguments (invalid_argument, not_found, failed_precondition, …)
//  69 EX_UNAVAILABLE  a task cannot be reached, does not answer, or was lost
//  70 EX_SOFTWARE     the program failed: it or LibTorch threw an exception (for example for a
//                     wrong shape), here or in a step on a worker; or Cohort has a bug
//  75 EX_TEMPFAIL     try again: too little memory, disk or descriptors, a port that is taken, a
//                     cancelled call, or a second coordinator of the job took over or is running
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

// Returns the result of `program`, or if it throws, an exit code of the table above. Calls
// prepare_process() first, and makes malloc keep up to 256 MiB that a step frees for the next step
// (glibc's, unless the environment sets its thresholds). If the process's address space is limited
// (ulimit -v) and a resource_exhausted leaves `program`, it ends the process with code 75 instead
// of returning: threads of OpenBLAS that wait for memory would keep exit() waiting for ever. Static
// objects are then not destroyed.
COHORT_API int run_main(int argc, char** argv, const std::function<int(Arguments)>& program);

// Opens /dev/null for each standard stream (descriptors 0, 1 and 2) that is closed, for example
// after `program <&- >&- 2>&-`. Otherwise the next socket or file that the process opens would get
// that number, and printed text would be written into it. Call it at the start of main(), before
// anything is opened; run_main() and the `cohort` command do so. A file that a library opened
// before main() keeps its number.
COHORT_API void open_standard_streams() noexcept;

// From here on, a lack of memory that nobody catches (std::bad_alloc on a thread of a library, or
// while libraries are loaded) ends the process with one line of text and exit code 75 instead of
// abort(). run_main() and the `cohort` command call it.
COHORT_API void end_by_name_without_memory() noexcept;

// Both of these. And from here on, a file that would grow above this process's limit (ulimit -f) is
// an error of the call that writes it, in place of a signal that ends the process without a word.
COHORT_API void prepare_process() noexcept;

}  // namespace cohort
