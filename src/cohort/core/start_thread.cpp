// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/start_thread.h"

#include <system_error>
#include <utility>

#include "cohort/core/error.h"

namespace cohort {

std::thread start_thread(std::string_view purpose, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    internal::throw_error(ErrorCode::resource_exhausted, "[core.thread] cannot start a thread ",
                          purpose, ": ", error.code().message(), "; ", kThreadLimitsRemedy);
  }
}

}  // namespace cohort
