// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/eager_step.h"

#include <cstring>
#include <utility>

namespace cohort {
namespace {

thread_local EagerStep* step_here = nullptr;

}  // namespace

EagerStep::EagerStep(VariableTraffic& traffic, Kind kind, Duration patience)
    : here_(step_here, this), kind_(kind), traffic_(traffic), patience_(patience) {}
EagerStep* EagerStep::current() { return step_here; }
bool EagerStep::is_scheduled_here() {
  return step_here != nullptr && step_here->kind_ == Kind::scheduled;
}

void EagerStep::note(const VariableImpl& variable, at::Tensor value) {
  values_.insert_or_assign(&variable, std::move(value));
}

bool EagerStep::has_written(const VariableImpl& variable) const {
  const auto known = values_.find(&variable);
  if (known == values_.end()) return false;
  const at::Tensor now = variable.tensor().detach().contiguous();
  const at::Tensor& before = known->second;
  if (now.nbytes() != before.nbytes()) return true;
  return now.nbytes() > 0 && std::memcmp(now.data_ptr(), before.data_ptr(), now.nbytes()) != 0;
}

}  // namespace cohort
