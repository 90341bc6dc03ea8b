// SPDX-License-Identifier: Apache-2.0
// Adagrad with the formula of torch::optim.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/addcdiv.h>

#include <cmath>
#include <cstdint>

#include "cohort/optimizer/optimizers.h"
#include "cohort/optimizer/rules/formula.h"
#include "cohort/optimizer/rules/kernel.h"

namespace cohort {
namespace optimizer {
namespace {

class AdagradRule final : public ElementRule {
 public:
  using enum variable::HyperparameterRange;
  AdagradRule()
      : ElementRule("adagrad",
                    {{"learning_rate", not_negative},
                     {"initial_accumulator", not_negative},
                     {"lr_decay", not_negative},
                     {"eps", not_negative},
                     {"weight_decay", not_negative}},
                    {"sum", "step"}) {}
  std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                       std::span<const double> hyper) const override {
    return {slot_of(variable, hyper[1]), zero_steps()};
  }

  // With an eps of 0, a sum and a gradient of 0 give NaN.
  bool leaves_rows_of_zeros(std::span<const double> hyper) const override {
    return hyper[3] >= kLeastNormal && hyper[4] == 0.0;
  }
  void update_on_cpu(const UpdatedElements& elements, at::Tensor& new_value,
                     const at::Tensor& value, std::span<at::Tensor> slots,
                     const at::Tensor& gradient, std::span<const double> hyper) const override {
    const double decayed = next_rate(slots[1], hyper);
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(decayed);
      const T eps = static_cast<T>(hyper[3]);
      const T decay = static_cast<T>(hyper[4]);
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* sums = slots[0].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      with_flag(hyper[4] != 0.0, [&](auto decays) {
        elements.for_each([=](std::int64_t i, std::int64_t j) {
          const T slope = slope_of(decays, g[j], p[i], decay);
          const T sum = sums[i] + slope * slope;
          sums[i] = sum;
          out[i] = p[i] - rate * slope / (std::sqrt(sum) + eps);
        });
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    const double rate = next_rate(slots[1], hyper);
    const at::Tensor slope = slope_of(gradient, value, hyper[4]);
    slots[0].addcmul_(slope, slope);
    at::addcdiv_out(new_value, value, slope, slots[0].sqrt().add_(hyper[3]), -rate);
  }

 private:
  // Counts the step.
  static double next_rate(const at::Tensor& step, std::span<const double> hyper) {
    const double earlier = static_cast<double>((*step.data_ptr<std::int64_t>())++);
    return hyper[0] / (1.0 + earlier * hyper[2]);
  }
};

}  // namespace

const variable::UpdateRule& adagrad_rule() { return the<AdagradRule>(); }

const variable::UpdateRule& tensorflow_adagrad_rule();

namespace {

const variable::UpdateRule& rule_for(const AdagradOptions& options) {
  if (!is_tensorflow(options.formula)) return adagrad_rule();
  expect_torch_only("adagrad", "lr_decay", options.lr_decay != 0.0);
  expect_torch_only("adagrad", "eps", options.eps.has_value());
  expect_torch_only("adagrad", "weight_decay", options.weight_decay != 0.0);
  return tensorflow_adagrad_rule();
}

// The hyperparameters after the learning rate.
std::vector<double> hyper_for(const AdagradOptions& options) {
  constexpr ByFormula kStart{.torch = 0.0, .tensorflow = 0.1};
  const double start = kStart(options.initial_accumulator, options.formula);
  if (is_tensorflow(options.formula)) return {start};
  return {start, options.lr_decay, options.eps.value_or(1e-10), options.weight_decay};
}

}  // namespace
}  // namespace optimizer

Adagrad::Adagrad(std::vector<Variable> variables, AdagradOptions options)
    : Optimizer(std::move(variables), optimizer::rule_for(options),
                optimizer::ByFormula{.torch = 0.01, .tensorflow = 0.001}(options.learning_rate,
                                                                         options.formula),
                optimizer::hyper_for(options), {options.name, options.lazy_rows, options.groups}) {}

}  // namespace cohort
