// SPDX-License-Identifier: Apache-2.0
// How the contents of a checkpoint come back from a folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/checkpoint/contents.h"
#include "cohort/checkpoint_files/folder_reader.h"
#include "cohort/core/effect_handler.h"
#include "cohort/variable/attached_states.h"
#include "cohort/variable/saved_values.h"

namespace cohort::checkpoint {

// One restore. All processes make the same calls; the first one reads. Thread-compatible: variables
// are made on one thread at a time while a restore waits for them. Many methods because each kind
// of content has its own, for what exists and for what is made later.
class Restoring final : public CreationWatch {
 public:
  // `contents` must outlive it.
  Restoring(const Contents& contents, std::string path, RestoreOptions options);

  // Restores what exists. In a deferred restore the rest waits for the calls below.
  void run();
  // Says how far it is.
  Restored report() const;
  // Whether the checkpoint has something that nobody took.
  bool has_open() const { return !report().unused.empty(); }

  // Restores what has just been made or added, unless nothing waits for it any more. Throw as
  // run(); what then exists already is unchanged.
  void note_made(const Variable& variable) override;
  void note_made(AttachedState& state) override;
  void note_added(const std::string& name, const at::Tensor& tensor);
  void note_added(const std::string& name, const SavedPosition& position);
  void note_added(const std::string& name, const SavedState& value);

 private:
  std::string saved_name(const std::string& name) const;
  const VariableEntry* find_saved(const std::string& name);
  void match_variables(const std::vector<Variable>& variables);
  void match_states(const std::vector<std::shared_ptr<AttachedState>>& states);
  void match_others();
  void check_missing();
  bool is_own(const AttachedState& state) const;

  std::vector<at::Tensor> fetch(const std::vector<std::string>& names,
                                std::optional<std::size_t> part = {});
  std::vector<internal::OptimizerSlots> fetch_slots(const VariableEntry& saved,
                                                    std::optional<std::size_t> part = {});
  void restore();
  void restore_any(const Variable& variable, const VariableEntry& saved);
  void restore_variable(const Variable& variable, const VariableEntry& saved);
  void restore_table(const Variable& variable, const VariableEntry& saved);
  void restore_tensor(const at::Tensor& tensor, const VariableEntry& saved);
  void restore_state(AttachedState& state, const StateEntry& saved);
  void restore_position(const std::string& name, const SavedPosition& position);
  void restore_value(const std::string& name, const SavedState& value);
  void restore_generator();
  void rename_slots(const StateEntry& saved, const std::string& own_name);

  const Contents& contents_;
  const std::string path_;
  const RestoreOptions options_;
  const internal::StrategyVariables& parts_;
  Manifest manifest_;
  // Neither: another process reads.
  std::unique_ptr<FolderReader> reader_;
  std::optional<SavedValues> file_;  // in the place of a folder
  std::size_t processes_ = 1;
  std::vector<std::pair<Variable, const VariableEntry*>> of_variables_;
  std::vector<std::pair<at::Tensor, const VariableEntry*>> of_tensors_;
  std::vector<std::pair<std::shared_ptr<AttachedState>, const StateEntry*>> of_states_;
  // The names of optimizers here by their names and rules there.
  std::map<std::pair<std::string, std::string>, std::string> optimizers_;
  std::set<std::string> used_;         // tensors
  std::set<std::string> used_values_;  // names
  Restored result_;
};

}  // namespace cohort::checkpoint
