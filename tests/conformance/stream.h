// SPDX-License-Identifier: Apache-2.0
// Iterators of a dataset or of a distributed dataset, for scripts; elements are JSON.
#pragma once

#include <memory>
#include <optional>

#include "cohort/core/bytes.h"
#include "cohort/data/dataset.h"
#include "tests/conformance/json.h"

namespace cohort::conformance {

// One iterator. Used from one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  // Returns nullopt at the end.
  virtual std::optional<Json> next() = 0;
  // {"optional": element} or {"optional": null, "get_value": error}.
  virtual Json next_optional() = 0;
  virtual Bytes save() const = 0;
  virtual void restore(const Bytes& position) = 0;
  // Calls get_next inside a replica function.
  virtual Json next_in_replica();
};

// A dataset or a distributed dataset, as seen by one worker. Used from one thread at a time.
class Subject {
 public:
  virtual ~Subject() = default;
  // Sets the spec, the cardinality and other members that need no iterator.
  virtual void describe(Json& outcome) const = 0;
  virtual std::unique_ptr<Stream> iterate() const = 0;
  // The sum of all values of all elements, computed by the subject's own reduce.
  virtual Json reduce_sum() const;
};

// Applies `transform`, if given, to each element.
std::unique_ptr<Subject> subject_of(Dataset dataset,
                                    std::function<Nest(const Nest&)> transform = {});

// The item of an Optional.
Json json_of(const data::Optional& optional);

}  // namespace cohort::conformance
