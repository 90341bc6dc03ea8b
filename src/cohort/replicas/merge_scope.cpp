// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/merge_scope.h"

#include <algorithm>

namespace cohort::internal {
namespace {

thread_local MergeScope* innermost_merge = nullptr;

}  // namespace

MergeScope::MergeScope() : innermost_(innermost_merge, this) {}

void MergeScope::note_write(Written& written) {
  if (innermost_merge == nullptr) return;
  std::vector<Written*>& all = innermost_merge->written_;
  if (std::ranges::find(all, &written) == all.end()) all.push_back(&written);
}

void MergeScope::complete() {
  for (Written* const each : written_) each->keep_merged();
}

}  // namespace cohort::internal
