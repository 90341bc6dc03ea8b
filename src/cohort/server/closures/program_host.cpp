// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/program_host.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/parameter_server/slices.h"

namespace cohort::server {

using parameter_server::Pull;
using parameter_server::Push;

namespace {

// Between two reads of a variable for whose value a step waits.
constexpr auto kPollPause = std::chrono::milliseconds(2);

}  // namespace

void ProgramHost::exchange(parameter_server::ParameterClient::Exchange exchange) {
  const auto describe = [this](std::span<const std::uint64_t> ids, bool is_push) {
    return (is_push ? "push to " : "pull of ") + program_.names_of(ids);
  };
  exchange.snapshot = snapshot_;
  client_.exchange(std::move(exchange), running_->traffic, describe);
}

at::Tensor ProgramHost::value_of(std::span<at::Tensor> parts, std::size_t variable) const {
  return parameter_server::joined_slices(parts.subspan(places_->variables.first_part(variable),
                                                       places_->variables.of(variable).size()));
}

std::vector<at::Tensor> ProgramHost::pull() {
  std::vector<at::Tensor> values(program_.num_variables());
  if (places_->pulls.empty()) return values;
  std::vector<at::Tensor> parts(num_parts());
  exchange({.pulls = places_->pulls, .values = parts, .versions = versions(parts.size())});
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(parts, i);
  return values;
}

std::vector<at::Tensor> ProgramHost::iterator_next(std::int64_t) {
  COHORT_ASSERT(next_draw_ < draws_.size());
  return std::move(draws_[next_draw_++]);
}

void ProgramHost::update(internal::Effect effect) {
  const std::size_t variable = effect.variable;
  const auto slices = places_->variables.of(variable);
  std::span<const std::uint64_t> pulled;
  if (effect.kind == internal::Effect::Kind::merge_average) {
    pulled = versions(num_parts()).subspan(places_->variables.first_part(variable), slices.size());
  }
  pushes_.add(slices, std::move(effect), pulled);
}

internal::EffectHandler::Read ProgramHost::read(std::span<const RowRead> rows,
                                                std::span<const std::int64_t> variables) {
  const std::vector<std::size_t> places_read(variables.begin(), variables.end());
  parameter_server::PullBatch batch(places_->variables.version());
  std::vector<std::vector<parameter_server::RowsOfPart>> split;
  std::size_t next = num_parts();
  for (const RowRead& each : rows) {
    const auto slices = places_->variables.of(static_cast<std::size_t>(each.variable));
    split.push_back(parameter_server::split_rows(slices, each.ids));
    for (const parameter_server::RowsOfPart& part : split.back())
      batch.add_rows(slices[part.part], part.ids, next++);
  }
  const auto pulls = program_.pulls_of(*places_, places_read, std::move(batch));
  std::vector<at::Tensor> parts(next);
  exchange({.pulls = pulls, .values = parts, .versions = versions(next)});
  Read read;
  std::span<at::Tensor> of_rows = std::span(parts).subspan(num_parts());
  for (const auto& each : split) {
    read.rows.push_back(parameter_server::joined_rows(each, of_rows.first(each.size())));
    of_rows = of_rows.subspan(each.size());
  }
  for (const std::size_t variable : places_read)
    read.variables.push_back(value_of(parts, variable));
  return read;
}

std::span<std::uint64_t> ProgramHost::versions(std::size_t count) {
  versions_.resize(std::max(versions_.size(), count));
  return versions_;
}

std::vector<Push> ProgramHost::take_pushes() {
  std::vector<Push> pushes = pushes_.take(places_->variables.version());
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
  const std::vector<Pull> pulls = program_.pulls_of(
      *places_, places_read, parameter_server::PullBatch(places_->variables.version()));
  std::vector<at::Tensor> parts(num_parts());
  exchange({.pushes = take_pushes(),
            .pulls = pulls,
            .values = parts,
            .versions = versions(parts.size())});
  std::vector<at::Tensor> values;
  for (const std::size_t variable : places_read) values.push_back(value_of(parts, variable));
  return values;
}

// The value of now, since that of a snapshot stays as it is.
void ProgramHost::wait_until_positive(std::int64_t variable) {
  const std::array variables{variable};
  const std::uint64_t snapshot = std::exchange(snapshot_, 0);
  at::Tensor value = next_segment(variables).front();
  while (!value.gt(0).item<bool>()) {
    running_->wait(kPollPause);
    running_->check_cancelled();
    value = read({}, variables).variables.front();
  }
  snapshot_ = snapshot;
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
