// SPDX-License-Identifier: Apache-2.0
// The replica context of backward passes on GPUs.
//
// LibTorch computes the backward pass of tensors on a GPU on a thread of its own, one for each GPU.
// Thread-local variables of the replica do not exist there. But LibTorch hands over its
// ThreadLocalDebugInfo, and these scopes keep the replica in it. So all_reduce() and the tensors of
// variables know also there which replica they belong to.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

#include "cohort/strategy/replica_context.h"

namespace cohort::internal {

// While it exists, backward passes that this thread begins are those of the replica; nullptr: they
// are in no replica.
class BackwardContextScope {
 public:
  explicit BackwardContextScope(ReplicaContext* replica);
  ~BackwardContextScope();

 private:
  struct Info;
  friend ReplicaContext* context_of_backward();
  const std::shared_ptr<Info> info_;
  const c10::DebugInfoGuard guard_;
};

// The replica of the innermost scope on this thread, or on the one for which this thread computes a
// backward pass; nullptr outside of all.
ReplicaContext* context_of_backward();

// Counts the runs of replicas on several GPUs that are going on in this process.
class SeveralGpusScope {
 public:
  explicit SeveralGpusScope(bool has_several);
  ~SeveralGpusScope();
  SeveralGpusScope(const SeveralGpusScope&) = delete;
  SeveralGpusScope& operator=(const SeveralGpusScope&) = delete;

 private:
  const bool has_several_;
};

// Throws unimplemented if several of them are. In a gradient in which replicas meet, the thread of
// one GPU waits for that of another one. Two runs at a time could so wait for each other for ever.
void check_one_run_on_gpus();

}  // namespace cohort::internal
