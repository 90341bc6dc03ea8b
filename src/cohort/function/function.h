// SPDX-License-Identifier: Apache-2.0
// A step that can run anywhere (tf.function): a C++ callable traced once a signature, or a function
// registered by name:
//   cohort::Function step([&](cohort::Iterator& it) { … return loss; });
//
// Parameters may be at::Tensor, double, std::int64_t, bool, std::string, Nest and
// cohort::Iterator&; host values, and grad mode and autocast of the thread that schedules it, are
// part of the signature and thus frozen in the program. A module's train() and eval() are not,
// since they cannot be seen from outside: call them inside, first, in every Function that uses the
// module. The result is void, a tensor, a host value, a Nest, or a tuple, pair or vector of those.
// A lambda that captures by reference must outlive the last join(). Tensors enter a program in
// row-major order, whatever their strides: for torch's channels_last, permute() inside.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/nest.h"

namespace cohort {

struct FunctionOptions {
  std::string name;  // for messages; empty: "function"
};

namespace function {

// How a parameter of type T is taken from an argument. Iterator adds its own in data/iterator.h.
template <class T>
struct Argument;
template <>
struct Argument<at::Tensor> {
  static const at::Tensor& from(const Nest& n) { return n.tensor(); }
};
template <>
struct Argument<const at::Tensor&> : Argument<at::Tensor> {};
template <>
struct Argument<double> {
  static double from(const Nest& n) { return n.real(); }
};
template <>
struct Argument<std::int64_t> {
  static std::int64_t from(const Nest& n) { return n.integer(); }
};
template <>
struct Argument<int> {
  static int from(const Nest& n) { return static_cast<int>(n.integer()); }
};
template <>
struct Argument<bool> {
  static bool from(const Nest& n) { return n.boolean(); }
};
template <>
struct Argument<std::string> {
  // An element's scalar string comes as a tensor.
  static std::string from(const Nest& n) {
    return n.is_tensor() ? std::string(n.strings().value()) : n.text();
  }
};
template <>
struct Argument<const std::string&> : Argument<std::string> {};
template <>
struct Argument<StringTensor> {
  static StringTensor from(const Nest& n) { return n.strings(); }
};
template <>
struct Argument<const StringTensor&> : Argument<StringTensor> {};
template <>
struct Argument<Nest> {
  static const Nest& from(const Nest& n) { return n; }
};
template <>
struct Argument<const Nest&> : Argument<Nest> {};

// What a callable takes and gives; not for generic lambdas, whose operator() has no one signature.
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
template <class F>
concept HasOneSignature = std::is_pointer_v<F> || requires {
  &F::operator();
};

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

// A callable over nests; the arity is checked before the call.
using Body = std::function<Nest(std::span<const Nest> arguments)>;

template <class F>
Body erase(F fn) {
  using Arguments = typename Signature<F>::Arguments;
  return [fn = std::move(fn)](std::span<const Nest> arguments) mutable -> Nest {
    constexpr std::size_t kArity = std::tuple_size_v<Arguments>;
    COHORT_CHECK(arguments.size() == kArity, ErrorCode::invalid_argument,
                 "[function.call] expected ", kArity, " arguments, got ", arguments.size());
    return [&]<std::size_t... I>(std::index_sequence<I...>)->Nest {
      if constexpr (std::is_void_v<typename Signature<F>::Result>) {
        fn(Argument<std::tuple_element_t<I, Arguments>>::from(arguments[I])...);
        return Nest();
      } else {
        return result_of(fn(Argument<std::tuple_element_t<I, Arguments>>::from(arguments[I])...));
      }
    }
    (std::make_index_sequence<kArity>{});
  };
}

}  // namespace function

// A shared handle; copies are the same function. Thread-safe but for operator(), which runs the
// callable as it is.
class COHORT_API Function {
 public:
  struct State {
    std::string name;
    std::string registered_name;  // not empty: body is empty
    function::Body body;
    std::size_t arity = 0;
  };

  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, Function>) explicit Function(
      F fn, FunctionOptions options = {}) {
    static_assert(function::HasOneSignature<F>,
                  "cohort::Function needs parameters with types: a generic lambda ([](auto x) …) "
                  "cannot be traced; write at::Tensor");
    auto state = std::make_shared<State>();
    state->name = options.name.empty() ? "function" : std::move(options.name);
    state->arity = std::tuple_size_v<typename function::Signature<F>::Arguments>;
    state->body = function::erase(std::move(fn));
    state_ = std::move(state);
  }
  // A function the servers know by name (function/registry.h): the way out for code that cannot be
  // traced.
  static Function registered(std::string name);

  // Runs it here and now, untraced.
  template <class... A>
  Nest operator()(A&&... arguments) const {
    const std::vector<Nest> nests{Nest(std::forward<A>(arguments))...};
    return call(nests);
  }
  Nest call(std::span<const Nest> arguments) const;
  const std::string& name() const { return state_->name; }
  const std::shared_ptr<const State>& state() const { return state_; }

 private:
  Function() = default;
  std::shared_ptr<const State> state_;
};

}  // namespace cohort
