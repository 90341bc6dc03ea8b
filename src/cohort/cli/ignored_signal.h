// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

namespace cohort::cli {

// Whether this process ignores the signal, as nohup makes it do. Then it must stay ignored.
inline bool is_ignored(int number) {
  struct sigaction now {};
  ::sigaction(number, nullptr, &now);
  return now.sa_handler == SIG_IGN;
}

}  // namespace cohort::cli
