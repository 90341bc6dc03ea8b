// SPDX-License-Identifier: Apache-2.0
// One variable of a parameter server with its slots.
//
// A pull takes a reference to the value and sends from it with no lock and no copy; an update that
// finds the value referenced writes into a spare buffer instead, so a reader always sees one whole
// version.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/core/resource_host.h"
#include "cohort/rpc/control.h"
#include "cohort/variable/update_rule.h"

namespace cohort::server {

// An update is made in two steps, so that a push is applied as a whole or not at all: reserve*()
// checks it and gets everything that it may need, memory above all, and changes nothing; the update
// itself then cannot fail.

// Thread-safe.
class StoredVariable {
 public:
  struct Version {
    at::Tensor value;  // never changes
    std::uint64_t number;
  };
  using Slots = std::map<std::string, std::vector<at::Tensor>, std::less<>>;
  // What one update needs. Used once, by the update that it was made for.
  struct Reserve {
    at::Tensor given;        // the gradient, value or rows, contiguous
    at::Tensor statistic;    // of an average, contiguous
    at::Tensor spare;        // for the new value, should a reader hold the present one
    Slots::node_type slots;  // where the variable had none yet
  };

  explicit StoredVariable(const rpc::VariableSpec& spec);

  const std::string& name() const { return name_; }
  const TensorSpec& spec() const { return spec_; }
  Version snapshot() const;

  // These throw where the arguments do not fit. `slots_of`: the rule's name with its optimizer's
  // number, "adam#2"; others have others.
  Reserve reserve_apply(const UpdateRule& rule, std::string_view slots_of,
                        const at::Tensor& gradient, std::span<const double> hyper);
  Reserve reserve_assign(AssignKind kind, const at::Tensor& value);
  Reserve reserve_rows(const at::Tensor& ids, const at::Tensor& rows);
  Reserve reserve_average(const at::Tensor& value, const at::Tensor& statistic, double momentum);

  void apply(const UpdateRule& rule, std::string_view slots_of, std::span<const double> hyper,
             Reserve reserve);
  void assign(AssignKind kind, Reserve reserve);
  void scatter_add(const at::Tensor& ids, Reserve reserve);
  // Assigns the value where nobody has written since `version`, which its sender has read; else
  // moves by `momentum` towards the statistic.
  void merge_average(double momentum, std::uint64_t version, Reserve reserve);

 private:
  // A buffer nobody else refers to, of the value's spec; its content is arbitrary.
  at::Tensor take_spare() COHORT_REQUIRES(mutex_);
  void keep_spare(at::Tensor spare) COHORT_REQUIRES(mutex_);
  // Where the new value goes: the present one's memory, unless a reader holds it.
  at::Tensor target(Reserve& reserve) COHORT_REQUIRES(mutex_);
  // The value is now `next`, which target() gave. What is left of the reserve is kept for later.
  void finish(at::Tensor next, Reserve& reserve) COHORT_REQUIRES(mutex_);
  void check_spec(std::string_view what, const at::Tensor& value) const;
  void check_rows(const at::Tensor& ids, const at::Tensor& rows) const;
  static bool can_add(at::ScalarType dtype, bool subtracts);
  Reserve reserve(const at::Tensor& given);

  const std::string name_;
  const TensorSpec spec_;
  const std::array<bool, 2> can_add_;  // can add; can subtract
  mutable Mutex mutex_;
  at::Tensor value_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t version_ COHORT_GUARDED_BY(mutex_) = 0;
  std::vector<at::Tensor> retired_
      COHORT_GUARDED_BY(mutex_);           // old buffers, perhaps still being sent
  Slots slots_ COHORT_GUARDED_BY(mutex_);  // by rule and optimizer
};

}  // namespace cohort::server
