// SPDX-License-Identifier: Apache-2.0
// Represents a per-worker iterator in a signature.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/data/element.h"
#include "cohort/function/call_signature.h"

namespace cohort::coordinator {

class IteratorPattern final : public function::ResourcePattern {
 public:
  // `spec` is that of the iterator's elements.
  explicit IteratorPattern(std::shared_ptr<const ElementSpec> spec) : spec_(std::move(spec)) {}
  std::string_view handle_kind() const override { return "per-worker iterator"; }
  const ElementSpec& spec() const { return *spec_; }
  bool matches(const Handle& other) const override;
  const std::vector<TensorSpec>& fields() const override { return spec_->fields; }
  // An Iterator whose draws the running trace records.
  std::shared_ptr<Handle> traced(std::int64_t resource) const override;

 private:
  const std::shared_ptr<const ElementSpec> spec_;  // shared with its dataset
};

// The signature of a call. Throws invalid_argument for a remote value or another handle that is not
// a per-worker iterator.
function::CallSignature signature_of(std::span<const Nest> arguments,
                                     const function::TracingMode& mode);

}  // namespace cohort::coordinator
