// SPDX-License-Identifier: Apache-2.0
// A step that can run on any worker (tf.function): a C++ callable that is traced once per
// signature, or a function that is registered by name:
//   cohort::Function step([&](cohort::Iterator& it) { … return loss; });
//
// Parameters may be at::Tensor, double, float, integers, bool, std::string, Nest and
// cohort::Iterator&. If a number is passed to an at::Tensor parameter, it becomes a 0-dim tensor. A
// double, float, integer, bool or string parameter is part of the signature: each new value causes
// a new trace, so declare a value that changes (a learning rate) as at::Tensor. Numbers are sent as
// double and std::int64_t. A float parameter gets the nearest float. If an integer does not fit its
// parameter (std::size_t: below 2^63), or an argument is of a different kind, invalid_argument is
// thrown. The signature also includes the shapes and dtypes of tensors, the grad mode and autocast
// of the thread that schedules the step, the default dtype, and the requires_grad flags of the
// variables that the step uses. The result may be void, a tensor, a host value, a Nest, or a tuple,
// pair or vector of these.
//
// VALUES THAT A TRACE FREEZES. A trace runs the callable at least twice, with different example
// values, and records the LibTorch operators that it calls. If the recorded operators differ,
// schedule() throws. Workers run these operators and not your C++ code (docs/guide/frozen.md):
// - A tensor that the callable captures (neither an argument nor a variable) is a constant of the
//   program. It is watched: after a write to it, also through its data(), or after its destruction,
//   the next schedule() traces the step again.
// - A number, bool or string that the callable captures is frozen, and its change CANNOT be
//   detected. The same holds for a handle (of a tensor, a Variable, an optimizer) that is set to a
//   different object while the old one still exists, and for a hook that is registered on a
//   variable later. Pass such values as arguments, or make them variables; use a new Function for a
//   new optimizer.
// - A value that the code reads without a LibTorch operator is frozen, for example in
//   `if (*x.data_ptr<float>() > 100)`, or whether two arguments are the same tensor.
// - A tensor that the step stores outside (`losses.push_back(loss)`) keeps the example values of
//   the trace, which is logged once. Return the tensor instead, and fetch() the result.
// - Elements of different shapes need another trace, which runs in a later schedule(), join() or
//   fetch(). If only that trace reads a captured tensor or number, it reads the value of that time.
//   The learning rate of an optimizer is that of the schedule().
// - LibTorch's process-wide settings (setFlushDenormal(), setUserEnabledMkldnn()) are those of the
//   worker.
// - train() and eval() inside a step affect only that step: each step begins in the mode in which
//   its module was replicated. For a module that is not replicated, call them first in every
//   Function.
//
// Objects that the callable captures by reference must outlive the last schedule(), join() and
// fetch(), since these may trace it. Tensors arrive in row-major order: for torch's channels_last,
// call permute() inside.
//
// Inside a step, a read of a variable after its update returns the updated value; on parameter
// servers each such read costs a round trip. A buffer that the step writes in place is shared by
// all workers: docs/modules.md says how their writes are combined, and where the last write wins.
// The buffer's autograd graph ends with the call: detach a value that requires a gradient before
// you write it to the buffer, or the step is refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/nest.h"

namespace cohort {

struct FunctionOptions {
  std::string name = {};  // for messages; empty: "function at FILE:LINE", where it was created
};

namespace function {

// Converts an argument to a parameter of type T; kType is for messages. data/iterator.h has the one
// for Iterator.
template <class T>
struct Argument;
template <>
struct Argument<at::Tensor> {
  static constexpr std::string_view kType = "a tensor";
  static bool takes(const Nest& n) { return n.is_tensor(); }
  static const at::Tensor& from(const Nest& n) { return n.tensor(); }
};
template <>
struct Argument<const at::Tensor&> : Argument<at::Tensor> {};
template <>
struct Argument<double> {
  static constexpr std::string_view kType = "a number";
  static bool takes(const Nest& n) {
    return n.kind() == Nest::Kind::real || n.kind() == Nest::Kind::integer;
  }
  static double from(const Nest& n) {
    return n.kind() == Nest::Kind::integer ? static_cast<double>(n.integer()) : n.real();
  }
};
template <>
struct Argument<float> : Argument<double> {
  static float from(const Nest& n) { return static_cast<float>(Argument<double>::from(n)); }
};
// Throws invalid_argument for a number outside of a parameter's bounds.
[[noreturn]] COHORT_API void refuse_integer(std::int64_t value, std::int64_t min,
                                            std::uint64_t max);
template <class T>
requires(std::integral<T> && !std::same_as<T, bool>) struct Argument<T> {
  static constexpr std::string_view kType = "an integer";
  static bool takes(const Nest& n) { return n.kind() == Nest::Kind::integer; }
  static T from(const Nest& n) {
    const std::int64_t value = n.integer();
    if (!std::in_range<T>(value))
      refuse_integer(value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
    return static_cast<T>(value);
  }
};
template <>
struct Argument<bool> {
  static constexpr std::string_view kType = "a bool";
  static bool takes(const Nest& n) { return n.kind() == Nest::Kind::boolean; }
  static bool from(const Nest& n) { return n.boolean(); }
};
template <>
struct Argument<std::string> {
  static constexpr std::string_view kType = "a text";
  static bool takes(const Nest& n) { return n.kind() == Nest::Kind::text || n.is_tensor(); }
  // A scalar string of an element is a tensor.
  static std::string from(const Nest& n) {
    return n.is_tensor() ? std::string(n.strings().value()) : n.text();
  }
};
template <>
struct Argument<const std::string&> : Argument<std::string> {};
template <>
struct Argument<StringTensor> {
  static constexpr std::string_view kType = "a tensor of strings";
  static bool takes(const Nest& n) { return n.is_tensor(); }
  static StringTensor from(const Nest& n) { return n.strings(); }
};
template <>
struct Argument<const StringTensor&> : Argument<StringTensor> {};
template <>
struct Argument<Nest> {
  static constexpr std::string_view kType = "a nest";
  static bool takes(const Nest&) { return true; }
  static const Nest& from(const Nest& n) { return n; }
};
template <>
struct Argument<const Nest&> : Argument<Nest> {};
template <class T>
concept HasArgument = requires(const Nest& n) {
  Argument<T>::from(n);
};

// Whether T converts to a Nest.
template <class T>
inline constexpr bool kIsArgument = std::is_constructible_v<Nest, T>;

// The parameters and the result of a callable. Generic lambdas have none, since their operator()
// has no single signature.
template <class F>
struct Signature : Signature<decltype(&F::operator())> {};
template <class R, class... A>
struct Signature<R (*)(A...)> {
  using Result = R;
  using Arguments = std::tuple<A...>;
};
template <class R, class C, class... A>
struct Signature<R (C::*)(A...)> : Signature<R (*)(A...)> {};
template <class R, class C, class... A>
struct Signature<R (C::*)(A...) const> : Signature<R (*)(A...)> {};
template <class R, class... A>
struct Signature<R (*)(A...) noexcept> : Signature<R (*)(A...)> {};
template <class R, class C, class... A>
struct Signature<R (C::*)(A...) noexcept> : Signature<R (*)(A...)> {};
template <class R, class C, class... A>
struct Signature<R (C::*)(A...) const noexcept> : Signature<R (*)(A...)> {};
template <class F>
concept HasOneSignature = std::is_pointer_v<F> || requires {
  &F::operator();
};

// Whether result_of() accepts a T.
template <class T>
constexpr bool is_result() {
  if constexpr (std::is_void_v<T> || kIsArgument<T>) {
    return true;
  } else if constexpr (requires(T & value) {
                         value.begin();
                         value.end();
                       }) {
    return is_result<std::remove_cvref_t<decltype(*std::declval<T&>().begin())>>();
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (is_result<std::remove_cvref_t<std::tuple_element_t<I, T>>>() && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<T>>{});
  } else {
    return false;
  }
}

template <class R>
Nest result_of(R&& value) {
  using T = std::remove_cvref_t<R>;
  if constexpr (std::is_constructible_v<Nest, T>) {
    return Nest(std::forward<R>(value));
  } else if constexpr (requires {
                         value.begin();
                         value.end();
                       }) {
    Nest::Items items;
    for (auto& item : value) items.push_back(result_of(item));
    return Nest::list(std::move(items));
  } else {
    return std::apply([](auto&... parts) { return Nest::tuple({result_of(parts)...}); }, value);
  }
}

template <class Arguments>
std::vector<bool> tensor_parameters() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return std::vector<bool>{
        std::same_as<std::remove_cvref_t<std::tuple_element_t<I, Arguments>>, at::Tensor>...};
  }
  (std::make_index_sequence<std::tuple_size_v<Arguments>>{});
}

template <class Arguments>
constexpr bool takes_arguments() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return (HasArgument<std::tuple_element_t<I, Arguments>> && ...);
  }
  (std::make_index_sequence<std::tuple_size_v<Arguments>>{});
}

class TraceNotes;  // function/tracer/trace_notes.h
COHORT_API std::shared_ptr<TraceNotes> new_trace_notes();

// A callable over nests; the arity is checked before the call.
using Body = std::function<Nest(std::span<const Nest> arguments)>;

// Throws invalid_argument: an argument does not have the parameter's type.
[[noreturn]] COHORT_API void refuse_argument(std::string_view type, const Nest& argument,
                                             std::size_t index, std::string_view function);
// The name of a function without a name: "function at main.cpp:42".
COHORT_API std::string name_of_place(std::string_view file, int line);
// "taking argument 1 of 'step'"
COHORT_API std::string taking(std::size_t index, std::string_view function);

// Errors name the argument and the function.
template <class T>
decltype(auto) argument_of(const Nest& argument, std::size_t index, std::string_view function) {
  try {
    if (!Argument<T>::takes(argument))
      refuse_argument(Argument<T>::kType, argument, index, function);
    return Argument<T>::from(argument);
  } catch (const Error& error) {
    throw Error(error).during(taking(index, function));
  }
}

template <class F>
Body erase(F fn, std::string name) {
  using Arguments = typename Signature<F>::Arguments;
  return [fn = std::move(fn),
          name = std::move(name)](std::span<const Nest> arguments) mutable -> Nest {
    constexpr std::size_t kArity = std::tuple_size_v<Arguments>;
    COHORT_CHECK(arguments.size() == kArity, ErrorCode::invalid_argument, "[function.call] '", name,
                 "' expected ", kArity, " arguments, got ", arguments.size());
    return [&]<std::size_t... I>(std::index_sequence<I...>)->Nest {
      if constexpr (std::is_void_v<typename Signature<F>::Result>) {
        fn(argument_of<std::tuple_element_t<I, Arguments>>(arguments[I], I, name)...);
        return Nest();
      } else {
        return result_of(
            fn(argument_of<std::tuple_element_t<I, Arguments>>(arguments[I], I, name)...));
      }
    }
    (std::make_index_sequence<kArity>{});
  };
}

}  // namespace function

// A shared handle; copies are the same function. Thread-safe except for operator() and call(),
// which run the callable without a lock.
class COHORT_API Function {
 public:
  struct State {
    std::string name;
    std::string registered_name;  // not empty: body is empty
    function::Body body;
    std::size_t arity = 0;
    // For each parameter, whether it is an at::Tensor.
    std::vector<bool> takes_tensor;
    const std::shared_ptr<function::TraceNotes> notes = function::new_trace_notes();
  };

  // The compiler fills in `file` and `line` of the call, as std::source_location would, which not
  // every supported compiler has.
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, Function>) explicit Function(
      F fn, FunctionOptions options = {}, const char* file = __builtin_FILE(),
      int line = __builtin_LINE()) {
    static_assert(function::HasOneSignature<F>,
                  "cohort::Function needs parameters with types: a generic lambda ([](auto x) …) "
                  "cannot be traced; write at::Tensor");
    if constexpr (function::HasOneSignature<F>) {
      using Parameters = typename function::Signature<F>::Arguments;
      constexpr bool kTakesArguments = function::takes_arguments<Parameters>();
      static_assert(kTakesArguments,
                    "cohort::Function: a parameter is at::Tensor, double, float, an integer, bool, "
                    "std::string, cohort::Nest or cohort::Iterator&; write one of these");
      constexpr bool kReturnsResult =
          function::is_result<std::remove_cvref_t<typename function::Signature<F>::Result>>();
      static_assert(kReturnsResult,
                    "cohort::Function: the result is void, at::Tensor, a number, bool, "
                    "std::string, cohort::Nest, or a tuple, pair or vector of these; return one");
      auto state = std::make_shared<State>();
      state->name =
          options.name.empty() ? function::name_of_place(file, line) : std::move(options.name);
      state->arity = std::tuple_size_v<Parameters>;
      state->takes_tensor = function::tensor_parameters<Parameters>();
      if constexpr (kTakesArguments && kReturnsResult)
        state->body = function::erase(std::move(fn), state->name);
      state_ = std::move(state);
    }
  }
  // A function that is registered on the servers under a name (function/registry.h), for code that
  // cannot be traced.
  static Function registered(std::string name);

  // Runs the callable in this process, without a trace.
  template <class... A>
  Nest operator()(A&&... arguments) const {
    static_assert((function::kIsArgument<A> && ...),
                  "cohort::Function is called with at::Tensor, numbers, bool, std::string and "
                  "cohort::Nest; put several tensors into Nest::list({a, b})");
    const std::vector<Nest> nests{Nest(std::forward<A>(arguments))...};
    return call(nests);
  }
  Nest call(std::span<const Nest> arguments) const;
  // Converts numbers for at::Tensor parameters to 0-dim tensors of float64, int64 or bool, in
  // place.
  void convert_numbers(std::span<Nest> arguments) const;
  // The programs of the newest traces as text, one for each signature and shape of elements, with
  // one line per operator and the shapes of its results. Throws failed_precondition before the
  // first trace, and for a registered function.
  std::string program() const;
  const std::string& name() const { return state_->name; }
  const std::shared_ptr<const State>& state() const { return state_; }

 private:
  Function() = default;
  std::shared_ptr<const State> state_;
};

}  // namespace cohort
