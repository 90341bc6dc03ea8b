// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/program_host.h"

#include "cohort/core/error.h"

namespace cohort::server {

using parameter_server::Pull;
using parameter_server::Push;

void ProgramHost::exchange(parameter_server::ParameterClient::Exchange exchange) {
  VariableTraffic traffic;
  const auto describe = [this](std::span<const std::uint64_t> ids, bool is_push) {
    return (is_push ? "push to " : "pull of ") + program().names_of(ids);
  };
  const auto count = [&] {
    running_->end.pulled_bytes += traffic.pulled_bytes;
    running_->end.pushed_bytes += traffic.pushed_bytes;
    running_->end.pushes_dropped += traffic.pushes_dropped;
  };
  try {
    client_.exchange(std::move(exchange), traffic, describe);
  } catch (...) {
    count();
    throw;
  }
  count();
}

std::vector<at::Tensor> ProgramHost::pull() {
  std::vector<at::Tensor> values(program().num_variables());
  if (!places().pulls.empty())
    exchange({.pulls = places().pulls, .values = values, .versions = versions()});
  return values;
}

std::vector<Push> ProgramHost::take_pushes() {
  std::vector<Push> pushes = take_segment();
  for (Push& push : pushes) {
    const std::uint32_t segment = push.request.id.segment;
    push.request.id = id_;
    push.request.id.segment = segment;
    push.request.low_watermark = low_watermark_;
  }
  return pushes;
}

// If a push has failed, this throws before anything is computed from the values.
std::vector<at::Tensor> ProgramHost::next_segment(std::span<const std::int64_t> variables) {
  const std::vector<std::size_t> places_read(variables.begin(), variables.end());
  const std::vector<Pull> pulls = program().pulls_of(places(), places_read);
  std::vector<at::Tensor> all(program().num_variables());
  exchange({.pushes = take_pushes(), .pulls = pulls, .values = all, .versions = versions()});
  std::vector<at::Tensor> values;
  for (const std::size_t place : places_read) values.push_back(std::move(all[place]));
  return values;
}

void ProgramHost::push() {
  for (Push& push : take_pushes()) {
    running_->end.pushed_bytes += push.bytes();
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
