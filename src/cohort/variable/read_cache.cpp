// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/read_cache.h"

#include <ATen/core/TensorBody.h>

#include <utility>

#include "cohort/core/error.h"
#include "cohort/function/trace.h"
#include "cohort/variable/variable_home.h"

namespace cohort::variable {
namespace {

thread_local ReadCache* current_cache = nullptr;

}  // namespace

ReadCache::ReadCache() : trace_(function::Trace::current()) {
  COHORT_CHECK(current_cache == nullptr, ErrorCode::invalid_argument,
               "[variable.cache_reads] expected no CacheVariableReadsScope inside another one of "
               "this thread; end the outer one before");
  current_cache = this;
}

ReadCache::~ReadCache() { current_cache = nullptr; }

ReadCache* ReadCache::for_reads_of(const Variable& variable) {
  if (current_cache == nullptr || current_cache->trace_ != function::Trace::current())
    return nullptr;
  return variable.impl()->home()->may_cache_reads() ? current_cache : nullptr;
}

at::Tensor ReadCache::find(const Variable& variable) const {
  const auto found = kept_.find(variable.impl().get());
  return found == kept_.end() ? at::Tensor() : found->second.value.clone();
}

void ReadCache::keep(const Variable& variable, at::Tensor value) {
  kept_.try_emplace(variable.impl().get(), Kept{variable, std::move(value)});
}

}  // namespace cohort::variable
