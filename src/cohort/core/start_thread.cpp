// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/start_thread.h"

#include <csignal>
#include <memory>
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

std::thread start_thread_without_signals(std::string_view purpose, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const std::unique_ptr<sigset_t, void (*)(const sigset_t*)> restored(
      &before, [](const sigset_t* mask) { ::pthread_sigmask(SIG_SETMASK, mask, nullptr); });
  return start_thread(purpose, std::move(body));
}

}  // namespace cohort
