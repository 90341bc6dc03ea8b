// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/sgd.h"

#include <ATen/ops/zeros_like.h>

#include <array>

#include "cohort/optimizer/internal/kernel.h"

namespace cohort {
namespace optimizer {
namespace {

class SgdRule final : public UpdateRule {
 public:
  std::string_view name() const override { return "sgd"; }
  std::span<const std::string_view> hyper_names() const override {
    static constexpr std::array<std::string_view, 1> kNames{"learning_rate"};
    return kNames;
  }
  std::span<const HyperRange> hyper_ranges() const override {
    static constexpr std::array<HyperRange, 1> kRanges{HyperRange::not_negative};
    return kRanges;
  }
  std::span<const std::string_view> slot_names() const override { return {}; }
  std::vector<at::Tensor> create_slots(const at::Tensor&, std::span<const double>) const override {
    return {};
  }

  void update(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor>,
              const at::Tensor& gradient, std::span<const double> hyper) const override {
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(hyper[0]);
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      for_each_element(value.numel(), [=](std::int64_t i) { out[i] = p[i] - rate * g[i]; });
    });
  }
};

// Momentum as TensorFlow has it: the learning rate stays outside of the accumulator.
template <bool kNesterov>
class MomentumRule final : public UpdateRule {
 public:
  std::string_view name() const override { return kNesterov ? "nesterov" : "momentum"; }
  std::span<const std::string_view> hyper_names() const override {
    static constexpr std::array<std::string_view, 2> kNames{"learning_rate", "momentum"};
    return kNames;
  }
  std::span<const HyperRange> hyper_ranges() const override {
    static constexpr std::array<HyperRange, 2> kRanges{HyperRange::not_negative,
                                                       HyperRange::fraction};
    return kRanges;
  }
  std::span<const std::string_view> slot_names() const override {
    static constexpr std::array<std::string_view, 1> kNames{"momentum"};
    return kNames;
  }
  std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                       std::span<const double>) const override {
    return {at::zeros_like(variable.detach())};
  }

  void update(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
              const at::Tensor& gradient, std::span<const double> hyper) const override {
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(hyper[0]);
      const T momentum = static_cast<T>(hyper[1]);
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* a = slots[0].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      for_each_element(value.numel(), [=](std::int64_t i) {
        const T accumulated = momentum * a[i] + g[i];
        const T step = kNesterov ? g[i] + momentum * accumulated : accumulated;
        a[i] = accumulated;
        out[i] = p[i] - rate * step;
      });
    });
  }
};

const UpdateRule& rule_for(const SgdOptions& options) {
  if (options.momentum == 0.0) return sgd_rule();
  return options.nesterov ? nesterov_rule() : momentum_rule();
}

std::vector<double> hyper_for(const SgdOptions& options) {
  if (options.momentum == 0.0) return {options.learning_rate};
  return {options.learning_rate, options.momentum};
}

SgdOptions checked(const SgdOptions& options) {
  constexpr std::string_view kWhere = "optimizer.sgd";  // whichever of its rules it will be
  check_hyper_range(HyperRange::not_negative, kWhere, "learning_rate", options.learning_rate);
  check_hyper_range(HyperRange::fraction, kWhere, "momentum", options.momentum);
  COHORT_CHECK(!options.nesterov || options.momentum > 0.0, ErrorCode::invalid_argument,
               "[optimizer.sgd] expected momentum > 0 with nesterov, got 0; set .momentum, as 0.9");
  return options;
}

}  // namespace

const UpdateRule& sgd_rule() {
  static const SgdRule kRule;
  return kRule;
}

const UpdateRule& momentum_rule() {
  static const MomentumRule<false> kRule;
  return kRule;
}

const UpdateRule& nesterov_rule() {
  static const MomentumRule<true> kRule;
  return kRule;
}

}  // namespace optimizer

Sgd::Sgd(std::vector<Variable> variables, SgdOptions options)
    : Optimizer(std::move(variables), optimizer::rule_for(optimizer::checked(options)),
                optimizer::hyper_for(options)) {}

}  // namespace cohort
