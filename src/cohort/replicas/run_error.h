// SPDX-License-Identifier: Apache-2.0
// Facts about an exception that leaves a replica's function.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "cohort/function/user_lines.h"

namespace cohort::internal {

struct ThrowSite {
  bool is_in_torch = false;        // LibTorch has thrown it
  std::string op = {};             // the innermost operator of LibTorch around it, "addmm"
  function::UserLines lines = {};  // of the user's code
};

// Calls body(). An exception passes unchanged, and is looked at before the stack on which
// it was thrown is gone; thrown_here() then tells what was found. Costs nothing otherwise.
void call_watched(const std::function<void()>& body);

// The site of the last exception that has left call_watched() on this thread.
ThrowSite thrown_here();

// The error that run() throws for an exception that has left call_watched() on this thread: an
// Error with the operator and the user's lines if LibTorch has thrown it, else the exception
// itself.
std::exception_ptr error_of_replica(std::exception_ptr thrown);
// In a catch block, for a run of one replica, whose id is `first`: throws that error, which names
// the replica if it is not the exception itself.
[[noreturn]] void rethrow_of_only_replica(int first);

}  // namespace cohort::internal
