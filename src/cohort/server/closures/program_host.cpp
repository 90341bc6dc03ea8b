// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/program_host.h"

#include <algorithm>

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

internal::EffectHandler::Read ProgramHost::read(std::span<const RowRead> rows,
                                                std::span<const std::int64_t> variables) {
  const std::vector<std::size_t> places_read(variables.begin(), variables.end());
  const std::size_t num_variables = program_.num_variables();
  std::vector<Pull> pulls;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto table = static_cast<std::size_t>(rows[i].variable);
    parameter_server::add_row_pull(pulls, places_->placement.slices.at(table),
                                   places_->placement.version, rows[i].ids, num_variables + i);
  }
  pulls = program_.pulls_of(*places_, places_read, std::move(pulls));
  std::vector<at::Tensor> all(num_variables + rows.size());
  versions_.resize(all.size());
  exchange({.pulls = pulls, .values = all, .versions = versions_});
  Read read{.variables = taken(all, places_read)};
  read.rows.assign(all.begin() + static_cast<std::ptrdiff_t>(num_variables), all.end());
  return read;
}

std::vector<at::Tensor> ProgramHost::taken(std::vector<at::Tensor>& pulled,
                                           std::span<const std::size_t> variables) {
  std::vector<at::Tensor> values;
  for (const std::size_t variable : variables) values.push_back(std::move(pulled[variable]));
  return values;
}

std::span<std::uint64_t> ProgramHost::versions() {
  versions_.resize(std::max(versions_.size(), program_.num_variables()));
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
  return taken(all, places_read);
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
