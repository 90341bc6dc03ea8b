// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/program_host.h"

#include "cohort/core/error.h"

namespace cohort::server {

using parameter_server::Pull;
using parameter_server::Push;

void ProgramHost::exchange(parameter_server::ParameterClient::Exchange exchange) {
  const auto describe = [this](std::span<const std::uint64_t> ids, bool is_push) {
    return (is_push ? "push to " : "pull of ") + program_.names_of(ids);
  };
  client_.exchange(std::move(exchange), running_->traffic, describe);
}

std::vector<at::Tensor> ProgramHost::pull() {
  std::vector<at::Tensor> values(program_.num_variables());
  if (!places_->pulls.empty())
    exchange({.pulls = places_->pulls, .values = values, .versions = versions()});
  return values;
}

std::vector<at::Tensor> ProgramHost::iterator_next(std::int64_t) {
  COHORT_ASSERT(next_draw_ < draws_.size());
  return std::move(draws_[next_draw_++]);
}

void ProgramHost::update(internal::Effect effect) {
  const std::size_t variable = effect.variable;
  if (effect.kind == internal::Effect::Kind::merge_average) effect.version = versions()[variable];
  pushes_.add(places_->placement.slices.at(variable), std::move(effect));
}

at::Tensor ProgramHost::gather(std::int64_t variable, const at::Tensor&) {
  internal::throw_error(
      ErrorCode::unimplemented, "[server.gather] rows of '",
      program_.program().info().variables.at(static_cast<std::size_t>(variable)).name,
      "' cannot be gathered: tables on parameter servers are not supported yet; read the variable");
}

std::span<std::uint64_t> ProgramHost::versions() {
  versions_.resize(program_.num_variables());
  return versions_;
}

std::vector<Push> ProgramHost::take_pushes() {
  std::vector<Push> pushes = pushes_.take(places_->placement.version);
  for (Push& push : pushes) {
    push.request.id = id_;
    push.request.low_watermark = low_watermark_;
  }
  ++id_.segment;
  return pushes;
}

// If a push has failed, this throws before anything is computed from the values.
std::vector<at::Tensor> ProgramHost::next_segment(std::span<const std::int64_t> variables) {
  const std::vector<std::size_t> places_read(variables.begin(), variables.end());
  const std::vector<Pull> pulls = program_.pulls_of(*places_, places_read);
  std::vector<at::Tensor> all(program_.num_variables());
  exchange({.pushes = take_pushes(), .pulls = pulls, .values = all, .versions = versions()});
  std::vector<at::Tensor> values;
  for (const std::size_t place : places_read) values.push_back(std::move(all[place]));
  return values;
}

void ProgramHost::push() {
  for (Push& push : take_pushes()) {
    running_->traffic.pushed_bytes += push.bytes();
    ++running_->unacknowledged;
    try {
      client_.push_later(std::move(push),
                         [running = running_](const std::optional<Error>& error, bool was_applied) {
                           running->acknowledge(error, was_applied);
                           running->release();
                         });
    } catch (...) {
      --running_->unacknowledged;  // the caller ends the closure
      throw;
    }
  }
}

}  // namespace cohort::server
