// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/server_cut.h"

#include <chrono>
#include <span>
#include <utility>

#include "cohort/coordinator/open_closures.h"
#include "cohort/coordinator/runtime/runtime.h"
#include "cohort/core/log.h"
#include "cohort/core/random.h"
#include "cohort/parameter_server/written_cuts.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"

namespace cohort::coordinator {
namespace {

// An update must not wait for so long that its worker gives the server up.
constexpr int kWaitsInTimeout = 4;

std::uint64_t milliseconds_of(Duration duration) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

std::vector<Variable> stored_of(const std::vector<Variable>& variables) {
  std::vector<Variable> stored;
  for (const Variable& variable : variables) {
    const std::span<const Variable> shards = variable.impl()->shards();
    if (shards.empty()) stored.push_back(variable);
    stored.insert(stored.end(), shards.begin(), shards.end());
  }
  return stored;
}

}  // namespace

bool ServerCut::covers(const ParameterServerStrategy& strategy, const Variable& variable) {
  const std::span<const Variable> shards = variable.impl()->shards();
  const Variable& first = shards.empty() ? variable : shards.front();
  return first.impl()->home() == strategy.home();
}

ServerCut::ServerCut(const ParameterServerStrategy& strategy, std::vector<Variable> variables,
                     std::uint64_t bytes_max)
    : home_(strategy.home()),
      variables_(std::move(variables)),
      stored_(stored_of(variables_)),
      cut_(draw_number()) {
  if (std::shared_ptr<Runtime> runtime = runtime_of(strategy)) {
    runtime->pause("save");
    paused_ = std::move(runtime);
  }
  if (stored_.empty()) return;
  const Duration timeout = home_->options().cluster.data_timeout;
  try {
    home_->take_cut(stored_, {.cut = cut_,
                              .bytes_max = bytes_max,
                              .wait_max_ms = milliseconds_of(timeout / kWaitsInTimeout),
                              .idle_max_ms = milliseconds_of(timeout)});
  } catch (...) {
    resume();
    throw;
  }
}

ServerCut::~ServerCut() {
  resume();
  if (stored_.empty()) return;
  try {
    home_->take_cut(stored_, {.cut = cut_, .is_end = true});
  } catch (const Error& error) {  // the server ends it by itself
    log_debug("the end of a cut was not told: ", error.what());
  }
}

void ServerCut::resume() {
  if (const std::shared_ptr<Runtime> runtime = std::exchange(paused_, nullptr)) runtime->resume();
}

std::vector<std::pair<std::size_t, std::int64_t>> ServerCut::places() const {
  std::vector<std::pair<std::size_t, std::int64_t>> places;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    std::int64_t first_row = 0;
    const std::span<const Variable> shards = variables_[i].impl()->shards();
    if (shards.empty()) places.emplace_back(i, 0);
    for (const Variable& shard : shards) {
      places.emplace_back(i, first_row);
      first_row += shard.spec().sizes->front();
    }
  }
  return places;
}

void ServerCut::export_state(const TakeRecord& take) const {
  const auto all = places();
  home_->export_cut(stored_, {}, cut_, [&](std::size_t k, VariableRecord record) {
    const auto [i, first_row] = all[k];
    record.name = variables_[i].name();
    record.spec = variables_[i].spec();
    record.first_row += first_row;
    take(i, std::move(record));
  });
}

std::vector<ServerCut::Share> ServerCut::write_shares(const Folder& folder) const {
  std::vector<Share> shares;
  if (stored_.empty()) return shares;
  const auto all = places();
  std::vector<parameter_server::WrittenVariables::Rows> rows;
  for (std::size_t k = 0; k < stored_.size(); ++k) {
    const auto [i, first_row] = all[k];
    const TensorSpec spec = stored_[k].spec();
    const bool has_rows = !stored_[k].impl()->is_table() && !spec.sizes->empty();
    rows.push_back({.name = variables_[i].name(),
                    .spec = variables_[i].spec(),
                    .first_row = first_row,
                    .count = has_rows ? spec.sizes->front() : 0});
  }
  const parameter_server::Places places = home_->places_of(stored_);
  parameter_server::write_cut(
      home_->links(), {.places = places, .of = rows},
      {.cut = cut_,
       .folder = folder.path,
       .proof_name = folder.proof_name,
       .proof_text = folder.proof_text,
       .header_room = folder.header_room},
      [&](const std::string& server, rpc::CutWritten written) {
        shares.push_back({server, std::move(written.share), std::move(written.number_names),
                          std::move(written.numbers)});
      });
  return shares;
}

}  // namespace cohort::coordinator
