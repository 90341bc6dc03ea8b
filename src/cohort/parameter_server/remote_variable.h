// SPDX-License-Identifier: Apache-2.0
// A variable on a parameter server, for the coordinator and its traces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/variable/variable.h"

namespace cohort {

// Outside a trace its home reads and updates it; a trace records reads and updates. In an EagerStep
// the stand-in equals the server's value before and after each read and update. Thread-safe.
class COHORT_API RemoteVariable final : public VariableImpl {
 public:
  // `stand_in` is a real tensor of the right spec (requires_grad when trainable), of any
  // content. `id` is its number in the messages to servers. `home` is a RemoteHome; it is
  // weak, so that a variable does not keep the connections of a destroyed strategy alive.
  RemoteVariable(std::string name, at::Tensor stand_in, bool is_trainable, std::uint64_t id,
                 std::weak_ptr<VariableHome> home, bool is_table = false);

  const std::string& name() const override { return name_; }
  const TensorSpec& spec() const override { return spec_; }
  bool is_trainable() const override { return is_trainable_; }
  // Inside a step, throws failed_precondition for a shard: the step has the whole variable.
  const at::Tensor& tensor() const override;
  bool is_tensor_current() const override;
  void check_tensor_is_current(std::string_view call) const override;
  at::Tensor copy() const override;
  std::shared_ptr<VariableHome> home() const override;
  std::uint64_t id() const { return id_; }
  std::span<const Variable> shards() const override { return shards_; }
  // Before others use the variable. The shards have its rows, in this order.
  void set_shards(std::vector<Variable> shards) { shards_ = std::move(shards); }
  // Makes this a shard of another variable, before others use it.
  void be_shard_of(const std::shared_ptr<const VariableImpl>& whole);

  // A handle for users, who share it; `variable` is a RemoteVariable. When the last copy is gone,
  // `on_end` runs on that thread, which may hold any locks. It must not throw.
  static Variable handle_of(const Variable& variable, std::function<void()> on_end);
  bool has_handle() const;
  // Whether anything beside its handle refers to it or to its stand-in: a graph, or a tensor that a
  // user has kept. `variable` is a RemoteVariable, and `own` is the number of references to the
  // stand-in that the caller has.
  static bool is_referenced(const Variable& variable, std::size_t own);
  // A table is one whose stand-in has no rows and whose slices are by key.
  std::vector<LookedUp> looked_up() const override;
  bool is_table() const override { return is_table_; }

  // Throws invalid_argument, naming the variable, for one of another kind.
  static const RemoteVariable& of(const Variable& variable);

 private:
  std::string name_;
  TensorSpec spec_;
  at::Tensor stand_in_;
  bool is_trainable_;
  std::uint64_t id_;
  std::weak_ptr<VariableHome> home_;
  std::vector<Variable> shards_;
  bool is_shard_ = false;
  mutable Mutex mutex_;
  mutable std::weak_ptr<VariableImpl> handle_ COHORT_GUARDED_BY(mutex_);
  bool is_table_;
};

}  // namespace cohort
