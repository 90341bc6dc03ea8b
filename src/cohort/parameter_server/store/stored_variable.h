// SPDX-License-Identifier: Apache-2.0
// One variable of a parameter server with its slots.
//
// A pull takes a reference to the value, and sends it without a lock and without a copy. If an
// update finds that the value is referenced, it writes the new value into a spare buffer, so a
// reader always sees one complete version.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/mutex.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/variable/update_rule.h"
#include "cohort/variable/variable_state.h"

namespace cohort::parameter_server {

// An update has two steps, so that a push is applied completely or not at all. First reserve*()
// checks the arguments and allocates everything that the update may need, but changes nothing. Then
// the update itself cannot fail.

// Thread-safe.
class StoredVariable {
 public:
  struct Version {
    at::Tensor value;  // never changes
    std::uint64_t number;
  };
  // The memory for one update. Only the update for which it was reserved uses it, once.
  struct Reserve {
    at::Tensor given;            // the gradient, value or rows, contiguous
    at::Tensor statistic;        // for merge_average(), contiguous
    at::Tensor spare;            // for the new value, if a reader holds the current one
    VariableState::Fresh slots;  // if the variable has no slots yet
  };

  StoredVariable(std::string name, at::Tensor value);

  const std::string& name() const { return name_; }
  const TensorSpec& spec() const { return spec_; }
  Version snapshot() const;

  // These throw if the arguments do not fit.
  Reserve reserve_apply(const SlotKey& key, const at::Tensor& gradient,
                        std::span<const double> hyper);
  Reserve reserve_assign(internal::AssignKind kind, const at::Tensor& value);
  Reserve reserve_rows(const at::Tensor& ids, const at::Tensor& rows);
  Reserve reserve_average(const at::Tensor& value, const at::Tensor& statistic, double momentum);

  void apply(const SlotKey& key, std::span<const double> hyper, Reserve reserve);
  void assign(internal::AssignKind kind, Reserve reserve);
  void scatter_add(const at::Tensor& ids, Reserve reserve);
  // If the variable still has the version that the sender has read, assigns the value. Otherwise
  // moves the current value by `momentum` towards the statistic.
  void merge_average(double momentum, std::uint64_t version, Reserve reserve);

 private:
  // A buffer with the value's spec to which nothing else refers; its content is arbitrary.
  at::Tensor take_spare() COHORT_REQUIRES(mutex_);
  void keep_spare(at::Tensor spare) COHORT_REQUIRES(mutex_);
  // The tensor for the new value: the current value, unless a reader holds it.
  at::Tensor target(Reserve& reserve) COHORT_REQUIRES(mutex_);
  // Makes `next`, which target() returned, the current value. Keeps the unused buffer for later.
  void finish(at::Tensor next, Reserve& reserve) COHORT_REQUIRES(mutex_);
  void check_spec(std::string_view what, const at::Tensor& value) const;
  void check_rows(const at::Tensor& ids, const at::Tensor& rows) const;
  static bool can_add(at::ScalarType dtype, bool subtracts);
  Reserve reserve(const at::Tensor& given);

  const std::string name_;
  const TensorSpec spec_;
  const std::array<bool, 2> can_add_;  // whether LibTorch can add, and subtract, this dtype
  mutable Mutex mutex_;
  VariableState state_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t version_ COHORT_GUARDED_BY(mutex_) = 0;
  // Old buffers, which may still be being sent.
  std::vector<at::Tensor> retired_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::parameter_server
