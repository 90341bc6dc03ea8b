// SPDX-License-Identifier: Apache-2.0
// Iterators read a dataset element by element.
//
// Iterator, DistributedIterator, Epoch and RecordReader yield one value after the other. All have
// try_next(), which returns nullopt at the end: use it in loops. Iterator and DistributedIterator
// also have
// - get_next(), which throws out_of_range at the end. Iterator also has next<T...>(), the same for
//   the fields as tensors. Use them in steps: the coordinator recognizes that error as the end of
//   the data.
// - get_next_as_optional(), which returns tf's Optional. It has a spec even if it is empty.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/nest.h"
#include "cohort/data/element.h"
#include "cohort/function/function.h"

namespace cohort {

class Dataset;            // data/dataset.h
struct IterationOptions;  // data/dataset_options.h

namespace data {
class OpenedFiles;  // data/opened_files.h

// The elements and the time of one op of a running pipeline so far. A value type.
struct COHORT_API StageStats {
  std::string op;
  std::string place;          // "/": the last op; "/1/0": the first input of its second input
  std::int64_t elements = 0;  // yielded
  double seconds = 0;         // spent in its calls, including calls of its inputs
  // Spent in all its threads, without calls of its inputs and without waiting.
  double seconds_exclusive = 0;
};

// A running pipeline, or another source of elements. Used from one thread at a time.
class COHORT_API ElementSource {
 public:
  virtual ~ElementSource() = default;
  virtual const ElementSpec& spec() const = 0;
  // Sets `fields` to the next element. Returns false at the end and in every later call. An error
  // consumes at most the failed element; the next call continues with the following one.
  virtual bool next(Fields& fields) = 0;
  // The nest of an element that next() returned.
  virtual Nest pack(const Fields& fields) const { return spec().pack(fields); }
  // Saves the position, and restores it in a source of an equal pipeline. Throws unimplemented for
  // sources without a position.
  virtual void save(ByteWriter& writer) const;
  virtual void restore(ByteReader& reader);
  // The names of its ops, with which a saved position begins; empty if it has no ops.
  virtual std::string pipeline() const { return {}; }
  // One entry per op, the last op first; empty without IterationOptions::collect_stats.
  virtual std::vector<StageStats> stats() const { return {}; }
};

// Like dataset.source(options), but a running pipeline can be cancelled from any thread (tf's
// CancellationManager). After a stop is requested, next() throws cancelled. A running call of
// next() stops at its next element, also while it fills a buffer, skips elements, searches for one
// or waits; a running call of a user's function finishes first. Destroying a source stops its
// threads in the same way, without a token. If `files` is not null, it records the files that the
// pipeline opens, and a file that has changed since then is an error.
//
//   std::stop_source stop;
//   Iterator iterator(data::cancellable_source(dataset, {}, stop.get_token()));
//   stop.request_stop();  // on another thread
COHORT_API std::unique_ptr<ElementSource> cancellable_source(
    const Dataset& dataset, const IterationOptions& options, std::stop_token stop,
    std::shared_ptr<OpenedFiles> files = {});
}  // namespace data

// Yields elements to user code: those of a running pipeline or, while a step is traced, example
// elements. Used from one thread at a time.
class COHORT_API Iterator final : public Handle {
 public:
  explicit Iterator(std::unique_ptr<data::ElementSource> source) : source_(std::move(source)) {}
  std::string_view handle_kind() const override { return "iterator"; }
  const ElementSpec& element_spec() const { return source_->spec(); }

  // The next element; nullopt at the end.
  std::optional<Nest> try_next();
  // The same, but throws out_of_range at the end (as tf's get_next inside a function).
  Nest get_next();
  // The same, but returns an empty Optional at the end (tf's get_next_as_optional).
  data::Optional get_next_as_optional();
  // Saves the position as bytes. If an iterator of an identically built dataset restores them, it
  // yields the elements that this one would have yielded next. restore() throws invalid_argument
  // for bytes of another pipeline; after data_loss or another error, the iterator yields nothing
  // more but failed_precondition. save() throws that, too, if an op has no position.
  Bytes save() const;
  void restore(std::span<const std::byte> position);

  // One entry per op, the last op first; empty without IterationOptions::collect_stats.
  std::vector<data::StageStats> stats() const { return source_->stats(); }
  // The op with the largest seconds_exclusive, for example "map at /0/0"; empty without stats.
  std::string bottleneck() const;

  // The fields of the next element: one tensor, or a tuple of several. The fields of a map are
  // sorted by name (as by tf.nest.flatten): "label" is the first field of {"x": …, "label": …}.
  // Throws out_of_range at the end; invalid_argument, with the element's spec, if the number of
  // types is not the number of fields.
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
  std::unique_ptr<data::ElementSource> source_;
};

namespace function {
template <>
struct COHORT_API Argument<Iterator&> {
  static constexpr std::string_view kType = "an iterator";
  static bool takes(const Nest&) { return true; }  // from() checks
  static Iterator& from(const Nest& argument);
};
}  // namespace function

}  // namespace cohort
