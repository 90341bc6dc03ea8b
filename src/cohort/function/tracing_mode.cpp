// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracing_mode.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

namespace cohort::function {
namespace {

void set(const TracingMode& mode) {
  c10::GradMode::set_enabled(mode.is_grad_enabled);
  at::autocast::set_cpu_enabled(mode.is_autocast_enabled);
  at::autocast::set_autocast_cache_enabled(mode.is_autocast_cached);
  at::autocast::set_autocast_cpu_dtype(mode.autocast_dtype);
}

}  // namespace

TracingMode TracingMode::current() {
  return {.is_grad_enabled = c10::GradMode::is_enabled(),
          .is_inference = c10::InferenceMode::is_enabled(),
          .is_autocast_enabled = at::autocast::is_cpu_enabled(),
          .is_autocast_cached = at::autocast::is_autocast_cache_enabled(),
          .autocast_dtype = at::autocast::get_autocast_cpu_dtype()};
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
