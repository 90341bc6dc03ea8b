// SPDX-License-Identifier: Apache-2.0
// The loop of every update rule: one pass over value, slots and gradient, bound by memory.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/kept_memory.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/variable/row_loop.h"
#include "cohort/variable/update_rule.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace cohort::optimizer {

// While it lives, its thread reads and writes numbers too small for a normal exponent (below
// 1.2e-38 in float32) as zero, as TensorFlow's kernels do. A weight whose gradient stays zero would
// otherwise have a momentum that decays into them and never reaches zero; x86 processors take some
// 100 cycles for each of them.
class FlushDenormals {
#if defined(__SSE2__)
 public:
  FlushDenormals() noexcept : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlush); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kFlush = 0x8040;  // results to zero (FTZ), and operands (DAZ)

  const unsigned before_;
#endif
};

// For fewer elements a second thread costs more than it saves.
inline constexpr std::int64_t kParallelElements = std::int64_t{1} << 20;

// Which elements of a value and its slots an update changes: all, or those of some rows.
class UpdatedElements {
 public:
  static UpdatedElements all_of(const at::Tensor& value) { return UpdatedElements(value.numel()); }
  // `row_ids`: int64 [n], each row once.
  static UpdatedElements of_rows(const at::Tensor& value, std::span<const at::Tensor> slots,
                                 const at::Tensor& row_ids) {
    if (value.numel() == 0 || row_ids.numel() == 0) return UpdatedElements(0);
    UpdatedElements elements(value.numel() / value.size(0));
    elements.row_ids_ = row_ids.data_ptr<std::int64_t>();
    elements.num_rows_ = row_ids.numel();
    elements.load_early_from(value);
    for (const at::Tensor& slot : slots)
      if (variable::has_rows(slot, value)) elements.load_early_from(slot);
    return elements;
  }

  // Calls fn(i, j) for each of them: element i of the value and of the slots, and element j of the
  // gradient. fn may read and write only these. So it can be vectorised although new_value may be
  // value itself, and splitting changes no bit.
  template <class Fn>
  void for_each(const Fn& fn) const {
    if (row_ids_ != nullptr) return for_each_of_rows(fn);
    at::parallel_for(0, count_, kParallelElements, [&fn](std::int64_t begin, std::int64_t end) {
      const FlushDenormals flush;
      for_range(begin, begin, end - begin, fn);
    });
  }

 private:
  struct Table {
    const std::byte* rows;
    std::size_t row_bytes;
  };

  explicit UpdatedElements(std::int64_t count) : count_(count) {}
  void load_early_from(const at::Tensor& tensor) {
    if (num_tables_ == tables_.size()) return;
    tables_[num_tables_++] = {static_cast<const std::byte*>(tensor.data_ptr()),
                              tensor.nbytes() / static_cast<std::size_t>(tensor.size(0))};
  }

  template <class Fn>
  static void for_range(std::int64_t i, std::int64_t j, std::int64_t count, const Fn& fn) {
    const Fn element = fn;  // a copy keeps its pointers in registers
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
    for (std::int64_t k = 0; k < count; ++k) element(i + k, j + k);
  }

  template <class Fn>
  void for_each_of_rows(const Fn& fn) const {
    const std::int64_t grain = std::max<std::int64_t>(1, kParallelElements / count_);
    at::parallel_for(0, num_rows_, grain, [&](std::int64_t begin, std::int64_t end) {
      const FlushDenormals flush;
      variable::for_each_loaded_early(
          begin, end, [&](std::int64_t row) { load_early(row); },
          [&](std::int64_t row) { for_range(row_ids_[row] * count_, row * count_, count_, fn); });
    });
  }
  void load_early(std::int64_t row) const {
    for (std::size_t i = 0; i < num_tables_; ++i) {
      const Table& table = tables_[i];
      variable::load_early(table.rows + static_cast<std::size_t>(row_ids_[row]) * table.row_bytes,
                           std::min(table.row_bytes, variable::kEarlyBytes));
    }
  }

  std::int64_t count_;  // of all elements, or of those of a row
  const std::int64_t* row_ids_ = nullptr;
  std::int64_t num_rows_ = 0;
  std::array<Table, 4> tables_{};  // a rule has at most three slots with rows
  std::size_t num_tables_ = 0;
};

// A smaller divisor may be zero in float32, where numbers too small for a normal exponent are.
inline constexpr double kLeastNormal = std::numeric_limits<float>::min();

using Hyperparameter = std::pair<std::string_view, variable::HyperparameterRange>;

// A slot that counts steps. It is on the CPU, wherever the value is.
inline at::Tensor zero_steps() { return at::zeros({}, at::TensorOptions(at::ScalarType::Long)); }

// A slot that has this number for each element of the variable.
inline at::Tensor slot_of(const at::Tensor& variable, double number) {
  return in_huge_pages(at::empty_like(variable.detach())).fill_(number);
}

// A rule with two implementations. On the CPU it is one loop, which this file helps to write. For
// values on other devices it is a few operators of LibTorch: the same formula in the same order,
// though a GPU may round a product and its sum once instead of twice. The operators need memory of
// the value's size; if the GPU has too little, the update throws.
class ElementRule : public variable::UpdateRule {
 public:
  ElementRule(std::string_view name, std::initializer_list<Hyperparameter> hyper,
              std::initializer_list<std::string_view> slots)
      : name_(name), slots_(slots) {
    for (const Hyperparameter& parameter : hyper) add(parameter);
  }
  std::string_view name() const final { return name_; }
  std::span<const std::string_view> hyperparameter_names() const final { return names_; }
  std::span<const variable::HyperparameterRange> hyperparameter_ranges() const final {
    return ranges_;
  }
  std::span<const std::string_view> slot_names() const final { return slots_; }
  // All slots are zeros like the variable, but for "step".
  std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                       std::span<const double>) const override {
    std::vector<at::Tensor> made;
    for (const std::string_view slot : slots_)
      made.push_back(slot == "step" ? zero_steps() : slot_of(variable, 0.0));
    return made;
  }

  void update(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
              const at::Tensor& gradient, std::span<const double> hyper) const final {
    if (value.is_cpu())
      return update_on_cpu(UpdatedElements::all_of(value), new_value, value, slots, gradient,
                           hyper);
    const at::AutoDispatchBelowADInplaceOrView raw;  // as the loop: autograd knows nothing of it
    update_anywhere(new_value, value, slots, gradient, hyper);
  }
  void update_rows(at::Tensor& value, std::span<at::Tensor> slots, const at::Tensor& row_ids,
                   const at::Tensor& gradient, std::span<const double> hyper) const final {
    if (!value.is_cpu())
      return variable::UpdateRule::update_rows(value, slots, row_ids, gradient, hyper);
    update_on_cpu(UpdatedElements::of_rows(value, slots, row_ids), value, value, slots, gradient,
                  hyper);
  }
  virtual void update_on_cpu(const UpdatedElements& elements, at::Tensor& new_value,
                             const at::Tensor& value, std::span<at::Tensor> slots,
                             const at::Tensor& gradient, std::span<const double> hyper) const = 0;
  virtual void update_anywhere(at::Tensor& new_value, const at::Tensor& value,
                               std::span<at::Tensor> slots, const at::Tensor& gradient,
                               std::span<const double> hyper) const = 0;

 protected:
  // For the constructors of rules whose template arguments say what they have.
  void add(const Hyperparameter& parameter) {
    names_.push_back(parameter.first);
    ranges_.push_back(parameter.second);
  }
  void add_slot(std::string_view name) { slots_.push_back(name); }

 private:
  std::string_view name_;
  std::vector<std::string_view> names_;
  std::vector<variable::HyperparameterRange> ranges_;
  std::vector<std::string_view> slots_;
};

// The only one of its kind. It is never destroyed, since threads may use it until the process ends.
template <class Rule>
const Rule& the() {
  static const Rule& rule = *new Rule();
  return rule;
}

// fn(std::true_type()) or fn(std::false_type()), so that the loop in fn has no branch.
template <class Fn>
void with_flag(bool flag, const Fn& fn) {
  if (flag) {
    fn(std::true_type());
  } else {
    fn(std::false_type());
  }
}

// The gradient of the loss with weight_decay/2 * |p|^2 added. With a decay of 0 it is the gradient
// itself, also where p is not finite, as in torch::optim.
template <class Decays, class T>
T slope_of(Decays, T gradient, T value, T decay) {
  if constexpr (Decays::value) return gradient + decay * value;
  return gradient;
}
inline at::Tensor slope_of(const at::Tensor& gradient, const at::Tensor& value, double decay) {
  return decay == 0.0 ? gradient : gradient.add(value, decay);
}

// fn(T{}) with the C type of `value`'s dtype.
template <class Fn>
void with_element_type(const at::Tensor& value, std::string_view rule, const Fn& fn) {
  switch (value.scalar_type()) {
    case at::ScalarType::Float:
      return fn(float{});
    case at::ScalarType::Double:
      return fn(double{});
    default:
      COHORT_CHECK(false, ErrorCode::unimplemented,
                   "[optimizer.update] expected a variable of float32 or float64, got ",
                   dtype_name(value.scalar_type()), " (rule '", rule, "')");
  }
}

}  // namespace cohort::optimizer
