// SPDX-License-Identifier: Apache-2.0
// One pass over a distributed dataset, a step at a time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/export.h"
#include "cohort/data/element.h"
#include "cohort/input/per_replica.h"

namespace cohort {

namespace input {
class DistributedIteratorState;  // input/internal/distributed_iterator_state.h
}

// The spec of every component, and the number of components. A value type.
struct COHORT_API DistributedSpec {
  ElementSpec component;
  std::size_t num_components = 1;
  bool is_wrapped = true;

  std::string to_string() const;  // "PerReplica(int64[?], int64[?])"
};

// The result of get_next_as_optional(): one step or nothing.
class COHORT_API DistributedOptional {
 public:
  DistributedOptional(DistributedSpec spec, std::optional<DistributedElement> value)
      : spec_(std::move(spec)), value_(std::move(value)) {}
  bool has_value() const { return value_.has_value(); }
  // invalid_argument if there is none.
  const DistributedElement& get_value() const;
  const DistributedSpec& element_spec() const { return spec_; }

 private:
  DistributedSpec spec_;
  std::optional<DistributedElement> value_;
};

// If there are several workers, all must make the same calls in the same order; an error of one is
// thrown on all, with its worker as origin. Calls inside a replica function are invalid_argument.
// Used from one thread at a time.
class COHORT_API DistributedIterator {
 public:
  explicit DistributedIterator(std::unique_ptr<input::DistributedIteratorState> pass);
  ~DistributedIterator();
  DistributedIterator(DistributedIterator&&) noexcept;
  DistributedIterator& operator=(DistributedIterator&&) noexcept;

  const DistributedSpec& element_spec() const;
  // The next step; nullopt at the end and ever after. After an error the next call continues with
  // the following step, and every replica gets the elements meant for it.
  std::optional<DistributedElement> try_next();
  // Like try_next(), but out_of_range at the end.
  DistributedElement get_next();
  // Like try_next(), but also returns an uneven last step of a dataset of static shapes. Like tf,
  // get_next() and try_next() leave such a step out.
  DistributedOptional get_next_as_optional();

  // The position of all workers after the last step returned; each worker gets the same bytes.
  Bytes save() const;
  // Continues from a position of an equally built distributed dataset: on the same numbers of
  // workers and replicas with exactly the next step, on other numbers with every remaining sample
  // once.
  void restore(std::span<const std::byte> position);

 private:
  std::unique_ptr<input::DistributedIteratorState> state_;
};

}  // namespace cohort
