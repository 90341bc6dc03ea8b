// SPDX-License-Identifier: Apache-2.0
#include "cohort/v1/server_home.h"

#include <utility>

#include "cohort/core/error.h"

namespace cohort::detail::v1 {
namespace {

thread_local std::uint64_t current_push = 0;

}  // namespace

ServerHome::OnePush::OnePush(const ServerHome& home)
    : home_(home), number_(home.begin_push()), current_(current_push, number_) {}

ServerHome::OnePush::~OnePush() { home_.end_push(number_); }

std::uint64_t ServerHome::begin_push() const {
  const Lock lock(mutex_);
  open_pushes_.insert(++last_push_);
  return last_push_;
}

void ServerHome::end_push(std::uint64_t number) const {
  const Lock lock(mutex_);
  open_pushes_.erase(number);
}

std::vector<internal::CentralValue> ServerHome::send_and_read(std::vector<RemoteUpdate> updates,
                                                              std::span<const Variable> variables,
                                                              std::size_t unread,
                                                              std::span<const std::uint64_t> known,
                                                              const std::string& what) const {
  const parameter_server::Places places = places_of(variables);
  parameter_server::PushBatch pushes;
  for (std::size_t i = 0; i < updates.size(); ++i)
    pushes.add(places.of(i), std::move(updates[i].effect));
  parameter_server::PullBatch batch(places.version());
  for (std::size_t i = unread; i < variables.size(); ++i) {
    const std::span<const rpc::Slice> slices = places.of(i);
    for (std::size_t k = 0; k < slices.size(); ++k)
      batch.add_newer(slices[k], places.first_part(i) + k, slices.size() == 1 ? known[i] : 0);
  }
  const std::vector<parameter_server::Pull> pulls = batch.take();
  std::vector<at::Tensor> parts(places.parts().size());
  std::vector<std::uint64_t> versions(parts.size());
  exchange({.pushes = pushes.take(places.version()),
            .pulls = pulls,
            .values = parts,
            .versions = versions},
           variables, what);
  std::vector<at::Tensor> tensors = joined(variables, places, parts);
  std::vector<internal::CentralValue> values(variables.size());
  for (std::size_t i = 0; i < variables.size(); ++i) {
    // The slices of one variable have a version each, so that all of them always come.
    const bool has_one = places.of(i).size() == 1;
    values[i] = {std::move(tensors[i]), has_one ? versions[places.first_part(i)] : 0};
  }
  return values;
}

void ServerHome::exchange(parameter_server::ParameterClient::Exchange exchange,
                          std::span<const Variable> variables, const std::string& what) const {
  if (!exchange.pushes.empty()) {
    COHORT_ASSERT(current_push != 0);
    const Lock lock(mutex_);
    for (parameter_server::Push& push : exchange.pushes) {
      push.request.id = {origin_, incarnation_, current_push, /*segment=*/0};
      push.request.low_watermark = *open_pushes_.begin();
    }
  }
  RemoteHome::exchange(std::move(exchange), variables, what);
}

}  // namespace cohort::detail::v1
