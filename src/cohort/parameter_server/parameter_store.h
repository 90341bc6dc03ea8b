// SPDX-License-Identifier: Apache-2.0
// The variables and tables of one parameter server. It answers pulls, and applies each push once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/mutex.h"
#include "cohort/parameter_server/store/applied_pushes.h"
#include "cohort/parameter_server/store/store_cut.h"
#include "cohort/parameter_server/store/stored_table.h"
#include "cohort/parameter_server/store/stored_variable.h"
#include "cohort/rpc/messages.h"

namespace cohort {

// Thread-safe. Many methods because it takes each kind of request.
class COHORT_API ParameterStore {
 public:
  struct Counters {
    std::atomic<std::uint64_t> pushes_applied{0};
    std::atomic<std::uint64_t> pushes_dropped{0};
    std::atomic<std::uint64_t> pulled_bytes{0};
    std::atomic<std::uint64_t> pushed_bytes{0};
    parameter_server::Rate rows;  // that requests have named
  };
  // `hot_rows`: for each variable, how many of the rows that are used most the statistics find.
  explicit ParameterStore(std::size_t hot_rows = 0) : hot_rows_(hot_rows) {}

  // Makes the initial values. Does nothing for a variable that exists with the same name and spec.
  // Throws already_exists if its name or spec differs, and the errors of Initializer::make(); then
  // no variable is created.
  void create(const std::vector<rpc::VariableSpec>& variables);
  // From now on refuses requests of an earlier version of the placement, whose sender does not know
  // where its variables are now.
  void expect_placement(std::uint64_t version);
  rpc::PullReply pull(const rpc::PullRequest& request);
  // Applies all effects or none: everything that can fail is done before the first one is applied.
  // Then answers its pull, also if the push was applied before.
  rpc::PushReply push(rpc::PushRequest request);
  // To move variables, call expect_placement() before, so that no push comes between their export
  // and erase().
  rpc::ExportReply export_state(const rpc::ExportRequest& request);
  // Begins or ends a cut: from then on updates keep what they replace until export_cut() has given
  // it. A push waits if that is too much, and ends the cut if it waits for too long; one that
  // cannot come again takes more.
  void take_cut(const rpc::CutRequest& request);
  // Rows of each variable come in order, each once. Throws aborted if the cut has ended, for
  // example by an import.
  rpc::ExportReply export_cut(const rpc::CutExport& request);
  // The bytes that the cut keeps now in place of what updates have replaced.
  std::uint64_t cut_bytes() const;
  // Keeps the values of this moment for pulls that name the snapshot, until erase(). The
  // value of a variable costs memory once an update replaces it; rows of a table are copied now,
  // without slots. Throws as pull() does.
  void take_snapshot(const rpc::SnapshotRequest& request);
  // Takes all states or none.
  void import_state(const rpc::ImportRequest& request);
  // Ignores variables and snapshots that are not here. Throws not_found, or invalid_argument for
  // what is no table or no key, if rows of one are to be erased.
  void erase(const rpc::EraseRequest& request);
  // Drops all variables and snapshots.
  void clear() noexcept;
  // The variables that are stored here now, and the bytes of their values; snapshots count, too.
  std::size_t num_variables() const;
  std::uint64_t value_bytes() const;
  // The variables and tables with the most bytes in requests.
  struct Busy {
    std::string name;
    std::shared_ptr<parameter_server::VariableStatistics> statistics;
  };
  std::vector<Busy> busiest(std::size_t count) const;
  const Counters& counters() const { return counters_; }

 private:
  using Stored = std::variant<std::shared_ptr<parameter_server::StoredVariable>,
                              std::shared_ptr<parameter_server::StoredTable>>;
  using Variables = std::unordered_map<std::uint64_t, Stored>;
  template <class Kind>
  struct Update {
    std::shared_ptr<Kind> stored;
    typename Kind::Reserve reserve;
  };
  using AnyUpdate =
      std::variant<Update<parameter_server::StoredVariable>, Update<parameter_server::StoredTable>>;
  template <class Kind>
  struct Import {
    std::shared_ptr<Kind> stored;
    typename Kind::Import step;
  };
  using AnyImport =
      std::variant<Import<parameter_server::StoredVariable>, Import<parameter_server::StoredTable>>;
  void check_placement(std::uint64_t version) const;
  bool apply(rpc::PushRequest request);
  std::vector<Stored> all_stored() const;
  void end_cut(std::uint64_t cut, const std::string& why);
  void wait_for_cut(const rpc::PushRequest& request);
  bool has(std::uint64_t id) const;
  Stored find(std::uint64_t id) const;
  Stored find_in(std::uint64_t snapshot, std::uint64_t id) const;
  void erase_snapshots(const rpc::EraseRequest& request);
  void erase_rows(const rpc::EraseRequest& request) const;
  std::vector<AnyUpdate> prepare(std::vector<rpc::Effect> effects) const;
  void count_push(parameter_server::VariableStatistics& statistics, const rpc::Effect& effect);

  const std::size_t hot_rows_;

  // Held by all pushes, and alone by what must not happen while a push is made: an import, erase(),
  // and an export of the pushes that were applied.
  std::shared_mutex pushing_;
  mutable std::shared_mutex mutex_;  // guards the table
  Variables variables_;
  std::unordered_map<std::uint64_t, Variables> snapshots_;  // guarded by mutex_
  parameter_server::AppliedPushes applied_;
  Mutex cutting_;  // held while a cut begins or ends
  parameter_server::StoreCut cut_;
  std::atomic<std::uint64_t> placement_ = 0;  // the version that requests must have at least
  Counters counters_;
};

}  // namespace cohort
