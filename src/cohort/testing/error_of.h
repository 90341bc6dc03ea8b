// SPDX-License-Identifier: Apache-2.0
// The error of a call, for tests that look at more of it than throws_error.h compares.
#pragma once

#include <concepts>
#include <string>

#include "cohort/core/error.h"

namespace cohort::testing {

// One of the code unknown if the call throws none.
template <std::invocable F>
Error error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::unknown, "no error"};
}

template <std::invocable F>
ErrorCode code_of(F&& call) {
  return error_of(call).code();
}

// "code origin: message"; empty if the call throws none.
template <std::invocable F>
std::string error_text_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + " " + error.origin() + ": " + error.message();
  }
  return "";
}

}  // namespace cohort::testing
