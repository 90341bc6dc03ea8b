// SPDX-License-Identifier: Apache-2.0
// The dispatch key through which a trace sees operators.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace cohort::function {

// It is above Autocast, Autograd and BackendSelect, so it sees factories, the user's own ops and
// the ops of the autograd engine. If LibTorch drops it, DeferredInit has the same position.
inline constexpr c10::DispatchKey kTraceKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// ATen calls in its scope are the tracer's own: they are not recorded and not differentiated. Used
// only from the tracing thread.
class Untraced {
 private:
  c10::impl::ExcludeDispatchKeyGuard off_{kTraceKey};
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

}  // namespace cohort::function
