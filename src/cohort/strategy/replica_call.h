// SPDX-License-Identifier: Apache-2.0
// Calling a function once a replica: each gets its own component of distributed arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/nest.h"
#include "cohort/function/function.h"
#include "cohort/input/per_replica.h"

namespace cohort::internal {

// A PerReplica<T>, or something that is one (DistributedElement).
template <class T>
std::true_type is_per_replica(const PerReplica<T>*);
std::false_type is_per_replica(const void*);
template <class A>
inline constexpr bool kIsPerReplica =
    decltype(is_per_replica(static_cast<std::remove_cvref_t<A>*>(nullptr)))::value;

// What replica i gets of an argument.
template <class A>
decltype(auto) component_of(A& argument, std::size_t i) {
  if constexpr (kIsPerReplica<A>) {
    // A bare value goes to every replica.
    return argument[argument.is_wrapped() ? i : 0];
  } else {
    return (argument);
  }
}

template <class A>
using ComponentOf = decltype(component_of(std::declval<A&>(), 0));
template <class A>
inline constexpr bool kIsNest = std::is_same_v<std::remove_cvref_t<ComponentOf<A>>, Nest>;

// A component as a parameter of type P.
template <class P, class C>
decltype(auto) as_parameter(C&& component) {
  if constexpr (std::is_same_v<std::remove_cvref_t<C>, Nest> &&
                !std::is_same_v<std::remove_cvref_t<P>, Nest>) {
    return function::Argument<P>::from(component);
  } else {
    return std::forward<C>(component);
  }
}

// An element as arguments of a callable: a tuple is spread over as many parameters.
inline std::span<const Nest> spread(const Nest& element, std::size_t arity, bool takes_whole) {
  const bool is_tuple = element.kind() == Nest::Kind::tuple;
  const std::span<const Nest> parts = is_tuple && !takes_whole
                                          ? std::span<const Nest>(element.items())
                                          : std::span<const Nest>(&element, 1);
  COHORT_CHECK(parts.size() == arity, ErrorCode::invalid_argument,
               "[strategy.run] expected an element of ", arity,
               " parts, one a parameter of the function, got ", element.structure());
  return parts;
}

// fn for replica i.
template <class F, class... A>
decltype(auto) call_for(F& fn, std::size_t i, A&... arguments) {
  constexpr bool kHasNest = (kIsNest<A> || ...);
  if constexpr (!kHasNest) {
    return fn(component_of(arguments, i)...);
  } else {
    static_assert(function::HasOneSignature<std::remove_cv_t<F>>,
                  "run() spreads an element over the function's parameters: give them types "
                  "(at::Tensor, Nest, …) in place of auto");
    using Parameters = typename function::Signature<std::remove_cv_t<F>>::Arguments;
    constexpr std::size_t kArity = std::tuple_size_v<Parameters>;
    return [&]<std::size_t... P>(std::index_sequence<P...>)->decltype(auto) {
      if constexpr (sizeof...(A) == 1) {
        constexpr bool kTakesWhole =
            kArity == 1 &&
            (std::is_same_v<std::remove_cvref_t<std::tuple_element_t<P, Parameters>>, Nest> && ...);
        const std::span<const Nest> parts =
            spread(component_of(arguments..., i), kArity, kTakesWhole);
        return fn(as_parameter<std::tuple_element_t<P, Parameters>>(parts[P])...);
      } else {
        static_assert(kArity == sizeof...(A), "run() needs an argument for each parameter");
        return fn(as_parameter<std::tuple_element_t<P, Parameters>>(component_of(arguments, i))...);
      }
    }
    (std::make_index_sequence<kArity>{});
  }
}

template <class F, class... A>
using ReplicaResult =
    std::remove_cvref_t<decltype(call_for(std::declval<F&>(), 0, std::declval<A&>()...))>;

}  // namespace cohort::internal
