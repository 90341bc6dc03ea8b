// SPDX-License-Identifier: Apache-2.0
// The random numbers that C++ functions draw in the threads of a pipeline.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/data/graph/node.h"
#include "cohort/function/generator_scope.h"

namespace cohort::data {

// The random numbers of one running op. A value type.
struct CallRandom {
  std::uint64_t seed = 0;
  // Whether each call has a generator of its own.
  bool is_own = false;

  // For C++ functions.
  static CallRandom of(const Node& op, const StageContext& context) {
    if (context.has_own_random_numbers()) function::GeneratorScope::prepare();
    return {.seed = context.function_seed(op), .is_own = context.has_own_random_numbers()};
  }
};

// The random numbers of calls that the program has not asked for, as to find a spec. They leave the
// random numbers of the program alone.
inline constexpr CallRandom kRandomOfPreviews{.seed = 0, .is_own = true};

// A call of the op's function. While it exists, the function draws random numbers that follow from
// the seed and the number of the call, not from which thread makes it, or when; without is_own, it
// draws as the caller does.
class CallScope {
 public:
  CallScope(const CallRandom& random, std::uint64_t number) {
    if (random.is_own) scope_.emplace(mix_seed(random.seed, number));
  }

 private:
  std::optional<function::SeededScope> scope_;
};

// The current exception, which a user's function threw, with a line of context. An out_of_range
// error would be taken for the end of the data.
inline Error call_error(const std::string& during) {
  Error error = current_error();
  if (error.code() == ErrorCode::out_of_range) {
    error = Error(ErrorCode::invalid_argument, error.message(), error.cause());
  }
  return std::move(error).during(during);
}

}  // namespace cohort::data
