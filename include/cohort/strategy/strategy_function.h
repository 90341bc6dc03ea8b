// SPDX-License-Identifier: Apache-2.0
// Steps that replicas run as traced programs: what Strategy::function() returns.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/function/function.h"
#include "cohort/input/per_replica.h"
#include "cohort/strategy/replica_call.h"
#include "cohort/strategy/strategy.h"

namespace cohort::function {
// The inverse of result_of(), for a T that it accepts.
template <class T>
T result_as(const Nest& nest) {
  if constexpr (HasArgument<T>) {
    return Argument<T>::from(nest);
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    const Nest::Items& items = nest.items();
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return T{result_as<std::remove_cvref_t<std::tuple_element_t<I, T>>>(items.at(I))...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>{});
  } else {
    T values;
    for (const Nest& item : nest.items()) values.push_back(result_as<typename T::value_type>(item));
    return values;
  }
}
}  // namespace cohort::function

namespace cohort::internal {

class StepPrograms;  // synchronous/traced/traced_programs.h

// A component as an argument of a traced step.
template <class C>
inline constexpr bool kIsStepArgument = std::is_constructible_v<Nest, C>;

// The arguments of a step for replica i. Requires that call_problem() is none.
template <class F, class... A>
std::vector<Nest> step_arguments(std::size_t i, A&... arguments) {
  if constexpr ((kIsNest<A> || ...) && sizeof...(A) == 1) {
    using Parameters = typename function::Signature<F>::Arguments;
    constexpr std::size_t kArity = std::tuple_size_v<Parameters>;
    constexpr bool kTakesWhole = []<std::size_t... P>(std::index_sequence<P...>) {
      return kArity == 1 &&
             (std::is_same_v<std::remove_cvref_t<std::tuple_element_t<P, Parameters>>, Nest> &&
              ...);
    }
    (std::make_index_sequence<kArity>{});
    const std::span<const Nest> parts = spread(component_of(arguments..., i), kArity, kTakesWhole);
    return {parts.begin(), parts.end()};
  } else {
    return {Nest(component_of(arguments, i))...};
  }
}

// The programs of a step, which are traced when they are needed. A shared handle. Thread-safe.
class COHORT_API ReplicaFunction {
 public:
  ReplicaFunction(Strategy& strategy, Function function);
  // The results of each local replica, for its arguments.
  std::vector<Nest> call(std::vector<std::vector<Nest>> arguments) const;
  const Function& function() const { return function_; }
  Strategy& strategy() const { return *strategy_; }
  std::size_t replicas() const;
  bool is_only() const { return strategy_->num_replicas_in_sync() == 1; }
  std::size_t traces() const;

 private:
  Strategy* strategy_;
  Function function_;
  std::shared_ptr<StepPrograms> programs_;
};

}  // namespace cohort::internal

namespace cohort {

// A step that Strategy::function() has made of a callable of type F. A shared handle; copies are
// the same step. Thread-safe: calls at the same time run on threads of their own, but those that
// write variables run one after the other. While a call traces, other steps of function() wait, but
// run() does not.
template <class F>
class StrategyFunction {
 public:
  explicit StrategyFunction(internal::ReplicaFunction function) : function_(std::move(function)) {}

  // Returns the result of Strategy::run() for the same arguments. Throws as it does, and the errors
  // of a trace.
  template <class... A>
  auto operator()(A&&... arguments) const {
    constexpr internal::CallProblem kProblem = internal::call_problem<F, A...>();
    static_assert(
        kProblem != internal::CallProblem::count,
        "a step of Strategy::function() needs one argument for each of its parameters, or "
        "one element with as many parts");
    static_assert(
        kProblem == internal::CallProblem::none || kProblem == internal::CallProblem::count,
        "a step of Strategy::function() cannot be called with these arguments: write one for each "
        "parameter, of its type (a PerReplica<T> argument gives each replica a T)");
    constexpr bool kAreArguments = (internal::kIsStepArgument<internal::ComponentOf<A>> && ...);
    static_assert(kAreArguments || kProblem != internal::CallProblem::none,
                  "a step of Strategy::function() takes at::Tensor, numbers, bool, std::string, "
                  "cohort::Nest, and PerReplicas of them; capture variables instead");
    if constexpr (kProblem == internal::CallProblem::none && kAreArguments) {
      internal::check_arguments(function_.strategy(), "function", function_.replicas(),
                                arguments...);
      std::vector<std::vector<Nest>> all;
      all.reserve(function_.replicas());
      for (std::size_t i = 0; i < function_.replicas(); ++i)
        all.push_back(internal::step_arguments<F>(i, arguments...));
      const std::vector<Nest> results = function_.call(std::move(all));
      using Result = std::remove_cvref_t<typename function::Signature<F>::Result>;
      if constexpr (std::is_void_v<Result>) {
        return PerReplica<void>(results.size());
      } else {
        std::vector<Result> values;
        values.reserve(results.size());
        for (const Nest& result : results) values.push_back(function::result_as<Result>(result));
        return internal::regrouped(std::move(values), function_.is_only(), "run");
      }
    }
  }

  const std::string& name() const { return function_.function().name(); }
  std::string program() const { return function_.function().program(); }  // as Function's
  // How many different calls have been traced; all replicas together count once.
  std::size_t traces() const { return function_.traces(); }

 private:
  internal::ReplicaFunction function_;
};

template <class F>
StrategyFunction<std::decay_t<F>> Strategy::function(F&& step, FunctionOptions options,
                                                     const char* file, int line) {
  return StrategyFunction<std::decay_t<F>>(internal::ReplicaFunction(
      *this, Function(std::decay_t<F>(std::forward<F>(step)), std::move(options), file, line)));
}

}  // namespace cohort
