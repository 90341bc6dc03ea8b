// SPDX-License-Identifier: Apache-2.0
// Cuts of a store: exports of one moment while updates go on.
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/parameter_server/parameter_store.h"

namespace cohort {
namespace {

// nullptr for other kinds than apply, and for an unknown rule, which the push refuses.
const variable::UpdateRule* known_rule_of(const rpc::Effect& effect) {
  if (effect.kind != rpc::Effect::Kind::apply) return nullptr;
  try {
    return &optimizer::update_rule_of(effect.rule);
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

std::vector<ParameterStore::Stored> ParameterStore::all_stored() const {
  std::vector<Stored> all;
  const std::shared_lock lock(mutex_);
  all.reserve(variables_.size());
  for (const auto& [id, stored] : variables_) all.push_back(stored);
  return all;
}

void ParameterStore::take_cut(const rpc::CutRequest& request) {
  if (request.is_end) return end_cut(request.cut, "it was ended by its coordinator");
  const Lock cutting(cutting_);
  const std::unique_lock alone(pushing_);
  const std::vector<Stored> all = all_stored();
  const std::shared_ptr<parameter_server::CutMemory> memory = cut_.open(request);
  try {
    for (const Stored& stored : all)
      std::visit([&](const auto& each) { each->begin_cut(memory); }, stored);
  } catch (...) {
    for (const Stored& stored : all) std::visit([](const auto& each) { each->end_cut(); }, stored);
    cut_.close(request.cut, "it could not begin");
    throw;
  }
}

void ParameterStore::end_cut(std::uint64_t cut, const std::string& why) {
  const Lock cutting(cutting_);
  if (!cut_.close(cut, why)) return;
  for (const Stored& stored : all_stored())
    std::visit([](const auto& each) { each->end_cut(); }, stored);
}

rpc::ExportReply ParameterStore::export_cut(const rpc::CutExport& request) {
  check_placement(request.request.placement);
  cut_.use(request.cut);
  rpc::ExportReply reply;
  for (const rpc::StateRange& range : request.request.ranges) {
    reply.states.push_back(std::visit(
        [&](const auto& stored) { return stored->export_cut(range, request.request.has_slots); },
        find(range.variable)));
  }
  return reply;
}

std::uint64_t ParameterStore::cut_bytes() const {
  const auto memory = cut_.wait().memory;
  return memory == nullptr ? 0 : memory->bytes();
}

// Takes no lock while it waits, so that the exports for which it waits go on. The kept rows stay
// right, whatever comes between this and the update.
void ParameterStore::wait_for_cut(const rpc::PushRequest& request) {
  const parameter_server::StoreCut::Wait wait = cut_.wait();
  if (wait.memory == nullptr) return;
  if (wait.is_idle) return end_cut(wait.cut, "nobody has asked for it for too long");
  if (request.id.number == 0) return;  // its sender may be the one who exports
  const Deadline deadline = Deadline::after(wait.most);
  for (const rpc::Effect& effect : request.effects) {
    const std::vector<Stored> stored = [&]() -> std::vector<Stored> {
      try {
        return {find(effect.variable)};
      } catch (const Error&) {
        return {};  // the push refuses it
      }
    }();
    if (stored.empty()) return;
    const variable::UpdateRule* const rule = known_rule_of(effect);
    while (true) {
      const std::uint64_t changes = wait.memory->changes();
      const bool is_kept = std::visit(
          [&](const auto& each) { return each->keep_for_cut(effect, rule); }, stored.front());
      if (is_kept) break;
      if (wait.memory->wait(changes, deadline)) continue;
      log_warn("[server.push] an update has waited for ",
               std::chrono::duration<double>(wait.most).count(),
               " s for a save, which ends without its values: the save is slower than the updates; "
               "give it more memory (memory_max_bytes), or join() before it");
      return end_cut(wait.cut,
                     "an update has waited too long for memory; give the save more "
                     "(memory_max_bytes), or join() before it");
    }
  }
}

}  // namespace cohort
