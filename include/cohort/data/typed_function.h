// SPDX-License-Identifier: Apache-2.0
// A C++ function of numbers, for elements that are scalars. It runs in a loop over many elements,
// without a tensor or an indirect call for each.
//
//   Dataset::range(count).map([](std::int64_t x) { return x + 1; }).batch(128);
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/function/function.h"

namespace cohort::data {

template <class T>
inline constexpr bool kIsNumber =
    std::is_same_v<T, bool> || std::is_same_v<T, std::uint8_t> || std::is_same_v<T, std::int8_t> ||
    std::is_same_v<T, std::int16_t> || std::is_same_v<T, std::int32_t> ||
    std::is_same_v<T, std::int64_t> || std::is_same_v<T, float> || std::is_same_v<T, double>;

template <class T>
struct AreNumbers : std::false_type {};
template <class... T>
struct AreNumbers<std::tuple<T...>>
    : std::bool_constant<(sizeof...(T) > 0) && (kIsNumber<std::remove_cvref_t<T>> && ...)> {};
template <class A, class B>
struct AreNumbers<std::pair<A, B>> : AreNumbers<std::tuple<A, B>> {};

template <class R>
using ResultTuple = std::conditional_t<kIsNumber<R>, std::tuple<R>, R>;

// Takes numbers and returns a number, or a tuple or pair of numbers.
template <class F>
concept TypedCallable =
    function::HasOneSignature<F> && AreNumbers<typename function::Signature<F>::Arguments>::value &&
    AreNumbers<ResultTuple<typename function::Signature<F>::Result>>::value;

// Immutable; thread-safe if the function is.
struct COHORT_API TypedFunction {
  // Calls the function for the rows *next to count - 1. There is one contiguous column for each
  // parameter and each result. *next is the current row, also if the function throws.
  using Loop = std::function<void(const void* const* inputs, void* const* outputs,
                                  std::int64_t count, std::int64_t* next)>;

  std::vector<c10::ScalarType> inputs;
  std::vector<c10::ScalarType> outputs;
  bool returns_tuple = false;
  Loop loop;

  template <TypedCallable F>
  static TypedFunction of(F fn) {
    using Parameters = typename function::Signature<F>::Arguments;
    using Result = typename function::Signature<F>::Result;
    using Results = ResultTuple<Result>;
    TypedFunction typed;
    typed.returns_tuple = !kIsNumber<Result>;
    add_types<Parameters>(typed.inputs);
    add_types<Results>(typed.outputs);
    typed.loop = [fn = std::move(fn)](const void* const* inputs, void* const* outputs,
                                      std::int64_t count, std::int64_t* next) mutable {
      run<Parameters, Results>(fn, inputs, outputs, count, next,
                               std::make_index_sequence<std::tuple_size_v<Parameters>>(),
                               std::make_index_sequence<std::tuple_size_v<Results>>());
    };
    return typed;
  }

 private:
  template <class Tuple>
  static void add_types(std::vector<c10::ScalarType>& types) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (types.push_back(
           c10::CppTypeToScalarType<std::remove_cvref_t<std::tuple_element_t<I, Tuple>>>::value),
       ...);
    }
    (std::make_index_sequence<std::tuple_size_v<Tuple>>());
  }

  template <class Arguments, class Results, class F, std::size_t... I, std::size_t... O>
  static void run(F& fn, const void* const* inputs, void* const* outputs, std::int64_t count,
                  std::int64_t* next, std::index_sequence<I...>, std::index_sequence<O...>) {
    const auto columns = std::make_tuple(
        static_cast<const std::remove_cvref_t<std::tuple_element_t<I, Arguments>>*>(inputs[I])...);
    const auto results =
        std::make_tuple(static_cast<std::tuple_element_t<O, Results>*>(outputs[O])...);
    if constexpr (noexcept(fn(std::get<I>(columns)[0]...)) && sizeof...(O) == 1) {
      for (std::int64_t i = *next; i < count; ++i) {
        std::get<0>(results)[i] = first(fn(std::get<I>(columns)[i]...));
      }
      *next = count;
    } else {
      for (std::int64_t& i = *next; i < count; ++i) {
        const Results values{fn(std::get<I>(columns)[i]...)};
        ((std::get<O>(results)[i] = std::get<O>(values)), ...);
      }
    }
  }

  template <class T>
  static auto first(const T& value) {
    if constexpr (kIsNumber<T>)
      return value;
    else
      return std::get<0>(value);
  }
};

}  // namespace cohort::data
