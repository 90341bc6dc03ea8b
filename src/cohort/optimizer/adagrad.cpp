// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizers.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/full_like.h>

#include <array>
#include <cmath>

#include "cohort/optimizer/internal/kernel.h"

namespace cohort {
namespace optimizer {
namespace {

class AdagradRule final : public ElementRule {
 public:
  std::string_view name() const override { return "adagrad"; }
  std::span<const std::string_view> hyperparameter_names() const override {
    static constexpr std::array<std::string_view, 2> kNames{"learning_rate", "initial_accumulator"};
    return kNames;
  }
  // With an accumulator of 0 the first zero gradient would be 0/0.
  std::span<const variable::HyperparameterRange> hyperparameter_ranges() const override {
    static constexpr std::array<variable::HyperparameterRange, 2> kRanges{
        variable::HyperparameterRange::not_negative, variable::HyperparameterRange::positive};
    return kRanges;
  }
  std::span<const std::string_view> slot_names() const override {
    static constexpr std::array<std::string_view, 1> kNames{"accumulator"};
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
      T* a = slots[0].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      for_each_element(value.numel(), [=](std::int64_t i) {
        const T accumulated = a[i] + g[i] * g[i];
        a[i] = accumulated;
        out[i] = p[i] - rate * g[i] / std::sqrt(accumulated);
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    slots[0].addcmul_(gradient, gradient);
    at::addcdiv_out(new_value, value, gradient, slots[0].sqrt(), -hyper[0]);
  }
};

}  // namespace

const variable::UpdateRule& adagrad_rule() {
  static const AdagradRule kRule;
  return kRule;
}

}  // namespace optimizer

Adagrad::Adagrad(std::vector<Variable> variables, AdagradOptions options)
    : Optimizer(std::move(variables), optimizer::adagrad_rule(), options.learning_rate,
                {options.initial_accumulator}, options.name) {}

}  // namespace cohort
