// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/stream.h"

#include "cohort/core/error.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

using Transform = std::function<Nest(const Nest&)>;

class DatasetStream final : public Stream {
 public:
  DatasetStream(Iterator iterator, Transform transform)
      : iterator_(std::move(iterator)), transform_(std::move(transform)) {}

  std::optional<Json> next() override {
    std::optional<Nest> element = iterator_.try_next();
    if (!element) return std::nullopt;
    return json_of(transform_ ? transform_(*element) : *element);
  }

  Json next_optional() override { return json_of(iterator_.get_next_as_optional()); }
  Bytes save() const override { return iterator_.save(); }
  void restore(const Bytes& position) override { iterator_.restore(position); }

 private:
  Iterator iterator_;
  Transform transform_;
};

class DatasetSubject final : public Subject {
 public:
  DatasetSubject(Dataset dataset, Transform transform)
      : dataset_(std::move(dataset)), transform_(std::move(transform)) {}

  void describe(Json& outcome) const override {
    outcome["spec"] = json_of(dataset_.element_spec());
    outcome["cardinality"] = dataset_.cardinality();
  }

  std::unique_ptr<Stream> iterate() const override {
    return std::make_unique<DatasetStream>(dataset_.iterator(), transform_);
  }

 private:
  Dataset dataset_;
  Transform transform_;
};

}  // namespace

Json Stream::next_in_replica() {
  throw CaseFault("next_in_replica is for distributed iterators alone");
}

Json Subject::reduce_sum() const {
  throw CaseFault("reduce_sum is for distributed datasets alone");
}

std::unique_ptr<Subject> subject_of(Dataset dataset, Transform transform) {
  return std::make_unique<DatasetSubject>(std::move(dataset), std::move(transform));
}

Json json_of(const data::Optional& optional) {
  if (optional.has_value()) return {{"optional", json_of(optional.get_value())}};
  try {
    return {{"optional", nullptr}, {"get_value", json_of(optional.get_value())}};
  } catch (...) {
    return {{"optional", nullptr}, {"get_value", caught_error()}};
  }
}

}  // namespace cohort::conformance
