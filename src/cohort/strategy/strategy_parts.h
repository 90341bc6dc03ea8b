// SPDX-License-Identifier: Apache-2.0
// The part of a strategy that makes its variables. Upper modules implement it: `synchronous` keeps
// variables in this process, `parameter_server_strategy` on servers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/strategy/replicated.h"
#include "cohort/strategy/strategy.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/variable.h"

namespace cohort::internal {

// Makes the variables and modules of a strategy, and knows where they are. Thread-safe.
class StrategyVariables {
 public:
  virtual ~StrategyVariables() = default;
  // Throw as Strategy::variable() does.
  virtual Variable create(std::string name, const at::Tensor& initial_value,
                          const VariableOptions& options) = 0;
  virtual Variable create(std::string name, const TensorSpec& spec, const Initializer& initializer,
                          const VariableOptions& options) = 0;
  // The seed for the factory of replicate(): another one for each module.
  virtual std::uint64_t next_module_seed() = 0;
  // Makes all or none of the variables "<name>/<name of the tensor>". `copies`: as many as
  // num_modules(), one for each replica that has its own module.
  virtual ModuleVariables place_module(std::string_view name, std::vector<ModuleCopy> copies) = 0;
  virtual int num_modules() const = 0;
  virtual bool owns(const Variable& variable) const = 0;
  // Who keeps their values.
  virtual std::shared_ptr<VariableHome> home() const = 0;
  // The replicas of all processes that have these variables and make the same calls.
  virtual std::size_t replicas_in_sync() const { return 1; }
  virtual int process() const { return 0; }  // the index of this one
  // Calls `make` in each of these processes, and returns what all have made, the first process
  // first. If one throws, all throw its error. `call`: for messages.
  virtual std::vector<Bytes> exchange(std::string_view /*call*/,
                                      const std::function<Bytes()>& make) const {
    return {make()};
  }
  // Gives these tensors, which all processes have, the values that the first one has.
  virtual void copy_from_first(std::string_view /*call*/,
                               std::span<const at::Tensor> /*tensors*/) const {}
  // Copies of the values that each replica of all processes has of the variables, for all of which
  // the replicas have values of their own.
  virtual std::vector<std::vector<at::Tensor>> values_of_replicas(
      std::string_view /*call*/, std::span<const Variable> variables) const {
    return std::vector<std::vector<at::Tensor>>(variables.size());
  }
  // A slot of an optimizer of which each process has a share of the elements.
  struct GatheredSlot {
    std::string variable = {};
    std::string optimizer = {};
    std::size_t number = 0;  // among those that the optimizer has for the variable
    at::Tensor whole = {};   // on the CPU; undefined in all processes but the first one
  };
  // All such slots, which all processes ask for together. They travel in messages of about
  // `chunk_bytes`. Throws failed_precondition if a step has failed that had changed a part of them.
  virtual std::vector<GatheredSlot> gather_shared_slots(std::string_view /*call*/,
                                                        std::uint64_t /*chunk_bytes*/) const {
    return {};
  }
  // Rows of such a slot, which this process writes itself. `number` and the names as above.
  struct SlotRows {
    std::string variable = {};
    std::string optimizer = {};
    std::string rule = {};
    std::size_t number = 0;
    TensorSpec spec = {};  // of the whole slot
    std::int64_t first_row = 0;
    at::Tensor rows = {};  // on the CPU, perhaps the memory of the share; there may be none
  };
  // The rows of all such slots that begin in this process's share: one or two pieces for each slot.
  // Elements of these rows that other processes have are sent. All processes ask together. Throws
  // as gather_shared_slots().
  virtual std::vector<SlotRows> own_rows_of_shared_slots(std::string_view /*call*/) const {
    return {};
  }
  // The variables that exist, tables among them, in an order that is the same in all workers. Not
  // the shards of one that is divided.
  virtual std::vector<Variable> all() const = 0;
  // The components of a variable and their devices; the variable itself if it has one value. Called
  // for variables of this strategy, and for others unless it updates only its own.
  virtual std::vector<Variable> components_of(const Variable& variable) const = 0;
  virtual std::vector<std::string> devices_of(const Variable& variable) const = 0;
};

}  // namespace cohort::internal
