// SPDX-License-Identifier: Apache-2.0
// The contents of a Checkpoint, and how they go to a folder and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/core/bytes.h"
#include "cohort/strategy/strategy_parts.h"
#include "cohort/variable/variable_home.h"

namespace cohort::checkpoint {

class BackgroundWrite;  // checkpoint/background_write.h
class Restoring;

// Where a reader of data is, as bytes. With several workers, all make these calls.
struct SavedPosition {
  std::function<Bytes()> save;
  std::function<void(std::span<const std::byte>)> restore;
};

// Thread-compatible.
class Contents {
 public:
  explicit Contents(Strategy* strategy) : strategy_(strategy) {}

  void add(const Variable& variable);
  void add(std::vector<std::pair<std::string, at::Tensor>> tensors);
  void add(std::string name, SavedPosition position);
  void add(std::string name, SavedState state);

  void write(const std::string& path, std::int64_t step) const;
  struct Write {
    std::string path = {};
    std::int64_t step = 0;
    std::uint64_t bytes_max = 0;  // that are copied at a time
    CheckpointWriters writers = CheckpointWriters::first;
  };
  // Leaves the writing to a thread, which needs nothing of this object. `then` is called on that
  // thread when the folder is complete. Returns nullptr where another worker writes.
  std::unique_ptr<BackgroundWrite> begin_write(const Write& write,
                                               const std::function<void()>& then) const;
  Restored read(const std::string& path, const RestoreOptions& options) const;
  // Says what the last read() has restored by now.
  Restored restored() const;
  // Throws failed_precondition in a replica and in a step, where nothing is saved or restored.
  static void check_place(std::string_view call);
  // Also throws it while closures wait or run, which would use restored values in half.
  void check_restore() const;
  // Before a save, during which closures may run. Until the result is destroyed, no epoch makes a
  // step. Throws as check_place().
  std::shared_ptr<void> hold_epochs(std::string_view call) const;
  // Who makes the strategy's variables, and knows its workers; one without variables if there is no
  // strategy.
  const internal::StrategyVariables& parts() const;

 private:
  friend class Saving;
  friend class Restoring;
  // The strategy's and those that were added. Throws already_exists if two have one name.
  std::vector<Variable> all_variables() const;
  void check_new(const std::string& name) const;

  Strategy* const strategy_;  // nullptr: none
  std::vector<Variable> variables_;
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
  std::vector<std::pair<std::string, SavedPosition>> positions_;
  std::vector<std::pair<std::string, SavedState>> values_;
  // The last read(), whose values wait for what is made or added later; nullptr: none do.
  mutable std::shared_ptr<Restoring> open_;
  mutable Restored restored_;
};

// The attached states of the homes of these variables: all of the strategy's home, and of local
// variables those whose first variable is among them.
std::vector<std::shared_ptr<AttachedState>> states_of(const internal::StrategyVariables& parts,
                                                      std::span<const Variable> variables);

// The home of all local variables of this process.
std::shared_ptr<VariableHome> home_of_local_variables();

// Tensors of bytes, uint8 [n].
at::Tensor tensor_of_bytes(std::span<const std::byte> bytes);
Bytes bytes_of_tensor(const at::Tensor& tensor);
// Texts that workers send each other.
Bytes bytes_of_text(std::string_view text);
std::string text_of_bytes(const Bytes& bytes);

}  // namespace cohort::checkpoint
