// SPDX-License-Identifier: Apache-2.0
// The properties in which two calls of a function must agree to run the same program.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/function/tracing_mode.h"

namespace cohort::function {

// Represents a resource in a signature: a handle among the arguments from which the function draws
// elements, such as an iterator. The handle itself would keep its pipelines for as long as the
// signature is known.
class COHORT_API ResourcePattern : public Handle {
 public:
  // Whether `other`, a handle in a call or a pattern, is a resource whose elements have the same
  // specs.
  virtual bool matches(const Handle& other) const = 0;
  // The specs of an element's fields.
  virtual const std::vector<TensorSpec>& fields() const = 0;
  // The argument that the function gets while it is traced. Its draws are those of this resource.
  virtual std::shared_ptr<Handle> traced(std::int64_t resource) const = 0;
  // The argument of the function: by default the handle that traced() returns.
  virtual Nest argument(std::int64_t resource) const { return Nest(traced(resource)); }
};

// Returns the pattern for a handle in a call. Throws invalid_argument for a handle that is no
// resource.
using PatternOf = std::function<std::shared_ptr<ResourcePattern>(const Handle& handle)>;

// The shapes of a call, and the mode of the thread that makes it: everything in which two calls may
// differ without another trace is left out. A value type.
class COHORT_API CallSignature {
 public:
  // Copies the tensors, as examples for a trace. Throws any exception of `pattern_of`.
  CallSignature(std::span<const Nest> arguments, const TracingMode& mode,
                const PatternOf& pattern_of);
  bool matches(std::span<const Nest> arguments, const TracingMode& mode) const;
  // Calls of one signature have equal hashes. Hashes of calls that differ in shapes, dtypes or host
  // values are different with near certainty.
  static std::size_t hash_of(std::span<const Nest> arguments);
  // Why a call of this signature could not use the program of a call of `earlier`, with the remedy;
  // empty if neither the arguments nor the mode is the reason.
  std::string difference_from(const CallSignature& earlier) const;
  // The arguments, with copies of the tensors, and with a ResourcePattern for each handle.
  const std::vector<Nest>& pattern() const { return pattern_; }
  const TracingMode& mode() const { return mode_; }

 private:
  TracingMode mode_;
  std::vector<Nest> pattern_;
};

// The tensors and the handles of a call's arguments, in flatten order.
struct BoundArguments {
  std::vector<at::Tensor> tensors;
  std::vector<Nest> resources;
};
COHORT_API BoundArguments bind_arguments(std::span<const Nest> arguments);

// Whether two leaves can be the same part of a program: tensors of one dtype, shape, layout and
// requires_grad flag, or equal host values. NaN is equal to itself, and -0.0 is not 0.0.
COHORT_API bool is_same_leaf(const Nest& pattern, const Nest& leaf);

// How the specs of arguments or elements changed, with the remedy: " was int64[8, 5] and is now
// int64[8, 7]: …".
COHORT_API std::string difference(const std::vector<TensorSpec>& before,
                                  const std::vector<TensorSpec>& now);

// The specs of these tensors.
COHORT_API std::vector<TensorSpec> specs_of(const std::vector<at::Tensor>& tensors);

}  // namespace cohort::function
