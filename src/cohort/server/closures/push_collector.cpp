// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/push_collector.h"

#include <utility>

#include "cohort/core/error.h"
#include "cohort/rpc/effects.h"

namespace cohort::server {

std::vector<at::Tensor> PushCollector::iterator_next(std::int64_t) {
  COHORT_ASSERT(next_draw_ < draws_.size());
  return std::move(draws_[next_draw_++]);
}

void PushCollector::apply(const internal::SlotOwner& owner, std::int64_t variable,
                          at::Tensor gradient, std::span<const at::Tensor> hyper) {
  std::vector<double> numbers;
  for (const at::Tensor& value : hyper) numbers.push_back(*value.data_ptr<double>());
  add(variable, rpc::apply_effect(owner, std::move(numbers), std::move(gradient)));
}

void PushCollector::assign(internal::AssignKind kind, std::int64_t variable, at::Tensor value) {
  add(variable, rpc::assign_effect(kind, std::move(value)));
}

at::Tensor PushCollector::gather(std::int64_t variable, const at::Tensor&) {
  internal::throw_error(
      ErrorCode::unimplemented, "[server.gather] rows of '",
      program_.program().info().variables.at(static_cast<std::size_t>(variable)).name,
      "' cannot be gathered: tables on parameter servers are not supported yet; read the variable");
}

void PushCollector::scatter_add(std::int64_t variable, const at::Tensor& ids,
                                const at::Tensor& rows) {
  add(variable, {.kind = rpc::Effect::Kind::scatter_add, .tensors = {ids, rows}});
}

void PushCollector::merge_average(std::int64_t variable, at::Tensor value, at::Tensor statistic,
                                  double momentum) {
  add(variable, {.kind = rpc::Effect::Kind::merge_average,
                 .hyper = {momentum},
                 .tensors = {std::move(value), std::move(statistic)},
                 .version = versions()[static_cast<std::size_t>(variable)]});
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

void PushCollector::add(std::int64_t variable, rpc::Effect effect) {
  pushes_.add(places_->placement.slices.at(static_cast<std::size_t>(variable)), std::move(effect));
}

}  // namespace cohort::server
