// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracing_mode.h"

#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include "cohort/function/autocast.h"

namespace cohort::function {
namespace {

void set(const TracingMode& mode) {
  c10::GradMode::set_enabled(mode.is_grad_enabled);
  set_autocast_enabled(mode.is_autocast_enabled);
  at::autocast::set_autocast_cache_enabled(mode.is_autocast_cached);
  set_autocast_dtype(mode.autocast_dtype);
  // Other threads see this change too, so it is made only where needed.
  if (c10::get_default_dtype_as_scalartype() != mode.default_dtype)
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(mode.default_dtype));
}

}  // namespace

TracingMode TracingMode::current() {
  return {.is_grad_enabled = c10::GradMode::is_enabled(),
          .is_inference = c10::InferenceMode::is_enabled(),
          .is_autocast_enabled = function::is_autocast_enabled(),
          .is_autocast_cached = at::autocast::is_autocast_cache_enabled(),
          .autocast_dtype = function::autocast_dtype(),
          .default_dtype = c10::get_default_dtype_as_scalartype()};
}

TracingModeScope::TracingModeScope(const TracingMode& mode) : before_(TracingMode::current()) {
  if (mode.is_inference != before_.is_inference) inference_.emplace(mode.is_inference);
  set(mode);
}

TracingModeScope::~TracingModeScope() {
  inference_.reset();
  set(before_);
}

}  // namespace cohort::function
