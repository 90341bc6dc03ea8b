// SPDX-License-Identifier: Apache-2.0
// A matcher for errors:
//
//   EXPECT_THAT([&] { ... }, throws_error(ErrorCode::not_found, "got 'x'"));
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "cohort/core/error.h"

namespace cohort::testing {

// Matches a call that throws a cohort::Error with this code and `words` in its message.
inline auto throws_error(ErrorCode code, const std::string& words) {
  return ::testing::Throws<Error>(::testing::AllOf(
      ::testing::Property("code", &Error::code, code),
      ::testing::Property("message", &Error::message, ::testing::HasSubstr(words))));
}

}  // namespace cohort::testing
