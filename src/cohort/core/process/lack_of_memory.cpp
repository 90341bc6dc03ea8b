// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <exception>
#include <new>
#include <string_view>

#include "cohort/core/run_main.h"

namespace cohort {
namespace {

constexpr int kExitWithoutMemory = 75;
constexpr std::string_view kTextWithoutMemory =
    "error: resource_exhausted: not enough memory (std::bad_alloc) for the libraries of this "
    "process; give it more (ulimit -v, the memory limit of its container)\n";

std::terminate_handler handler_before = nullptr;

// Allocates nothing.
void end_the_process() {
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      [[maybe_unused]] const auto written =
          ::write(STDERR_FILENO, kTextWithoutMemory.data(), kTextWithoutMemory.size());
      ::_exit(kExitWithoutMemory);
    } catch (...) {
      // Not ours: the handler before reports it.
    }
  }
  handler_before();
}

}  // namespace

void end_by_name_without_memory() noexcept {
  if (std::get_terminate() != &end_the_process)
    handler_before = std::set_terminate(&end_the_process);
}

}  // namespace cohort
