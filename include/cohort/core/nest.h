// SPDX-License-Identifier: Apache-2.0
// A nested value: tensors, host values and handles in lists, tuples and string-keyed maps
// (tf.nest).
//
//   Nest batch = Nest::tuple({images, labels});
//   for (const at::Tensor& leaf : batch.flatten_tensors()) { … }
//   Nest named = Nest::map({{"image", images}, {"label", labels}});
//   at::Tensor label = named.entry("label").tensor();
//
// Flatten order: position in lists and tuples, sorted key in maps.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/string_tensor.h"

namespace cohort {

// A reference to something that is stored elsewhere and is sent by name: an iterator, a remote
// value, a per-worker value.
class COHORT_API Handle {
 public:
  virtual ~Handle() = default;
  // The kind, for messages: "iterator", "remote value", …
  virtual std::string_view handle_kind() const = 0;
};

// A value type; copies share tensors. Thread-compatible. Many methods because each of its ten kinds
// has a test and a getter.
class COHORT_API Nest {
 public:
  enum class Kind : std::uint8_t {
    null,
    tensor,
    integer,
    real,
    boolean,
    text,
    handle,
    list,
    tuple,
    map
  };
  // Whether a structure check accepts a different kind of leaf, for example an int for a tensor (as
  // tf.nest does), or requires the same kind.
  enum class LeafKinds : std::uint8_t { any, same };
  using Items = std::vector<Nest>;
  using Map = std::map<std::string, Nest>;

  Nest() = default;
  Nest(at::Tensor tensor);  // NOLINT: conversions are the point
  Nest(const StringTensor& strings) : Nest(strings.tensor()) {}  // NOLINT
  Nest(std::int64_t value);                                      // NOLINT
  template <class T>
  requires(std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char>)
      Nest(T value)  // NOLINT
      : Nest(fitting(value)) {}
  Nest(double value);                         // NOLINT
  Nest(float value) : Nest(double{value}) {}  // NOLINT
  template <std::same_as<bool> T>
  Nest(T value) : value_(value) {}                       // NOLINT
  Nest(std::string value);                               // NOLINT
  Nest(const char* value) : Nest(std::string(value)) {}  // NOLINT
  Nest(std::shared_ptr<Handle> handle);                  // NOLINT
  // A pointer to anything but characters does not convert, although it converts to bool.
  Nest(std::nullptr_t) = delete;
  template <class T>
  requires(!std::same_as<std::remove_cv_t<T>, char>) Nest(T*)
  = delete;
  static Nest list(Items items);
  static Nest tuple(Items items);
  static Nest map(Map entries);

  Kind kind() const;
  bool is_leaf() const;
  bool is_null() const { return kind() == Kind::null; }
  bool is_tensor() const { return kind() == Kind::tensor; }

  // The content. Throws invalid_argument, naming both kinds, if the nest is of a different kind.
  const at::Tensor& tensor() const;
  StringTensor strings() const { return StringTensor::of(tensor()); }
  std::int64_t integer() const;
  double real() const;
  bool boolean() const;
  const std::string& text() const;
  const std::shared_ptr<Handle>& handle() const;
  const Items& items() const&;  // of a list or a tuple
  const Map& entries() const&;
  // By value, so that a loop over the items of a temporary nest is safe.
  Items items() && { return std::as_const(*this).items(); }
  Map entries() && { return std::as_const(*this).entries(); }
  // One entry of a map. Throws not_found for another key, with the list of keys.
  const Nest& entry(std::string_view key) const&;
  Nest entry(std::string_view key) && { return std::as_const(*this).entry(key); }

  // All leaves in flatten order. A null is a leaf.
  std::vector<Nest> flatten() const;
  // The tensor leaves alone.
  std::vector<at::Tensor> flatten_tensors() const;
  // The same structure with each leaf replaced by fn(leaf).
  Nest map_leaves(const std::function<Nest(const Nest&)>& fn) const;

  // "(tensor, {a: int, b: [text]})": structure without values.
  std::string structure() const;
  // Throws invalid_argument if the structures differ. The error names `what`, for example
  // "[strategy.run] the value of replica 1", and the first difference, for example "at [1]['b']:
  // expected tuple of 2, got tensor".
  static void check_same_structure(const Nest& expected, const Nest& actual, std::string_view what,
                                   LeafKinds leaf_kinds = LeafKinds::any);

 private:
  // `value` as std::int64_t. Throws invalid_argument if it does not fit.
  template <class T>
  static std::int64_t fitting(T value) {
    if constexpr (std::is_unsigned_v<T> && sizeof(T) >= sizeof(std::int64_t)) {
      return fitting_unsigned(value);
    } else {
      return value;
    }
  }
  static std::int64_t fitting_unsigned(std::uint64_t value);

  struct List {
    Items items;
  };
  struct Tuple {
    Items items;
  };
  std::variant<std::monostate, at::Tensor, std::int64_t, double, bool, std::string,
               std::shared_ptr<Handle>, List, Tuple, Map>
      value_;
};

COHORT_API std::string_view name_of(Nest::Kind kind);

}  // namespace cohort
