// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/default_generator.h"

namespace cohort {

std::unique_lock<std::recursive_mutex> lock_default_generator() {
  static std::recursive_mutex& mutex = *new std::recursive_mutex;
  return std::unique_lock(mutex);
}

}  // namespace cohort
