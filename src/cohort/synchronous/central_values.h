// SPDX-License-Identifier: Apache-2.0
// Who keeps the values of a strategy's variables in place of this process, as parameter servers do
// for the workers of a cluster of version 1. The replicas compute with copies of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/export.h"
#include "cohort/variable/state_walk.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_home.h"

namespace cohort::internal {

// A variable that is made, with its initial value.
struct CentralRequest {
  Variable variable;
  at::Tensor initial_value;
  std::optional<Variable> beside = {};  // is kept where this one is
};
// A write, or one step of a rule.
struct CentralChange {
  Variable variable;
  Effect effect;
};

// A value and its version, which another value never has; 0: it has none.
struct CentralValue {
  at::Tensor value = {};
  std::uint64_t version = 0;
};

// Variables are whole ones of one strategy. Values come back in the order of the variables, in
// memory that nobody else uses. Thread-safe.
class COHORT_API CentralValues {
 public:
  virtual ~CentralValues() = default;
  // All or none of them exist from now on. Returns their values, which are others than the initial
  // ones where they existed before.
  virtual std::vector<at::Tensor> add(std::span<const CentralRequest> requests) = 0;
  virtual std::vector<at::Tensor> read(std::span<const Variable> variables) = 0;
  // The same, for a caller that has values: `known` are their versions, 0 where it has none. The
  // value of a variable that still has this version is undefined.
  virtual std::vector<CentralValue> read_newer(std::span<const Variable> variables,
                                               std::span<const std::uint64_t> known) = 0;
  // Makes all changes or none, in this order. Returns the values of their variables afterwards, but
  // none for the first `unread` ones.
  virtual std::vector<CentralValue> change(std::vector<CentralChange> changes,
                                           std::size_t unread) = 0;
  // As VariableHome's.
  virtual void export_state(std::span<const Variable> variables, const StateWalk& walk,
                            const TakeRecord& take) = 0;
  virtual void import_state(const Variable& variable, const VariableRecord& record) = 0;
  virtual bool keeps_newer_values() const = 0;
  // Called when a run begins, before it reads the values.
  virtual void about_to_run() = 0;
  virtual std::vector<std::string> devices_of(const Variable& variable) const = 0;
};

}  // namespace cohort::internal
