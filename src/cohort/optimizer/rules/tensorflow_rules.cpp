// SPDX-License-Identifier: Apache-2.0
// The rules with TensorFlow's formulas (OptimizerFormula::tensorflow). Their slots have LibTorch's
// names, as those of the other rules. With an epsilon or a start of 0 the first zero gradient would
// be 0/0, so these are positive.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "cohort/optimizer/rules/kernel.h"

namespace cohort::optimizer {
namespace {

class TensorflowRMSpropRule final : public ElementRule {
 public:
  std::string_view name() const override { return "tensorflow_rmsprop"; }
  std::span<const std::string_view> hyperparameter_names() const override {
    static constexpr std::array<std::string_view, 3> kNames{"learning_rate", "alpha", "eps"};
    return kNames;
  }
  std::span<const variable::HyperparameterRange> hyperparameter_ranges() const override {
    using enum variable::HyperparameterRange;
    static constexpr std::array<variable::HyperparameterRange, 3> kRanges{not_negative, fraction,
                                                                          positive};
    return kRanges;
  }
  std::span<const std::string_view> slot_names() const override {
    static constexpr std::array<std::string_view, 1> kNames{"square_avg"};
    return kNames;
  }
  std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                       std::span<const double>) const override {
    return {at::ones_like(variable.detach())};
  }

  void update_on_cpu(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                     const at::Tensor& gradient, std::span<const double> hyper) const override {
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(hyper[0]);
      const T alpha = static_cast<T>(hyper[1]), rest = static_cast<T>(1.0 - hyper[1]);
      const T eps = static_cast<T>(hyper[2]);
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* squares = slots[0].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      for_each_element(value.numel(), [=](std::int64_t i) {
        const T square = alpha * squares[i] + rest * g[i] * g[i];
        squares[i] = square;
        out[i] = p[i] - rate * g[i] / std::sqrt(square + eps);
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    slots[0].mul_(hyper[1]).addcmul_(gradient, gradient, 1.0 - hyper[1]);
    at::addcdiv_out(new_value, value, gradient, slots[0].add(hyper[2]).sqrt_(), -hyper[0]);
  }
};

class TensorflowAdagradRule final : public ElementRule {
 public:
  std::string_view name() const override { return "tensorflow_adagrad"; }
  std::span<const std::string_view> hyperparameter_names() const override {
    static constexpr std::array<std::string_view, 2> kNames{"learning_rate", "initial_accumulator"};
    return kNames;
  }
  std::span<const variable::HyperparameterRange> hyperparameter_ranges() const override {
    static constexpr std::array<variable::HyperparameterRange, 2> kRanges{
        variable::HyperparameterRange::not_negative, variable::HyperparameterRange::positive};
    return kRanges;
  }
  std::span<const std::string_view> slot_names() const override {
    static constexpr std::array<std::string_view, 1> kNames{"sum"};
    return kNames;
  }
  std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                       std::span<const double> hyper) const override {
    return {at::full_like(variable.detach(), hyper[1])};
  }

  void update_on_cpu(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                     const at::Tensor& gradient, std::span<const double> hyper) const override {
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(hyper[0]);
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* sums = slots[0].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      for_each_element(value.numel(), [=](std::int64_t i) {
        const T sum = sums[i] + g[i] * g[i];
        sums[i] = sum;
        out[i] = p[i] - rate * g[i] / std::sqrt(sum);
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    slots[0].addcmul_(gradient, gradient);
    at::addcdiv_out(new_value, value, gradient, slots[0].sqrt(), -hyper[0]);
  }
};

// `kIsDecoupled`: AdamW.
template <bool kIsDecoupled>
class TensorflowAdamRule final : public ElementRule {
 public:
  std::string_view name() const override {
    return kIsDecoupled ? "tensorflow_adamw" : "tensorflow_adam";
  }
  std::span<const std::string_view> hyperparameter_names() const override {
    static constexpr std::array<std::string_view, 5> kNames{"learning_rate", "beta_1", "beta_2",
                                                            "eps", "weight_decay"};
    return kNames;
  }
  std::span<const variable::HyperparameterRange> hyperparameter_ranges() const override {
    using enum variable::HyperparameterRange;
    static constexpr std::array<variable::HyperparameterRange, 5> kRanges{
        not_negative, fraction, fraction, positive, not_negative};
    return kRanges;
  }
  std::span<const std::string_view> slot_names() const override {
    static constexpr std::array<std::string_view, 3> kNames{"exp_avg", "exp_avg_sq", "step"};
    return kNames;
  }
  std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                       std::span<const double>) const override {
    const at::Tensor like = variable.detach();
    return {at::zeros_like(like), at::zeros_like(like),
            at::zeros({}, at::TensorOptions(at::ScalarType::Long))};
  }

  void update_on_cpu(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                     const at::Tensor& gradient, std::span<const double> hyper) const override {
    const double corrected = next_rate(slots[2], hyper);
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(corrected);
      const T beta_1 = static_cast<T>(hyper[1]), rest_1 = static_cast<T>(1.0 - hyper[1]);
      const T beta_2 = static_cast<T>(hyper[2]), rest_2 = static_cast<T>(1.0 - hyper[2]);
      const T eps = static_cast<T>(hyper[3]);
      const T decay = static_cast<T>(hyper[4]);
      const T kept = kIsDecoupled ? static_cast<T>(1.0 - hyper[0] * hyper[4]) : T{1};
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* m = slots[0].data_ptr<T>();
      T* v = slots[1].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      with_flag(!kIsDecoupled && hyper[4] != 0.0, [&](auto decays) {
        for_each_element(value.numel(), [=](std::int64_t i) {
          const T slope = slope_of(decays, g[i], p[i], decay);
          const T start = kIsDecoupled ? kept * p[i] : p[i];
          const T mean = beta_1 * m[i] + rest_1 * slope;
          const T square = beta_2 * v[i] + rest_2 * slope * slope;
          m[i] = mean;
          v[i] = square;
          out[i] = start - rate * mean / (std::sqrt(square) + eps);
        });
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    const double rate = next_rate(slots[2], hyper);
    const at::Tensor slope = kIsDecoupled ? gradient : slope_of(gradient, value, hyper[4]);
    const at::Tensor start = kIsDecoupled ? value.mul(1.0 - hyper[0] * hyper[4]) : value;
    slots[0].mul_(hyper[1]).add_(slope, 1.0 - hyper[1]);
    slots[1].mul_(hyper[2]).addcmul_(slope, slope, 1.0 - hyper[2]);
    at::addcdiv_out(new_value, start, slots[0], slots[1].sqrt().add_(hyper[3]), -rate);
  }

 private:
  // Counts the step. The count is on the CPU, wherever the value is.
  static double next_rate(const at::Tensor& step, std::span<const double> hyper) {
    const double t = static_cast<double>(++*step.data_ptr<std::int64_t>());
    return hyper[0] * std::sqrt(1.0 - std::pow(hyper[2], t)) / (1.0 - std::pow(hyper[1], t));
  }
};

}  // namespace

const variable::UpdateRule& tensorflow_rmsprop_rule() {
  static const TensorflowRMSpropRule kRule;
  return kRule;
}

const variable::UpdateRule& tensorflow_adagrad_rule() {
  static const TensorflowAdagradRule kRule;
  return kRule;
}

const variable::UpdateRule& tensorflow_adam_rule() {
  static const TensorflowAdamRule<false> kRule;
  return kRule;
}

const variable::UpdateRule& tensorflow_adamw_rule() {
  static const TensorflowAdamRule<true> kRule;
  return kRule;
}

}  // namespace cohort::optimizer
