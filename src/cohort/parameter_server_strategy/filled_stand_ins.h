// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <vector>

#include "cohort/core/start_thread.h"
#include "cohort/variable/initializer_recipe.h"
#include "cohort/variable/variable.h"

namespace cohort::detail {

// Computes the values of stand-ins on a thread of its own. Used only from one thread.
class FilledStandIns {
 public:
  FilledStandIns(const std::vector<Variable>& variables, const Initializer& initializer,
                 std::uint64_t seed) {
    thread_.add(start_thread("to compute initial values", [this, &variables, &initializer, seed] {
      try {
        for (const Variable& variable : variables)
          InitializerRecipe::fill(initializer, variable.tensor().detach(), variable.name(), seed);
      } catch (...) {
        error_ = std::current_exception();
      }
    }));
  }
  void wait() {
    thread_.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
  JoinedThreads thread_;
};

}  // namespace cohort::detail
