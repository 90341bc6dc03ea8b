// SPDX-License-Identifier: Apache-2.0
// A table of a parameter server, with rows by key and their slots (docs/decisions/0134-…).
//
// A key that has no row reads its first value, which depends on seed, name and key alone. It gets a
// row with its first update, or with update number min_count. So reading costs no memory, and the
// first value is the same on each server.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/parameter_server/store/cut_memory.h"
#include "cohort/parameter_server/store/export_mutex.h"
#include "cohort/parameter_server/store/row_directory.h"
#include "cohort/parameter_server/store/row_segments.h"
#include "cohort/parameter_server/store/stored_variable.h"
#include "cohort/parameter_server/store/table_slots.h"
#include "cohort/rpc/messages.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/update_rule.h"

namespace cohort::parameter_server {

// Thread-safe. Many methods because requests of all kinds come here.
class StoredTable {
 public:
  // Throws invalid_argument for a spec of which no table can be made.
  // `hot_rows`: how many of the keys that are used most the statistics find.
  explicit StoredTable(const rpc::VariableSpec& spec, std::size_t hot_rows = 0);
  ~StoredTable();

  const std::string& name() const { return name_; }
  const TensorSpec& spec() const { return spec_; }
  // A table is never read whole: throws unimplemented.
  StoredVariable::Version snapshot() const;
  // The rows of these keys, int64 [n], each as often as it comes. Throws invalid_argument for what
  // is no key.
  StoredVariable::Version rows(const at::Tensor& keys);

  // A copy of its rows and first values, without slots. Rows that are erased meanwhile may be in it
  // or not.
  std::shared_ptr<StoredTable> frozen() const;

  // An update with its memory, for one apply().
  struct Reserve {
    internal::Effect effect;
    const variable::UpdateRule* rule;
    std::vector<std::int64_t> keys = {};  // distinct
    at::Tensor gradient = {};             // their rows
  };
  // Checks the effect, and gives rows to its keys where they get some. These have their first
  // values, so nobody sees a change if the update does not come; but other rows may be evicted for
  // them. Only steps of rules are possible.
  Reserve reserve(internal::Effect effect, const variable::UpdateRule* rule);
  // A key whose row was evicted since reserve() is left out: as if it had been evicted after the
  // update.
  void apply(Reserve reserve);

  // A range counts rows in the order in which they got memory, up to TableRows::rows_end. Rows do
  // not move, so successive ranges have each row once that exists all the time. A range of counts
  // counts the parts of the index.
  rpc::StateOfRange export_state(const rpc::StateRange& range, bool has_slots) const;
  // As those of StoredVariable. Counts have parts as in export_state().
  void begin_cut(const std::shared_ptr<CutMemory>& memory);
  void end_cut();
  bool keep_for_cut(const internal::Effect& effect, const variable::UpdateRule* rule);
  rpc::StateOfRange export_cut(const rpc::StateRange& range, bool has_slots);
  struct Import {
    rpc::StateOfRange state;
  };
  // Throws invalid_argument unless the state has distinct keys, rows, and slots of known rules for
  // them; resource_exhausted if they are more than the capacity.
  Import prepare_import(rpc::StateOfRange state) const;
  // Takes these keys with their rows and slots, or with their counts. Rows that begin at 0 replace
  // all that is here. Throws resource_exhausted, and takes no rows, if the table is full without an
  // eviction.
  void import_state(Import import);
  // Takes the rows of these keys away, and what is counted of them. Throws invalid_argument for
  // what is no key.
  void erase(const at::Tensor& keys);

  rpc::TableUse use() const;
  // The bytes of the rows that have memory, without their slots.
  std::uint64_t value_bytes() const;
  // Its owner counts the requests.
  VariableStatistics& statistics() { return statistics_; }

 private:
  struct Cut;
  void check_range(const rpc::StateRange& range) const;
  struct ExportedRows;
  ExportedRows begin_export(const rpc::StateRange& range, bool has_slots) COHORT_REQUIRES(mutex_);
  void export_piece(ExportedRows& exported) COHORT_REQUIRES(mutex_);
  rpc::StateOfRange export_counts_of_cut(const rpc::StateRange& range) const
      COHORT_REQUIRES(mutex_);
  void check_keys(std::string_view call, const at::Tensor& keys) const;
  void check_effect(const internal::Effect& effect, const variable::UpdateRule* rule) const;
  void check_imported_keys(const rpc::StateOfRange& state) const;
  static void check_counts(const rpc::StateOfRange& state, std::string_view name);
  rpc::StateOfRange export_rows(const rpc::StateRange& range, bool has_slots) const
      COHORT_REQUIRES(mutex_);
  rpc::StateOfRange export_counts(const rpc::StateRange& range) const COHORT_REQUIRES(mutex_);
  rpc::TableUse use_now() const COHORT_REQUIRES(mutex_);
  at::Tensor row_tensor(std::int64_t rows) const;
  void write_first_rows(at::Tensor& rows, std::span<const std::int64_t> keys) const;
  void add_rows(std::span<const std::int64_t> keys, bool at_once) COHORT_REQUIRES(mutex_);

  void update_rows(const Reserve& reserve, std::span<const std::uint32_t> rows,
                   const at::Tensor& gradient) COHORT_REQUIRES(mutex_);

  const std::string name_;
  const TensorSpec spec_;
  const Initializer initializer_;
  const std::uint64_t seed_;
  const int shift_;  // of segments
  VariableStatistics statistics_;
  mutable ExportMutex mutex_;
  RowDirectory directory_ COHORT_GUARDED_BY(mutex_);
  RowSegments values_ COHORT_GUARDED_BY(mutex_);
  TableSlots slots_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t version_ COHORT_GUARDED_BY(mutex_) = draw_number();  // as StoredVariable's
  std::unique_ptr<Cut> cut_ COHORT_GUARDED_BY(mutex_);               // nullptr: none
};

}  // namespace cohort::parameter_server
