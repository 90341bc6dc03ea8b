// SPDX-License-Identifier: Apache-2.0
// The dispatch key through which a trace sees operators.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace cohort::function {

// Above Autocast, Autograd and BackendSelect: factories, the user's own ops and the ops of the
// autograd engine all come by. Should LibTorch drop it, DeferredInit stands in the same place.
inline constexpr c10::DispatchKey kTraceKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// In its scope ATen calls are the tracer's own: not recorded, not differentiated. Used only from
// the tracing thread.
class Untraced {
 private:
  c10::impl::ExcludeDispatchKeyGuard off_{kTraceKey};
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

}  // namespace cohort::function
