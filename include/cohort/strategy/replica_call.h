// SPDX-License-Identifier: Apache-2.0
// Calls a function for each replica with its component of distributed arguments, or once for all;
// and what the replicas of a run have got, for the text of an error in one of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/function/function.h"
#include "cohort/input/per_replica.h"
#include "cohort/variable/variable.h"

namespace cohort {
class Strategy;  // strategy/strategy.h
}

namespace cohort::internal {

// True for PerReplica<T> and for classes derived from it (DistributedElement).
template <class T>
std::true_type is_per_replica(const PerReplica<T>*);
std::false_type is_per_replica(const void*);
template <class A, class P = std::remove_cvref_t<A>*>
inline constexpr bool kIsPerReplica = decltype(is_per_replica(static_cast<P>(nullptr)))::value;

// The part of an argument that replica i gets.
template <class A>
decltype(auto) component_of(A& argument, std::size_t i) {
  if constexpr (kIsPerReplica<A>) {
    // Every replica gets a value that is not wrapped.
    return argument[argument.is_wrapped() ? i : 0];
  } else {
    return (argument);
  }
}

// Throws invalid_argument if the numbers differ: values would be lost. `what`: "argument 0".
COHORT_API void check_components(std::size_t components, std::size_t replicas,
                                 std::string_view call, const std::string& what);
template <class A>
using ComponentOf = decltype(component_of(std::declval<A&>(), 0));
template <class A>
inline constexpr bool kIsNest = std::is_same_v<std::remove_cvref_t<ComponentOf<A>>, Nest>;

// Throws invalid_argument for strings, with the functions that turn them into numbers.
COHORT_API void check_is_numeric(const Nest& component, std::size_t index);

// Converts a component to type P of parameter number `index`.
template <class P, class C>
decltype(auto) as_parameter(C&& component, std::size_t index) {
  if constexpr (std::is_same_v<std::remove_cvref_t<C>, Nest> &&
                !std::is_same_v<std::remove_cvref_t<P>, Nest>) {
    if constexpr (std::is_same_v<std::remove_cvref_t<P>, at::Tensor>)
      check_is_numeric(component, index);
    return function::argument_of<P>(component, index, "function given to run()");
  } else {
    return std::forward<C>(component);
  }
}

// Turns an element into arguments: the items of a tuple, or the element if that is what is taken.
inline std::span<const Nest> spread(const Nest& element, std::size_t arity, bool takes_whole) {
  const bool is_tuple = element.kind() == Nest::Kind::tuple;
  const std::span<const Nest> parts = is_tuple && !takes_whole
                                          ? std::span<const Nest>(element.items())
                                          : std::span<const Nest>(&element, 1);
  COHORT_CHECK(parts.size() == arity, ErrorCode::invalid_argument,
               "[strategy.run] expected an element of ", arity,
               " parts, one for each parameter of the function, got ", element.structure());
  return parts;
}

// Why run() cannot call a function with these arguments.
enum class CallProblem : std::uint8_t { none, generic, count, types };

// Whether a parameter of type P accepts a component of type C.
template <class P, class C>
inline constexpr bool kIsTaken = std::is_convertible_v<C, P> ||
                                 (std::is_same_v<std::remove_cvref_t<C>, Nest> &&
                                  function::HasArgument<P>);

template <class Parameters, class... C>
constexpr bool takes_components() {
  return []<std::size_t... P>(std::index_sequence<P...>) {
    return (kIsTaken<std::tuple_element_t<P, Parameters>, C> && ...);
  }
  (std::make_index_sequence<sizeof...(C)>{});
}

template <class F, class... A>
constexpr CallProblem call_problem() {
  using Fn = std::decay_t<F>;
  constexpr bool kHasNest = (kIsNest<A> || ...);
  if constexpr (!kHasNest && std::is_invocable_v<std::remove_reference_t<F>&, ComponentOf<A>...>) {
    return CallProblem::none;
  } else if constexpr (!function::HasOneSignature<Fn>) {
    return kHasNest ? CallProblem::generic : CallProblem::types;
  } else {
    using Parameters = typename function::Signature<Fn>::Arguments;
    constexpr bool kSpreads = kHasNest && sizeof...(A) == 1;
    if constexpr (kSpreads) {
      return function::takes_arguments<Parameters>() ? CallProblem::none : CallProblem::types;
    } else if constexpr (std::tuple_size_v<Parameters> != sizeof...(A)) {
      return CallProblem::count;
    } else if constexpr (!kHasNest) {
      return CallProblem::types;
    } else {
      return takes_components<Parameters, ComponentOf<A>...>() ? CallProblem::none
                                                               : CallProblem::types;
    }
  }
}

// Calls fn for replica i. Requires that call_problem() is none.
template <class F, class... A>
decltype(auto) call_for(F& fn, std::size_t i, A&... arguments) {
  if constexpr (!(kIsNest<A> || ...)) {
    return fn(component_of(arguments, i)...);
  } else {
    using Parameters = typename function::Signature<std::decay_t<F>>::Arguments;
    constexpr std::size_t kArity = std::tuple_size_v<Parameters>;
    return [&]<std::size_t... P>(std::index_sequence<P...>)->decltype(auto) {
      if constexpr (sizeof...(A) == 1) {
        constexpr bool kTakesWhole =
            kArity == 1 &&
            (std::is_same_v<std::remove_cvref_t<std::tuple_element_t<P, Parameters>>, Nest> && ...);
        const std::span<const Nest> parts =
            spread(component_of(arguments..., i), kArity, kTakesWhole);
        return fn(as_parameter<std::tuple_element_t<P, Parameters>>(parts[P], P)...);
      } else {
        return fn(
            as_parameter<std::tuple_element_t<P, Parameters>>(component_of(arguments, i), P)...);
      }
    }
    (std::make_index_sequence<kArity>{});
  }
}

template <class F, class... A>
using ReplicaResult =
    std::remove_cvref_t<decltype(call_for(std::declval<F&>(), 0, std::declval<A&>()...))>;

// Whether all replicas have the same object: there is one value and not one of each.
inline bool is_one_object(const std::vector<at::Tensor>& values) {
  return std::all_of(values.begin(), values.end(),
                     [&](const at::Tensor& value) { return value.is_same(values.front()); });
}
// Equal texts and bools are one object; numbers are not, or a sum would depend on their values.
COHORT_API bool is_one_object(const Nest& a, const Nest& b);
// `values`: of one structure. True if each leaf is one object.
COHORT_API bool is_one_object(const std::vector<Nest>& values);
inline bool is_one_object(const std::vector<Variable>& values) {
  return std::all_of(values.begin(), values.end(),
                     [&](const Variable& value) { return value == values.front(); });
}
template <class T>
bool is_one_object(const std::vector<T>&) {
  return false;
}

// Throws invalid_argument, naming the call, the replica and the place, if structures differ.
COHORT_API void check_one_structure(const std::vector<Nest>& values, std::string_view call);
// The variable itself if each replica has its own component of it.
COHORT_API std::vector<Variable> with_containers(std::vector<Variable> values);

// The values of this worker's replicas, in their order. `is_only`: there is one replica in sync.
// `call` is for messages.
template <class T>
PerReplica<T> regrouped(std::vector<T> values, bool is_only, std::string_view call) {
  if constexpr (std::is_same_v<T, Nest>) check_one_structure(values, call);
  if constexpr (std::is_same_v<T, Variable>) values = with_containers(std::move(values));
  const bool may_be_one = std::is_same_v<T, Variable> || values.size() > 1;
  if (is_only || (may_be_one && is_one_object(values)))
    return PerReplica<T>::bare(std::move(values.front()));
  return PerReplica<T>(std::move(values));
}

// An argument of merge_call(), as the function that merges gets it.
template <class A>
using Merged = PerReplica<std::decay_t<A>>;

// The contribution of a replica to a meeting: a tuple of arguments, kept until the call returns.
struct MergeOffer {
  const std::type_info* types;  // of the arguments and of the result
  const void* arguments;
  std::string_view call = "merge_call";
};
// Merges the arguments of all replicas; null if the function returns void.
using Merge = std::function<std::shared_ptr<const void>(const std::vector<const void*>& arguments)>;

// Calls merge_fn with a PerReplica of each argument.
template <class Result, class Arguments, class F>
std::shared_ptr<const void> merge_all(F& merge_fn, Strategy& strategy, bool is_only,
                                      const std::vector<const void*>& all) {
  const auto argument = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
    std::vector<std::tuple_element_t<I, Arguments>> values;
    for (const void* of_one : all)
      values.push_back(std::get<I>(*static_cast<const Arguments*>(of_one)));
    return regrouped(std::move(values), is_only, "merge_call");
  };
  return [&]<std::size_t... I>(std::index_sequence<I...>)->std::shared_ptr<const void> {
    if constexpr (std::is_void_v<Result>) {
      merge_fn(strategy, argument(std::integral_constant<std::size_t, I>{})...);
      return nullptr;
    } else {
      auto result = std::make_shared<const Result>(
          merge_fn(strategy, argument(std::integral_constant<std::size_t, I>{})...));
      if constexpr (kIsPerReplica<Result> && !std::is_same_v<Result, PerReplica<void>>) {
        if (result->is_wrapped())
          check_components(result->size(), all.size(), "merge_call", "a result");
      }
      return result;
    }
  }
  (std::make_index_sequence<std::tuple_size_v<Arguments>>{});
}

// Why merge_call() cannot call a function with these arguments.
template <class F, class... A>
constexpr CallProblem merge_problem() {
  if constexpr (std::is_invocable_v<std::remove_reference_t<F>&, Strategy&, Merged<A>...>) {
    return CallProblem::none;
  } else if constexpr (!function::HasOneSignature<std::decay_t<F>>) {
    return CallProblem::generic;
  } else {
    using Parameters = typename function::Signature<std::decay_t<F>>::Arguments;
    return std::tuple_size_v<Parameters> == sizeof...(A) + 1 ? CallProblem::types
                                                             : CallProblem::count;
  }
}

template <class F, class... A>
using MergeResult =
    std::remove_cvref_t<std::invoke_result_t<std::remove_reference_t<F>&, Strategy&, Merged<A>...>>;

// Returns the part of merge_call()'s result that replica i gets: its component of a PerReplica.
template <class R>
auto own_component(R&& result, std::size_t i) {
  if constexpr (!kIsPerReplica<R>) {
    return std::forward<R>(result);
  } else if constexpr (!std::is_same_v<std::remove_cvref_t<R>, PerReplica<void>>) {
    return component_of(result, i);
  }
}

// While it exists, errors of the run that this thread begins tell about its arguments. Used only
// from this thread.
class COHORT_API RunArguments {
 public:
  explicit RunArguments(std::size_t replicas);
  virtual ~RunArguments();
  RunArguments(const RunArguments&) = delete;
  RunArguments& operator=(const RunArguments&) = delete;

  // "replica 1 has 0 of 1 rows (float32[0, 8], int64[0])", and how to avoid few rows; empty if the
  // innermost run of this thread gives its replicas no tensors. `replica`: of this process;
  // `first`: the id of the first one.
  static std::string part_of(std::size_t replica, int first);
  // "running replica 1", and its part.
  static std::string text_of(std::size_t replica, int first);
  // To be called by each update that an optimizer makes in the innermost run of this thread. How
  // many replicas of this process have got the same rows, if this is the run's first update: no
  // argument is distributed, and a tensor has two rows or more. 0: this is no such update.
  static std::size_t replicas_at_first_update_with_plain_rows();

 protected:
  virtual void add_tensors(std::size_t replica, std::vector<at::Tensor>& tensors) const = 0;
  // Whether some argument gives each replica a value of its own.
  virtual bool is_distributed() const = 0;
  static void add(const at::Tensor& tensor, std::vector<at::Tensor>& tensors);
  static void add(const Nest& value, std::vector<at::Tensor>& tensors);

 private:
  RunArguments* const outer_;
  const std::size_t replicas_;
  bool has_update_ = false;
};

// The arguments of run().
template <class... A>
class ArgumentsOfRun final : public RunArguments {
 public:
  explicit ArgumentsOfRun(std::size_t replicas, A&... arguments)
      : RunArguments(replicas), arguments_(arguments...) {}

 private:
  void add_tensors(std::size_t replica, std::vector<at::Tensor>& tensors) const override {
    std::apply([&](auto&... each) { (add_component(component_of(each, replica), tensors), ...); },
               arguments_);
  }
  bool is_distributed() const override {
    return std::apply([](const auto&... each) { return (is_wrapped(each) || ...); }, arguments_);
  }
  template <class C>
  static void add_component(const C& component, std::vector<at::Tensor>& tensors) {
    if constexpr (std::is_same_v<C, at::Tensor> || std::is_same_v<C, Nest>) add(component, tensors);
  }
  template <class Argument>
  static bool is_wrapped(const Argument& argument) {
    if constexpr (kIsPerReplica<Argument>) return argument.is_wrapped();
    return false;
  }

  const std::tuple<A&...> arguments_;
};

}  // namespace cohort::internal
