// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizers.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros_like.h>

#include <array>

#include "cohort/optimizer/internal/kernel.h"

namespace cohort {
namespace optimizer {
namespace {

// The gradient of the loss with weight_decay/2 * |p|^2 added; without decay g itself.
template <bool kDecays, class T>
T slope_of(T gradient, T value, T decay) {
  if constexpr (kDecays) return gradient + decay * value;
  return gradient;
}

template <bool kDecays>
class SgdRule final : public ElementRule {
 public:
  std::string_view name() const override { return kDecays ? "sgd_weight_decay" : "sgd"; }
  std::span<const std::string_view> hyperparameter_names() const override {
    static constexpr std::array<std::string_view, 2> kNames{"learning_rate", "weight_decay"};
    return std::span(kNames).first(kDecays ? 2 : 1);
  }
  std::span<const variable::HyperparameterRange> hyperparameter_ranges() const override {
    static constexpr std::array<variable::HyperparameterRange, 2> kRanges{
        variable::HyperparameterRange::not_negative, variable::HyperparameterRange::not_negative};
    return std::span(kRanges).first(kDecays ? 2 : 1);
  }
  std::span<const std::string_view> slot_names() const override { return {}; }
  std::vector<at::Tensor> create_slots(const at::Tensor&, std::span<const double>) const override {
    return {};
  }

  void update_on_cpu(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor>,
                     const at::Tensor& gradient, std::span<const double> hyper) const override {
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(hyper[0]);
      const T decay = kDecays ? static_cast<T>(hyper[1]) : T{};
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      for_each_element(value.numel(), [=](std::int64_t i) {
        out[i] = p[i] - rate * slope_of<kDecays>(g[i], p[i], decay);
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor>,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    const at::Tensor slope = kDecays ? gradient.add(value, hyper[1]) : gradient;
    at::sub_out(new_value, value, slope, hyper[0]);
  }
};

// TensorFlow's momentum: the accumulator does not include the learning rate.
template <bool kNesterov, bool kDecays>
class MomentumRule final : public ElementRule {
 public:
  std::string_view name() const override {
    if constexpr (kDecays) return kNesterov ? "nesterov_weight_decay" : "momentum_weight_decay";
    return kNesterov ? "nesterov" : "momentum";
  }
  std::span<const std::string_view> hyperparameter_names() const override {
    static constexpr std::array<std::string_view, 3> kNames{"learning_rate", "momentum",
                                                            "weight_decay"};
    return std::span(kNames).first(kDecays ? 3 : 2);
  }
  std::span<const variable::HyperparameterRange> hyperparameter_ranges() const override {
    static constexpr std::array<variable::HyperparameterRange, 3> kRanges{
        variable::HyperparameterRange::not_negative,
        kNesterov ? variable::HyperparameterRange::positive_fraction
                  : variable::HyperparameterRange::fraction,
        variable::HyperparameterRange::not_negative};
    return std::span(kRanges).first(kDecays ? 3 : 2);
  }
  std::span<const std::string_view> slot_names() const override {
    static constexpr std::array<std::string_view, 1> kNames{"momentum"};
    return kNames;
  }
  std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                       std::span<const double>) const override {
    return {at::zeros_like(variable.detach())};
  }

  void update_on_cpu(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                     const at::Tensor& gradient, std::span<const double> hyper) const override {
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(hyper[0]);
      const T momentum = static_cast<T>(hyper[1]);
      const T decay = kDecays ? static_cast<T>(hyper[2]) : T{};
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* a = slots[0].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      for_each_element(value.numel(), [=](std::int64_t i) {
        const T slope = slope_of<kDecays>(g[i], p[i], decay);
        const T accumulated = momentum * a[i] + slope;
        const T step = kNesterov ? slope + momentum * accumulated : accumulated;
        a[i] = accumulated;
        out[i] = p[i] - rate * step;
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    const at::Tensor slope = kDecays ? gradient.add(value, hyper[2]) : gradient;
    slots[0].mul_(hyper[1]).add_(slope);
    const at::Tensor step = kNesterov ? slope.add(slots[0], hyper[1]) : slots[0];
    at::sub_out(new_value, value, step, hyper[0]);
  }
};

}  // namespace

const variable::UpdateRule& sgd_rule() {
  static const SgdRule<false> kRule;
  return kRule;
}

const variable::UpdateRule& momentum_rule() {
  static const MomentumRule<false, false> kRule;
  return kRule;
}

const variable::UpdateRule& nesterov_rule() {
  static const MomentumRule<true, false> kRule;
  return kRule;
}

const variable::UpdateRule& sgd_weight_decay_rule() {
  static const SgdRule<true> kRule;
  return kRule;
}

const variable::UpdateRule& momentum_weight_decay_rule() {
  static const MomentumRule<false, true> kRule;
  return kRule;
}

const variable::UpdateRule& nesterov_weight_decay_rule() {
  static const MomentumRule<true, true> kRule;
  return kRule;
}

namespace {

const variable::UpdateRule& rule_for(const SGDOptions& options) {
  const bool decays = options.weight_decay != 0.0;
  if (options.momentum == 0.0) return decays ? sgd_weight_decay_rule() : sgd_rule();
  if (options.nesterov) return decays ? nesterov_weight_decay_rule() : nesterov_rule();
  return decays ? momentum_weight_decay_rule() : momentum_rule();
}

// The hyperparameters after the learning rate.
std::vector<double> hyper_for(const SGDOptions& options) {
  std::vector<double> hyper;
  if (options.momentum != 0.0) hyper.push_back(options.momentum);
  if (options.weight_decay != 0.0) hyper.push_back(options.weight_decay);
  return hyper;
}

const SGDOptions& checked(const SGDOptions& options) {
  constexpr std::string_view kWhere = "optimizer.sgd";  // for all of its rules
  variable::check_hyperparameter_range(variable::HyperparameterRange::not_negative, kWhere,
                                       "learning_rate", options.learning_rate(0));
  variable::check_hyperparameter_range(variable::HyperparameterRange::fraction, kWhere, "momentum",
                                       options.momentum);
  variable::check_hyperparameter_range(variable::HyperparameterRange::not_negative, kWhere,
                                       "weight_decay", options.weight_decay);
  COHORT_CHECK(!options.nesterov || options.momentum > 0.0, ErrorCode::invalid_argument,
               "[optimizer.sgd] expected momentum > 0 with nesterov, got 0; set .momentum, as 0.9");
  return options;
}

}  // namespace

}  // namespace optimizer

SGD::SGD(std::vector<Variable> variables, SGDOptions options)
    : Optimizer(std::move(variables), optimizer::rule_for(optimizer::checked(options)),
                options.learning_rate, optimizer::hyper_for(options), options.name) {}

}  // namespace cohort
