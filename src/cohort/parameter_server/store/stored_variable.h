// SPDX-License-Identifier: Apache-2.0
// One variable of a parameter server with its slots.
//
// A pull takes a reference to the value, and sends it without a lock and without a copy. If an
// update finds that the value is referenced, it writes the new value into a spare buffer, so a
// reader always sees one complete version.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/random.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/parameter_server/store/cut_memory.h"
#include "cohort/parameter_server/store/export_mutex.h"
#include "cohort/parameter_server/store/variable_statistics.h"
#include "cohort/rpc/messages.h"
#include "cohort/variable/update_rule.h"
#include "cohort/variable/variable_state.h"

namespace cohort::parameter_server {

// An update has two steps, so that a push is applied completely or not at all. First reserve()
// checks it and allocates everything that it may need, but changes nothing. Then apply() cannot
// fail.

// Thread-safe. Many methods because requests of all kinds come here.
class StoredVariable {
 public:
  struct Version {
    at::Tensor value;  // never changes
    std::uint64_t number;
  };
  // An update with its memory, for one apply().
  struct Reserve {
    internal::Effect effect;           // with contiguous tensors
    const variable::UpdateRule* rule;  // of Kind::apply; else nullptr
    at::Tensor spare;                  // for the new value, if a reader holds the current one
    VariableState::Reserve step = {};  // of Kind::apply
  };

  // `hot_rows`: how many of the rows that are used most the statistics find.
  StoredVariable(std::string name, at::Tensor value, std::size_t hot_rows = 0);
  ~StoredVariable();

  const std::string& name() const { return name_; }
  const TensorSpec& spec() const { return spec_; }
  Version snapshot() const;
  // Copies these rows. `ids`: int64 [n]. Throws invalid_argument for one that is no row.
  Version rows(const at::Tensor& ids) const;

  // One that keeps this value, without slots. It has the same memory until the next update here,
  // which writes into other memory.
  std::shared_ptr<StoredVariable> frozen() const {
    return std::make_shared<StoredVariable>(name_, snapshot().value);
  }
  // Frees the old buffers that no reader has any more.
  void drop_spares();

  // The value may be shared, since it never changes; the slots are copies.
  rpc::StateOfRange export_state(const rpc::StateRange& range, bool has_slots) const;
  // The state of this moment stays exportable by export_cut() until end_cut().
  void begin_cut(const std::shared_ptr<CutMemory>& memory);
  void end_cut();
  // Before an update: keeps the rows that it will replace. Returns false if there is no memory for
  // all; then it may be called again. A late push may be wrong, and nothing is checked.
  bool keep_for_cut(const internal::Effect& effect, const variable::UpdateRule* rule);
  // Rows come in order, each once. Throws aborted if there is no cut.
  rpc::StateOfRange export_cut(const rpc::StateRange& range, bool has_slots);
  // A state with the memory of its values, for one import_state(). That one still fails if there is
  // no memory for a handle; then the same import repairs what it left.
  struct Import {
    rpc::StateOfRange state;
    at::Tensor spare;  // for the new value, if a reader holds the current one
    VariableState::Slots slots;
  };
  // Throws invalid_argument unless the state has rows of this variable, and slots of known rules
  // for them. No update may come before the import.
  Import prepare_import(rpc::StateOfRange state);
  void import_state(Import import);

  // `rule`: that of the effect, or nullptr. Throws if the effect does not fit.
  Reserve reserve(internal::Effect effect, const variable::UpdateRule* rule);
  void apply(Reserve reserve);
  std::uint64_t value_bytes() const { return static_cast<std::uint64_t>(spec_.byte_count()); }
  // Its owner counts the requests.
  VariableStatistics& statistics() { return statistics_; }

 private:
  void check_range(const rpc::StateRange& range) const;
  at::Tensor checked_gradient(const Reserve& reserve) const;
  // Whether the update is a step that changes nothing but its rows, of which each comes once.
  bool is_of_rows_alone(const Reserve& reserve) const;
  void check_import(const rpc::StateOfRange& state) const;
  struct Cut;
  bool keep_replaced(const internal::Effect& effect, const variable::UpdateRule* rule, bool must)
      COHORT_REQUIRES(mutex_);
  using RowsOfColumns = std::vector<std::pair<std::size_t, at::Tensor>>;  // by column of the cut
  rpc::StateOfRange range_of_cut(const rpc::StateRange& range, bool has_slots,
                                 RowsOfColumns& columns) const COHORT_REQUIRES(mutex_);
  // A buffer with the value's spec to which nothing else refers; its content is arbitrary.
  at::Tensor take_spare() COHORT_REQUIRES(mutex_);
  void keep_spare(at::Tensor spare) COHORT_REQUIRES(mutex_);
  // The tensor for the new value: the current value, unless a reader holds it.
  at::Tensor target(at::Tensor& spare) COHORT_REQUIRES(mutex_);
  // Makes `next`, which target() returned, the current value. Keeps the unused buffer for later.
  void finish(at::Tensor next, at::Tensor spare) COHORT_REQUIRES(mutex_);
  const std::string name_;
  const TensorSpec spec_;
  VariableStatistics statistics_;
  mutable ExportMutex mutex_;
  VariableState state_ COHORT_GUARDED_BY(mutex_);
  // Begins anywhere, so that a reader never takes a value for that of a variable of the same name
  // which another start of this server had.
  std::uint64_t version_ COHORT_GUARDED_BY(mutex_) = draw_number();
  std::unique_ptr<Cut> cut_ COHORT_GUARDED_BY(mutex_);  // nullptr: none
  // Old buffers, which may still be being sent.
  std::vector<at::Tensor> retired_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::parameter_server
