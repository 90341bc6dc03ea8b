// SPDX-License-Identifier: Apache-2.0
// The variables and modules of a strategy that keeps them on parameter servers.
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
#include "cohort/core/thread_value.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/strategy/replicated.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_parts.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/variable.h"

namespace cohort {

// Marks, while it exists, that this thread runs a function that makes a worker's dataset. Such a
// function runs once per worker, so it must not create variables. Thread-compatible.
class COHORT_API DatasetFunctionScope {
 public:
  DatasetFunctionScope();
  static bool is_on_this_thread();

 private:
  const internal::ScopedValue<bool> is_inside_;
};

namespace detail {

// Throws failed_precondition or invalid_argument where no variable may be made.
void check_can_create(const Strategy& strategy, const std::string& name);

// Thread-safe.
class ServerVariables final : public internal::StrategyVariables {
 public:
  ServerVariables(const Strategy& strategy, std::shared_ptr<ParameterServerHome> home)
      : strategy_(strategy), home_(std::move(home)) {}

  Variable create(std::string name, const at::Tensor& initial_value,
                  const VariableOptions& options) override;
  Variable create(std::string name, const TensorSpec& spec, const Initializer& initializer,
                  const VariableOptions& options) override;
  std::uint64_t next_module_seed() override {
    return internal::seed_of_module(home_->options().cluster.seed, num_modules_made_.fetch_add(1));
  }
  internal::ModuleVariables place_module(std::string_view name,
                                         std::vector<internal::ModuleCopy> copies) override;
  int num_modules() const override { return 1; }
  bool owns(const Variable& variable) const override;
  std::shared_ptr<VariableHome> home() const override { return home_; }
  std::vector<Variable> all() const override;
  std::vector<Variable> components_of(const Variable& variable) const override {
    return {variable};
  }
  std::vector<std::string> devices_of(const Variable& variable) const override;

 private:
  const Strategy& strategy_;
  const std::shared_ptr<ParameterServerHome> home_;
  std::atomic<std::uint64_t> num_modules_made_ = 0;
};

}  // namespace detail
}  // namespace cohort
