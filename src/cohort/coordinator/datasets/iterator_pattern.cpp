// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/datasets/iterator_pattern.h"

#include <utility>

#include "cohort/coordinator/datasets/iterator_handle.h"
#include "cohort/core/error.h"
#include "cohort/data/iterator.h"
#include "cohort/function/trace.h"

namespace cohort::coordinator {
namespace {

// Replaces a worker's iterator while a step is traced.
class TracedElements final : public data::ElementSource {
 public:
  TracedElements(std::int64_t resource, std::shared_ptr<const ElementSpec> spec)
      : resource_(resource), spec_(std::move(spec)) {}
  const ElementSpec& spec() const override { return *spec_; }
  bool next(Fields& fields) override {
    function::Trace* trace = function::Trace::current();
    COHORT_CHECK(trace != nullptr, ErrorCode::failed_precondition,
                 "[coordinator.iterator] a worker's iterator can be read inside the scheduled "
                 "function only");
    fields = trace->iterator_next(resource_);
    return true;
  }

 private:
  const std::int64_t resource_;
  const std::shared_ptr<const ElementSpec> spec_;  // shared with the pattern
};

class IteratorPattern final : public function::ResourcePattern {
 public:
  explicit IteratorPattern(const IteratorHandle& iterator)
      : spec_(iterator.datasets().shared_spec()), is_value_(iterator.is_value()) {}
  std::string_view handle_kind() const override { return "per-worker iterator"; }
  bool matches(const Handle& other) const override {
    const ElementSpec* const spec = spec_of(other);
    if (spec == nullptr || is_value_of(other) != is_value_) return false;
    return spec == spec_.get() || (spec->fields == spec_->fields &&
                                   spec->structure.structure() == spec_->structure.structure());
  }
  const std::vector<TensorSpec>& fields() const override { return spec_->fields; }
  // An Iterator whose draws the running trace records.
  std::shared_ptr<Handle> traced(std::int64_t resource) const override {
    return std::make_shared<Iterator>(std::make_unique<TracedElements>(resource, spec_));
  }
  // A step gets a per-worker value itself, which its worker draws like an element.
  Nest argument(std::int64_t resource) const override {
    const auto drawn = traced(resource);
    return is_value_ ? dynamic_cast<Iterator&>(*drawn).get_next() : Nest(drawn);
  }

 private:
  static bool is_value_of(const Handle& handle) {
    if (const auto* iterator = dynamic_cast<const IteratorHandle*>(&handle))
      return iterator->is_value();
    const auto* pattern = dynamic_cast<const IteratorPattern*>(&handle);
    return pattern != nullptr && pattern->is_value_;
  }
  // The spec of an iterator's or a pattern's elements; nullptr for another handle.
  static const ElementSpec* spec_of(const Handle& handle) {
    if (const auto* iterator = dynamic_cast<const IteratorHandle*>(&handle))
      return &iterator->spec();
    const auto* pattern = dynamic_cast<const IteratorPattern*>(&handle);
    return pattern == nullptr ? nullptr : pattern->spec_.get();
  }

  const std::shared_ptr<const ElementSpec> spec_;  // shared with its dataset
  const bool is_value_;
};

std::shared_ptr<function::ResourcePattern> pattern_of(const Handle& handle) {
  const auto* iterator = dynamic_cast<const IteratorHandle*>(&handle);
  COHORT_CHECK(
      iterator != nullptr, ErrorCode::invalid_argument,
      "[coordinator.schedule] expected tensors, host values, per-worker iterators and per-worker "
      "values as arguments, got a ",
      handle.handle_kind(),
      "; fetch() a remote value first, or schedule with {.moves_remote_values = true}, and pass "
      "create_per_worker_dataset(…).iterator() for data");
  return std::make_shared<IteratorPattern>(*iterator);
}

}  // namespace

function::CallSignature signature_of(std::span<const Nest> arguments,
                                     const function::TracingMode& mode) {
  return {arguments, mode, pattern_of};
}

}  // namespace cohort::coordinator
