// SPDX-License-Identifier: Apache-2.0
// RMSprop with the formula of torch::optim.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/sub.h>

#include <cmath>
#include <cstdint>

#include "cohort/optimizer/optimizers.h"
#include "cohort/optimizer/rules/formula.h"
#include "cohort/optimizer/rules/kernel.h"

namespace cohort {
namespace optimizer {
namespace {

template <bool kIsCentered, bool kHasMomentum>
class RMSpropRule final : public ElementRule {
 public:
  using enum variable::HyperparameterRange;
  RMSpropRule()
      : ElementRule(kIsCentered ? (kHasMomentum ? "rmsprop_centered_momentum" : "rmsprop_centered")
                                : (kHasMomentum ? "rmsprop_momentum" : "rmsprop"),
                    {{"learning_rate", not_negative},
                     {"alpha", fraction},
                     {"eps", not_negative},
                     {"weight_decay", not_negative}},
                    {"square_avg"}) {
    if (kIsCentered) add_slot("grad_avg");
    if (kHasMomentum) add({"momentum", fraction});
    if (kHasMomentum) add_slot("momentum_buffer");
  }

  void update_on_cpu(const UpdatedElements& elements, at::Tensor& new_value,
                     const at::Tensor& value, std::span<at::Tensor> slots,
                     const at::Tensor& gradient, std::span<const double> hyper) const override {
    if (has_paused(hyper)) {
      without_momentum().update_on_cpu(elements, new_value, value, other_slots(slots), gradient,
                                       hyper.first(4));
      return;
    }
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(hyper[0]);
      const T alpha = static_cast<T>(hyper[1]), rest = static_cast<T>(1.0 - hyper[1]);
      const T eps = static_cast<T>(hyper[2]);
      const T decay = static_cast<T>(hyper[3]);
      const T momentum = kHasMomentum ? static_cast<T>(hyper[4]) : T{};
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* squares = slots[0].data_ptr<T>();
      T* means = kIsCentered ? slots[1].data_ptr<T>() : nullptr;
      T* buffer = kHasMomentum ? slots.back().data_ptr<T>() : nullptr;
      T* out = new_value.data_ptr<T>();
      with_flag(hyper[3] != 0.0, [&](auto decays) {
        elements.for_each([=](std::int64_t i, std::int64_t j) {
          const T slope = slope_of(decays, g[j], p[i], decay);
          const T square = alpha * squares[i] + rest * slope * slope;
          T variance = square;
          squares[i] = square;
          if constexpr (kIsCentered) {
            const T mean = alpha * means[i] + rest * slope;
            means[i] = mean;
            variance = square - mean * mean;
          }
          const T root = std::sqrt(variance) + eps;
          if constexpr (kHasMomentum) {
            const T accumulated = momentum * buffer[i] + slope / root;
            buffer[i] = accumulated;
            out[i] = p[i] - rate * accumulated;
          } else {
            out[i] = p[i] - rate * slope / root;
          }
        });
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    if (has_paused(hyper)) {
      without_momentum().update_anywhere(new_value, value, other_slots(slots), gradient,
                                         hyper.first(4));
      return;
    }
    const at::Tensor slope = slope_of(gradient, value, hyper[3]);
    slots[0].mul_(hyper[1]).addcmul_(slope, slope, 1.0 - hyper[1]);
    if (kIsCentered) slots[1].mul_(hyper[1]).add_(slope, 1.0 - hyper[1]);
    const at::Tensor root =
        (kIsCentered ? slots[0].addcmul(slots[1], slots[1], -1).sqrt_() : slots[0].sqrt())
            .add_(hyper[2]);
    if (kHasMomentum) {
      slots.back().mul_(hyper[4]).addcdiv_(slope, root);
      at::sub_out(new_value, value, slots.back(), hyper[0]);
    } else {
      at::addcdiv_out(new_value, value, slope, root, -hyper[0]);
    }
  }

 private:
  // While the momentum is 0, its buffer stays as it is, as in torch::optim::RMSprop.
  static bool has_paused(std::span<const double> hyper) { return kHasMomentum && hyper[4] == 0.0; }
  static const ElementRule& without_momentum() { return the<RMSpropRule<kIsCentered, false>>(); }
  static std::span<at::Tensor> other_slots(std::span<at::Tensor> slots) {
    return slots.first(kIsCentered ? 2 : 1);
  }
};

}  // namespace

const variable::UpdateRule& rmsprop_rule() { return the<RMSpropRule<false, false>>(); }
const variable::UpdateRule& rmsprop_momentum_rule() { return the<RMSpropRule<false, true>>(); }
const variable::UpdateRule& rmsprop_centered_rule() { return the<RMSpropRule<true, false>>(); }
const variable::UpdateRule& rmsprop_centered_momentum_rule() {
  return the<RMSpropRule<true, true>>();
}

const variable::UpdateRule& tensorflow_rmsprop_rule();

namespace {

const variable::UpdateRule& rule_for(const RMSpropOptions& options) {
  variable::check_hyperparameter_range(variable::HyperparameterRange::fraction, "optimizer.rmsprop",
                                       "momentum", options.momentum);
  if (is_tensorflow(options.formula)) {
    expect_torch_only("rmsprop", "weight_decay", options.weight_decay != 0.0);
    expect_torch_only("rmsprop", "momentum", options.momentum != 0.0);
    expect_torch_only("rmsprop", "centered", options.centered);
    return tensorflow_rmsprop_rule();
  }
  if (options.centered)
    return options.momentum == 0.0 ? rmsprop_centered_rule() : rmsprop_centered_momentum_rule();
  return options.momentum == 0.0 ? rmsprop_rule() : rmsprop_momentum_rule();
}

// The hyperparameters after the learning rate.
std::vector<double> hyper_for(const RMSpropOptions& options) {
  constexpr ByFormula kAlpha{.torch = 0.99, .tensorflow = 0.9};
  constexpr ByFormula kEps{.torch = 1e-8, .tensorflow = 1e-10};
  std::vector<double> hyper{kAlpha(options.alpha, options.formula),
                            kEps(options.eps, options.formula)};
  if (is_tensorflow(options.formula)) return hyper;
  hyper.push_back(options.weight_decay);
  if (options.momentum != 0.0) hyper.push_back(options.momentum);
  return hyper;
}

}  // namespace
}  // namespace optimizer

RMSprop::RMSprop(std::vector<Variable> variables, RMSpropOptions options)
    : Optimizer(std::move(variables), optimizer::rule_for(options),
                optimizer::ByFormula{.torch = 0.01, .tensorflow = 0.001}(options.learning_rate,
                                                                         options.formula),
                optimizer::hyper_for(options), {options.name, options.lazy_rows, options.groups}) {}

}  // namespace cohort
