// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/push_collector.h"

#include <utility>

#include "cohort/core/error.h"

namespace cohort::server {

std::vector<at::Tensor> PushCollector::iterator_next(std::int64_t) {
  COHORT_ASSERT(next_draw_ < draws_.size());
  return std::move(draws_[next_draw_++]);
}

void PushCollector::update(internal::Effect effect) {
  const std::size_t variable = effect.variable;
  if (effect.kind == internal::Effect::Kind::merge_average) effect.version = versions()[variable];
  pushes_.add(places_->placement.slices.at(variable), std::move(effect));
}

at::Tensor PushCollector::gather(std::int64_t variable, const at::Tensor&) {
  internal::throw_error(
      ErrorCode::unimplemented, "[server.gather] rows of '",
      program_.program().info().variables.at(static_cast<std::size_t>(variable)).name,
      "' cannot be gathered: tables on parameter servers are not supported yet; read the variable");
}

std::span<std::uint64_t> PushCollector::versions() {
  versions_.resize(program_.num_variables());
  return versions_;
}

std::vector<parameter_server::Push> PushCollector::take_segment() {
  std::vector<parameter_server::Push> pushes = pushes_.take(places_->placement.version);
  for (parameter_server::Push& push : pushes) push.request.id.segment = segment_;
  ++segment_;
  return pushes;
}

}  // namespace cohort::server
