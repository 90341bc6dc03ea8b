// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/backward_context.h"

#include <atomic>

#include "cohort/core/error.h"

namespace cohort::internal {
namespace {

// A kind without a meaning of its own. It is a number or an object, by the version of LibTorch.
c10::DebugInfoKind debug_kind() { return c10::DebugInfoKind::TEST_INFO; }

std::atomic<int> runs_on_several_gpus = 0;

}  // namespace

struct BackwardContextScope::Info final : c10::DebugInfoBase {
  explicit Info(ReplicaContext* of) : replica(of) {}
  // Code that LibTorch runs later, on another thread, may still have this object.
  std::atomic<ReplicaContext*> replica;
};

BackwardContextScope::BackwardContextScope(ReplicaContext* replica)
    : info_(std::make_shared<Info>(replica)), guard_(debug_kind(), info_) {}

BackwardContextScope::~BackwardContextScope() { info_->replica = nullptr; }

ReplicaContext* context_of_backward() {
  const auto* const info =
      dynamic_cast<const BackwardContextScope::Info*>(c10::ThreadLocalDebugInfo::get(debug_kind()));
  return info == nullptr ? nullptr : info->replica.load();
}

SeveralGpusScope::SeveralGpusScope(bool has_several) : has_several_(has_several) {
  if (has_several_) ++runs_on_several_gpus;
}

SeveralGpusScope::~SeveralGpusScope() {
  if (has_several_) --runs_on_several_gpus;
}

void check_one_run_on_gpus() {
  COHORT_CHECK(runs_on_several_gpus <= 1, ErrorCode::unimplemented,
               "[strategy.run] expected one run at a time of replicas on several GPUs for a "
               "gradient in which they meet (of all_reduce(), all_gather() or SyncBatchNorm), got ",
               runs_on_several_gpus.load(), "; make one run after the other");
}

}  // namespace cohort::internal
