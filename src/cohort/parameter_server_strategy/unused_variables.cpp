// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server_strategy/unused_variables.h"

#include <map>
#include <thread>
#include <utility>

#include "cohort/core/log.h"
#include "cohort/parameter_server/remote_variable.h"
#include "cohort/rpc/messages.h"
#include "cohort/rpc/requester.h"

namespace cohort::detail {
namespace {

// How often to look again for a variable whose handle is gone, but to which something else refers.
constexpr auto kLookAgain = std::chrono::seconds(1);

}  // namespace

UnusedVariables::UnusedVariables(VariableTable& variables,
                                 parameter_server::PlacementTable& placement,
                                 const parameter_server::ServerLinks& servers, TryAlone try_alone)
    : variables_(variables),
      placement_(placement),
      servers_(servers),
      try_alone_(std::move(try_alone)) {}

UnusedVariables::~UnusedVariables() {
  {
    const Lock lock(ends_->mutex);
    ends_->is_stopping = true;
  }
  ends_->changed.notify_all();
}

void UnusedVariables::Ends::note() noexcept {
  {
    const Lock lock(mutex);
    has_news = true;
  }
  changed.notify_all();
}

Variable UnusedVariables::handle_of(const Variable& variable) {
  {
    const Lock lock(mutex_);
    if (!is_started_) thread_.add(start_thread("to drop unused variables", [this] { run(); }));
    is_started_ = true;
  }
  return RemoteVariable::handle_of(variable, [ends = ends_] {
    ++ends->count;
    ends->note();
  });
}

std::vector<VariableTable::EntryPtr> UnusedVariables::take_unused() {
  const std::uint64_t ended = ends_->count;
  if (std::exchange(looked_after_, ended) == ended && !must_look_again_) return {};
  bool must_look_again = false;
  std::vector<VariableTable::EntryPtr> unused;
  const auto is_unused = [&](const VariableTable::Entry& entry) {
    if (RemoteVariable::of(entry.variable).has_handle()) return false;
    const bool is_referenced = RemoteVariable::is_referenced(entry.variable, /*own=*/1);
    must_look_again = must_look_again || is_referenced;
    return !is_referenced;
  };
  const bool has_looked = try_alone_([&] { unused = variables_.take_if(is_unused); });
  must_look_again_ = must_look_again || !has_looked;
  return unused;
}

void UnusedVariables::collect() {
  std::vector<VariableTable::EntryPtr> unused;  // freed without the lock
  {
    const Lock lock(looking_);
    unused = take_unused();
  }
  if (unused.empty()) return;
  std::vector<std::uint64_t> ids;
  for (const auto& entry : unused) ids.push_back(RemoteVariable::of(entry->variable).id());
  drop(placement_.erase(ids));
}

void UnusedVariables::await_free(std::string_view name) {
  const auto is_ending = [&] {
    const VariableTable::EntryPtr entry = variables_.find(name);
    return entry != nullptr && !RemoteVariable::of(entry->variable).has_handle();
  };
  const Deadline deadline = Deadline::after(kLookAgain);
  while (is_ending() && !deadline.has_expired()) {
    must_look_again_ = true;
    collect();
    std::this_thread::yield();
  }
}

void UnusedVariables::drop(const std::vector<rpc::Slice>& slices) {
  {
    const Lock lock(mutex_);
    dropped_.insert(dropped_.end(), slices.begin(), slices.end());
  }
  ends_->note();
}

void UnusedVariables::run() {
  while (true) {
    {
      const Lock lock(ends_->mutex);
      const auto is_woken = [this]() COHORT_REQUIRES(ends_->mutex) {
        return ends_->has_news || ends_->is_stopping;
      };
      const Deadline deadline = must_look_again_ ? Deadline::after(kLookAgain) : Deadline();
      ends_->changed.wait(ends_->mutex, deadline, is_woken);
      if (ends_->is_stopping) return;
      ends_->has_news = false;
    }
    try {
      collect();
      send();
    } catch (...) {  // no memory for a message
      log_debug("unused variables stay on their servers: ", current_error().what());
    }
  }
}

// A server without a connection is told with the next variables that are dropped. To connect here
// could take long.
void UnusedVariables::send() {
  std::map<rpc::MemberId, rpc::EraseRequest> requests;
  {
    const Lock lock(mutex_);
    std::vector<rpc::Slice> waiting;
    for (const rpc::Slice& slice : dropped_) {
      const auto link = servers_.last(slice.server).data;
      if (link != nullptr && link->is_open()) {
        requests[slice.server].variables.push_back(slice.stored());
      } else {
        waiting.push_back(slice);
      }
    }
    dropped_.swap(waiting);
  }
  for (auto& [server, request] : requests) {
    const auto on_answer = [name = servers_.name_of(server)](const rpc::Answer& answer) {
      if (const Error* error = std::get_if<Error>(&answer))
        log_debug(name, " may keep unused variables: ", error->what());
    };
    if (const auto link = servers_.last(server).data)
      link->request(rpc::to_frame(std::move(request)), on_answer);
  }
}

}  // namespace cohort::detail
