// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizers.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "cohort/optimizer/internal/kernel.h"

namespace cohort {
namespace optimizer {
namespace {

enum class WeightDecay : std::uint8_t { none, coupled, decoupled };

template <WeightDecay kDecay>
class AdamRule final : public ElementRule {
 public:
  std::string_view name() const override {
    if constexpr (kDecay == WeightDecay::coupled) return "adam_weight_decay";
    return kDecay == WeightDecay::decoupled ? "adamw" : "adam";
  }
  std::span<const std::string_view> hyperparameter_names() const override {
    static constexpr std::array<std::string_view, 5> kNames{"learning_rate", "beta_1", "beta_2",
                                                            "epsilon", "weight_decay"};
    return std::span(kNames).first(kHyperparameters);
  }
  // With epsilon 0 the first zero gradient would be 0/0.
  std::span<const variable::HyperparameterRange> hyperparameter_ranges() const override {
    static constexpr std::array<variable::HyperparameterRange, 5> kRanges{
        variable::HyperparameterRange::not_negative, variable::HyperparameterRange::fraction,
        variable::HyperparameterRange::fraction, variable::HyperparameterRange::positive,
        variable::HyperparameterRange::not_negative};
    return std::span(kRanges).first(kHyperparameters);
  }
  std::span<const std::string_view> slot_names() const override {
    static constexpr std::array<std::string_view, 3> kNames{"m", "v", "step"};
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
      const T beta_1 = static_cast<T>(hyper[1]);
      const T beta_2 = static_cast<T>(hyper[2]);
      const T rest_1 = static_cast<T>(1.0 - hyper[1]);
      const T rest_2 = static_cast<T>(1.0 - hyper[2]);
      const T epsilon = static_cast<T>(hyper[3]);
      const T decay = kDecay == WeightDecay::coupled ? static_cast<T>(hyper[4]) : T{};
      const T kept =
          kDecay == WeightDecay::decoupled ? static_cast<T>(1.0 - hyper[0] * hyper[4]) : T{1};
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* m = slots[0].data_ptr<T>();
      T* v = slots[1].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      for_each_element(value.numel(), [=](std::int64_t i) {
        const T slope = kDecay == WeightDecay::coupled ? g[i] + decay * p[i] : g[i];
        const T start = kDecay == WeightDecay::decoupled ? kept * p[i] : p[i];
        const T mean = beta_1 * m[i] + rest_1 * slope;
        const T square = beta_2 * v[i] + rest_2 * slope * slope;
        m[i] = mean;
        v[i] = square;
        out[i] = start - rate * mean / (std::sqrt(square) + epsilon);
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    const double rate = next_rate(slots[2], hyper);
    const at::Tensor slope =
        kDecay == WeightDecay::coupled ? gradient.add(value, hyper[4]) : gradient;
    const at::Tensor start =
        kDecay == WeightDecay::decoupled ? value.mul(1.0 - hyper[0] * hyper[4]) : value;
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
  static constexpr std::size_t kHyperparameters = kDecay == WeightDecay::none ? 4 : 5;
};

}  // namespace

const variable::UpdateRule& adam_rule() {
  static const AdamRule<WeightDecay::none> kRule;
  return kRule;
}

const variable::UpdateRule& adam_weight_decay_rule() {
  static const AdamRule<WeightDecay::coupled> kRule;
  return kRule;
}

const variable::UpdateRule& adamw_rule() {
  static const AdamRule<WeightDecay::decoupled> kRule;
  return kRule;
}

namespace {

const variable::UpdateRule& rule_for(const AdamOptions& options) {
  variable::check_hyperparameter_range(variable::HyperparameterRange::not_negative,
                                       "optimizer.adam", "weight_decay", options.weight_decay);
  return options.weight_decay == 0.0 ? adam_rule() : adam_weight_decay_rule();
}

std::vector<double> hyper_for(const AdamOptions& options) {
  std::vector<double> hyper{options.beta_1, options.beta_2, options.epsilon};
  if (options.weight_decay != 0.0) hyper.push_back(options.weight_decay);
  return hyper;
}

}  // namespace

}  // namespace optimizer

Adam::Adam(std::vector<Variable> variables, AdamOptions options)
    : Optimizer(std::move(variables), optimizer::rule_for(options), options.learning_rate,
                optimizer::hyper_for(options), options.name) {}

AdamW::AdamW(std::vector<Variable> variables, AdamWOptions options)
    : Optimizer(std::move(variables), optimizer::adamw_rule(), options.learning_rate,
                {options.beta_1, options.beta_2, options.epsilon, options.weight_decay},
                options.name) {}

}  // namespace cohort
