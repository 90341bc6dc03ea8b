// SPDX-License-Identifier: Apache-2.0
// The variables and modules of a strategy whose replicas are in this process.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/tensor_spec.h"
#include "cohort/strategy/replicated.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_parts.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/variable.h"

namespace cohort::internal {

// Thread-safe.
class SynchronousVariables final : public StrategyVariables {
 public:
  // `is_central`: they are on the parameter device of a CentralStorageStrategy.
  SynchronousVariables(const Strategy& strategy, std::shared_ptr<MirroredHome> home,
                       bool is_central)
      : strategy_(strategy), home_(std::move(home)), is_central_(is_central) {}

  // All workers make these calls in the same order; they get the first worker's initial values.
  // Throws invalid_argument on all of them if names, dtypes, shapes or options differ. In a replica
  // context, all replicas make the call; they get the same variable, with the first replica's
  // initial value. Throws failed_precondition if they give it different names.
  Variable create(std::string name, const at::Tensor& initial_value,
                  const VariableOptions& options) override;
  Variable create(std::string name, const TensorSpec& spec, const Initializer& initializer,
                  const VariableOptions& options) override;
  std::uint64_t next_module_seed() override {
    return seed_of_module(seed_of_initializers(), num_modules_made_.fetch_add(1));
  }
  ModuleVariables place_module(std::string_view name, std::vector<ModuleCopy> copies) override;
  int num_modules() const override { return static_cast<int>(home_->replicas()); }
  bool owns(const Variable& variable) const override;
  std::shared_ptr<VariableHome> home() const override { return home_; }
  std::vector<Variable> all() const override { return home_->variables(); }
  std::size_t replicas_in_sync() const override { return home_->replicas_in_sync(); }
  int process() const override { return home_->has_workers() ? home_->workers()->own() : 0; }
  std::vector<Bytes> exchange(std::string_view call,
                              const std::function<Bytes()>& make) const override;
  void copy_from_first(std::string_view call, std::span<const at::Tensor> tensors) const override;
  std::vector<std::vector<at::Tensor>> values_of_replicas(
      std::string_view call, std::span<const Variable> variables) const override;
  std::vector<GatheredSlot> gather_shared_slots(std::string_view call,
                                                std::uint64_t chunk_bytes) const override;
  std::vector<SlotRows> own_rows_of_shared_slots(std::string_view call) const override;
  std::vector<Variable> components_of(const Variable& variable) const override;
  std::vector<std::string> devices_of(const Variable& variable) const override;

 private:
  void check_can_create(std::string_view name, std::string_view method) const;

  const Strategy& strategy_;
  const std::shared_ptr<MirroredHome> home_;
  const bool is_central_;
  std::atomic<std::uint64_t> num_modules_made_ = 0;
};

}  // namespace cohort::internal
