// SPDX-License-Identifier: Apache-2.0
// Reading a dataset element by element.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/nest.h"
#include "cohort/data/element.h"
#include "cohort/data/optional.h"
#include "cohort/function/function.h"

namespace cohort {

// What one op of a running pipeline did and took so far. A value type.
struct COHORT_API StageStats {
  std::string op;
  std::string place;          // "/" for the sink, "/1/0" for the first input of its second
  std::int64_t elements = 0;  // handed on
  double seconds = 0;         // in its calls, with those of its inputs in them
  double seconds_exclusive =
      0;  // its own in all its threads, without its inputs' and without waiting
};

// One running instance of something that yields elements. Used from one thread at a time.
class COHORT_API ElementSource {
 public:
  virtual ~ElementSource() = default;
  virtual const ElementSpec& spec() const = 0;
  // False at the end, and ever after. An error consumes at most the offending element; the next
  // call goes on behind it.
  virtual bool next(Fields& fields) = 0;
  // The nest of an element that next() gave.
  virtual Nest pack(const Fields& fields) const { return spec().pack(fields); }
  // The position, and taking it up in a source made alike; unimplemented where there is none.
  virtual void save(ByteWriter& writer) const;
  virtual void restore(ByteReader& reader);
  // The names of its ops, as in a saved position; empty where there are none.
  virtual std::string pipeline() const { return {}; }
  // What its stages took, from the sink on; empty unless RunOptions::collect_stats.
  virtual std::vector<StageStats> stats() const { return {}; }
};

// A handle for user code: over a running pipeline, or, while a step is traced, over its example
// elements. Used from one thread at a time.
class COHORT_API Iterator final : public Handle {
 public:
  explicit Iterator(std::unique_ptr<ElementSource> source) : source_(std::move(source)) {}
  std::string_view handle_kind() const override { return "iterator"; }
  const ElementSpec& element_spec() const { return source_->spec(); }

  // The next element; nullopt at the end.
  std::optional<Nest> try_next();
  // The same; out_of_range at the end (as the original's get_next inside a function).
  Nest next_element();
  // The next element, or an empty one at the end and ever after (get_next_as_optional).
  Optional next_as_optional();
  // The position as bytes; another iterator of an identically built dataset that restores them
  // yields what this one would have yielded next. invalid_argument for bytes of another pipeline,
  // failed_precondition where an op cannot be saved (from_generator).
  Bytes save() const;
  void restore(std::span<const std::byte> position);

  // What each op took so far, from the sink on, for RunOptions::collect_stats; empty without.
  std::vector<StageStats> stats() const { return source_->stats(); }
  // The op that took most time of its own, as "map at /0/0"; empty without stats.
  std::string bottleneck() const;

  // The next element's fields: a tensor for one, a tuple for more. The fields of a map come in the
  // order of their names, whatever the order in which it was written (tf.nest.flatten): of
  // {"x": …, "label": …} the first is "label". out_of_range at the end; a wrong number of types is
  // invalid_argument, with the element's spec.
  template <class... T>
  auto next() {
    static_assert(sizeof...(T) > 0 && (std::is_same_v<T, at::Tensor> && ...),
                  "Iterator::next<at::Tensor, …>() takes at::Tensor, once for each field of the "
                  "element; read a field of strings with cohort::StringTensor::of(field)");
    Fields fields = next_fields(sizeof...(T));
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      if constexpr (sizeof...(T) == 1)
        return std::move(fields[0]);
      else
        return std::make_tuple(std::move(fields[I])...);
    }
    (std::make_index_sequence<sizeof...(T)>{});
  }

 private:
  Fields next_fields(std::size_t expected);
  std::unique_ptr<ElementSource> source_;
};

namespace function {
template <>
struct COHORT_API Argument<Iterator&> {
  static constexpr std::string_view kType = "an iterator";
  static bool takes(const Nest&) { return true; }  // from() knows more
  static Iterator& from(const Nest& argument);
};
}  // namespace function

}  // namespace cohort
