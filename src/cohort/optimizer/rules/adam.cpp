// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW with the formulas of torch::optim and of TensorFlow.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/maximum.h>

#include <cmath>
#include <cstdint>

#include "cohort/optimizer/optimizers.h"
#include "cohort/optimizer/rules/formula.h"
#include "cohort/optimizer/rules/kernel.h"

namespace cohort {
namespace optimizer {
namespace {

// `kIsDecoupled`: AdamW. TensorFlow corrects the rate alone; with an epsilon of 0 its first zero
// gradient would be 0/0.
template <bool kIsDecoupled, bool kAmsgrad, OptimizerFormula kFormula = OptimizerFormula::torch>
class AdamRule final : public ElementRule {
 public:
  using enum variable::HyperparameterRange;
  AdamRule()
      : ElementRule(kIsTensorflow  ? (kIsDecoupled ? "tensorflow_adamw" : "tensorflow_adam")
                    : kIsDecoupled ? (kAmsgrad ? "adamw_amsgrad" : "adamw")
                                   : (kAmsgrad ? "adam_amsgrad" : "adam"),
                    {{"learning_rate", not_negative},
                     {"beta_1", fraction},
                     {"beta_2", fraction},
                     {"eps", kIsTensorflow ? positive : not_negative},
                     {"weight_decay", not_negative}},
                    {"exp_avg", "exp_avg_sq", "step"}) {
    if (kAmsgrad) add_slot("max_exp_avg_sq");
  }

  void update_on_cpu(const UpdatedElements& elements, at::Tensor& new_value,
                     const at::Tensor& value, std::span<at::Tensor> slots,
                     const at::Tensor& gradient, std::span<const double> hyper) const override {
    const Step step = next_step(slots[2], hyper);
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(step.rate);
      const T correction = static_cast<T>(step.root_of_correction);
      const T beta_1 = static_cast<T>(hyper[1]), rest_1 = static_cast<T>(1.0 - hyper[1]);
      const T beta_2 = static_cast<T>(hyper[2]), rest_2 = static_cast<T>(1.0 - hyper[2]);
      const T eps = static_cast<T>(hyper[3]);
      const T decay = static_cast<T>(hyper[4]);
      const T kept = kIsDecoupled ? static_cast<T>(1.0 - hyper[0] * hyper[4]) : T{1};
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* m = slots[0].data_ptr<T>();
      T* v = slots[1].data_ptr<T>();
      T* largest = kAmsgrad ? slots[3].data_ptr<T>() : v;
      T* out = new_value.data_ptr<T>();
      with_flag(!kIsDecoupled && hyper[4] != 0.0, [&](auto decays) {
        elements.for_each([=](std::int64_t i, std::int64_t j) {
          const T slope = slope_of(decays, g[j], p[i], decay);
          const T start = kIsDecoupled ? kept * p[i] : p[i];
          const T mean = beta_1 * m[i] + rest_1 * slope;
          const T square = beta_2 * v[i] + rest_2 * slope * slope;
          const T used = kAmsgrad && square <= largest[i] ? largest[i] : square;
          m[i] = mean;
          v[i] = square;
          if constexpr (kAmsgrad) largest[i] = used;
          const T root = kIsTensorflow ? std::sqrt(used) : std::sqrt(used) / correction;
          out[i] = start - rate * mean / (root + eps);
        });
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    const Step step = next_step(slots[2], hyper);
    const at::Tensor slope = kIsDecoupled ? gradient : slope_of(gradient, value, hyper[4]);
    const at::Tensor start = kIsDecoupled ? value.mul(1.0 - hyper[0] * hyper[4]) : value;
    slots[0].mul_(hyper[1]).add_(slope, 1.0 - hyper[1]);
    slots[1].mul_(hyper[2]).addcmul_(slope, slope, 1.0 - hyper[2]);
    if (kAmsgrad) at::maximum_out(slots[3], slots[1], slots[3]);
    const at::Tensor root = slots[kAmsgrad ? 3 : 1].sqrt();
    if (!kIsTensorflow) root.div_(step.root_of_correction);
    at::addcdiv_out(new_value, start, slots[0], root.add_(hyper[3]), -step.rate);
  }

 private:
  static constexpr bool kIsTensorflow = is_tensorflow(kFormula);

  struct Step {
    double rate = 0.0;                // corrected for the start of exp_avg at 0
    double root_of_correction = 0.0;  // the same for exp_avg_sq
  };
  // Counts the step.
  static Step next_step(const at::Tensor& step, std::span<const double> hyper) {
    const double t = static_cast<double>(++*step.data_ptr<std::int64_t>());
    if (kIsTensorflow) {
      return {hyper[0] * std::sqrt(1.0 - std::pow(hyper[2], t)) / (1.0 - std::pow(hyper[1], t)),
              1.0};
    }
    return {hyper[0] / (1.0 - std::pow(hyper[1], t)), std::sqrt(1.0 - std::pow(hyper[2], t))};
  }
};

}  // namespace

const variable::UpdateRule& adam_rule() { return the<AdamRule<false, false>>(); }
const variable::UpdateRule& adam_amsgrad_rule() { return the<AdamRule<false, true>>(); }
const variable::UpdateRule& adamw_rule() { return the<AdamRule<true, false>>(); }
const variable::UpdateRule& adamw_amsgrad_rule() { return the<AdamRule<true, true>>(); }

const variable::UpdateRule& tensorflow_adam_rule() {
  return the<AdamRule<false, false, OptimizerFormula::tensorflow>>();
}
const variable::UpdateRule& tensorflow_adamw_rule() {
  return the<AdamRule<true, false, OptimizerFormula::tensorflow>>();
}

namespace {

constexpr ByFormula kAdamEps{.torch = 1e-8, .tensorflow = 1e-7};

const variable::UpdateRule& rule_for(const AdamOptions& options) {
  if (!is_tensorflow(options.formula)) return options.amsgrad ? adam_amsgrad_rule() : adam_rule();
  expect_torch_only("adam", "amsgrad", options.amsgrad);
  return tensorflow_adam_rule();
}

const variable::UpdateRule& rule_for(const AdamWOptions& options) {
  if (!is_tensorflow(options.formula)) return options.amsgrad ? adamw_amsgrad_rule() : adamw_rule();
  expect_torch_only("adamw", "amsgrad", options.amsgrad);
  return tensorflow_adamw_rule();
}

}  // namespace
}  // namespace optimizer

Adam::Adam(std::vector<Variable> variables, AdamOptions options)
    : Optimizer(std::move(variables), optimizer::rule_for(options), options.learning_rate,
                {options.beta_1, options.beta_2, optimizer::kAdamEps(options.eps, options.formula),
                 options.weight_decay},
                {options.name, options.lazy_rows, options.groups}) {}

AdamW::AdamW(std::vector<Variable> variables, AdamWOptions options)
    : Optimizer(std::move(variables), optimizer::rule_for(options), options.learning_rate,
                {options.beta_1, options.beta_2, optimizer::kAdamEps(options.eps, options.formula),
                 optimizer::ByFormula{.torch = 0.01, .tensorflow = 0.004}(options.weight_decay,
                                                                          options.formula)},
                {options.name, options.lazy_rows, options.groups}) {}

}  // namespace cohort
