// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizers.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/sub.h>

#include <array>
#include <cstdint>

#include "cohort/optimizer/rules/kernel.h"

namespace cohort {
namespace optimizer {
namespace {

class SGDRule final : public ElementRule {
 public:
  using enum variable::HyperparameterRange;
  SGDRule()
      : ElementRule("sgd", {{"learning_rate", not_negative}, {"weight_decay", not_negative}}, {}) {}

  bool leaves_rows_of_zeros(std::span<const double> hyper) const override {
    return hyper[1] == 0.0;
  }
  void update_on_cpu(const UpdatedElements& elements, at::Tensor& new_value,
                     const at::Tensor& value, std::span<at::Tensor>, const at::Tensor& gradient,
                     std::span<const double> hyper) const override {
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(hyper[0]);
      const T decay = static_cast<T>(hyper[1]);
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      with_flag(hyper[1] != 0.0, [&](auto decays) {
        elements.for_each([=](std::int64_t i, std::int64_t j) {
          out[i] = p[i] - rate * slope_of(decays, g[j], p[i], decay);
        });
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor>,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    at::sub_out(new_value, value, slope_of(gradient, value, hyper[1]), hyper[0]);
  }
};

enum class Momentum : std::uint8_t { heavy_ball, nesterov, dampened };

// The buffer does not include the learning rate, in LibTorch as in TensorFlow.
template <Momentum kMomentum>
class MomentumRule final : public ElementRule {
 public:
  using enum variable::HyperparameterRange;
  MomentumRule()
      : ElementRule(kIsDampened                       ? "dampened_momentum"
                    : kMomentum == Momentum::nesterov ? "nesterov"
                                                      : "momentum",
                    {{"learning_rate", not_negative},
                     {"momentum", kMomentum == Momentum::nesterov ? positive_fraction : fraction},
                     {"weight_decay", not_negative}},
                    {"momentum_buffer"}) {
    if (kIsDampened) add({"dampening", not_negative});
    if (kIsDampened) add_slot("step");
  }

  bool leaves_rows_of_zeros(std::span<const double> hyper) const override {
    return hyper[1] == 0.0 && hyper[2] == 0.0;
  }
  void update_on_cpu(const UpdatedElements& elements, at::Tensor& new_value,
                     const at::Tensor& value, std::span<at::Tensor> slots,
                     const at::Tensor& gradient, std::span<const double> hyper) const override {
    if (hyper[1] == 0.0) {
      the<SGDRule>().update_on_cpu(elements, new_value, value, {}, gradient,
                                   without_momentum(hyper));
      return;
    }
    const double part = part_of_gradient(slots, hyper);
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(hyper[0]);
      const T momentum = static_cast<T>(hyper[1]);
      const T decay = static_cast<T>(hyper[2]);
      const T added = static_cast<T>(part);
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* buffer = slots[0].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      with_flag(hyper[2] != 0.0, [&](auto decays) {
        elements.for_each([=](std::int64_t i, std::int64_t j) {
          const T slope = slope_of(decays, g[j], p[i], decay);
          const T accumulated = momentum * buffer[i] + (kIsDampened ? added * slope : slope);
          const bool looks_ahead = kMomentum == Momentum::nesterov;
          buffer[i] = accumulated;
          out[i] = p[i] - rate * (looks_ahead ? slope + momentum * accumulated : accumulated);
        });
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    if (hyper[1] == 0.0) {
      the<SGDRule>().update_anywhere(new_value, value, {}, gradient, without_momentum(hyper));
      return;
    }
    const at::Tensor slope = slope_of(gradient, value, hyper[2]);
    slots[0].mul_(hyper[1]).add_(slope, part_of_gradient(slots, hyper));
    const at::Tensor step =
        kMomentum == Momentum::nesterov ? slope.add(slots[0], hyper[1]) : slots[0];
    at::sub_out(new_value, value, step, hyper[0]);
  }

 private:
  static constexpr bool kIsDampened = kMomentum == Momentum::dampened;

  // While the momentum is 0, the buffer stays as it is, as in torch::optim::SGD.
  static std::array<double, 2> without_momentum(std::span<const double> hyper) {
    return {hyper[0], hyper[2]};
  }
  // The factor with which the gradient is added to the buffer. The first one is added undampened.
  static double part_of_gradient(std::span<at::Tensor> slots, std::span<const double> hyper) {
    if (!kIsDampened) return 1.0;
    return ++*slots[1].data_ptr<std::int64_t>() == 1 ? 1.0 : 1.0 - hyper[3];
  }
};

}  // namespace

const variable::UpdateRule& sgd_rule() { return the<SGDRule>(); }
const variable::UpdateRule& momentum_rule() { return the<MomentumRule<Momentum::heavy_ball>>(); }
const variable::UpdateRule& nesterov_rule() { return the<MomentumRule<Momentum::nesterov>>(); }
const variable::UpdateRule& dampened_momentum_rule() {
  return the<MomentumRule<Momentum::dampened>>();
}

namespace {

const variable::UpdateRule& rule_for(const SGDOptions& options) {
  if (options.momentum == 0.0) return sgd_rule();
  if (options.dampening != 0.0) return dampened_momentum_rule();
  return options.nesterov ? nesterov_rule() : momentum_rule();
}

// The hyperparameters after the learning rate.
std::vector<double> hyper_for(const SGDOptions& options) {
  if (options.momentum == 0.0) return {options.weight_decay};
  std::vector<double> hyper{options.momentum, options.weight_decay};
  if (options.dampening != 0.0) hyper.push_back(options.dampening);
  return hyper;
}

const SGDOptions& checked(const SGDOptions& options) {
  constexpr std::string_view kWhere = "optimizer.sgd";  // for all of its rules
  using enum variable::HyperparameterRange;
  variable::check_hyperparameter_range(not_negative, kWhere, "learning_rate",
                                       options.learning_rate(0));
  variable::check_hyperparameter_range(fraction, kWhere, "momentum", options.momentum);
  variable::check_hyperparameter_range(not_negative, kWhere, "dampening", options.dampening);
  variable::check_hyperparameter_range(not_negative, kWhere, "weight_decay", options.weight_decay);
  COHORT_CHECK(!options.nesterov || options.momentum > 0.0, ErrorCode::invalid_argument,
               "[optimizer.sgd] expected momentum > 0 with nesterov, got 0; set .momentum, as 0.9");
  COHORT_CHECK(!options.nesterov || options.dampening == 0.0, ErrorCode::invalid_argument,
               "[optimizer.sgd] expected dampening 0 with nesterov, got ", options.dampening,
               "; leave out one of them");
  return options;
}

}  // namespace

}  // namespace optimizer

SGD::SGD(std::vector<Variable> variables, SGDOptions options)
    : Optimizer(std::move(variables), optimizer::rule_for(optimizer::checked(options)),
                options.learning_rate, optimizer::hyper_for(options),
                {options.name, options.lazy_rows, options.groups}) {}

}  // namespace cohort
