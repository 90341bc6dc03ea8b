// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizers.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/ones_like.h>

#include <array>
#include <cmath>

#include "cohort/optimizer/internal/kernel.h"

namespace cohort {
namespace optimizer {
namespace {

class RmspropRule final : public ElementRule {
 public:
  std::string_view name() const override { return "rmsprop"; }
  std::span<const std::string_view> hyperparameter_names() const override {
    static constexpr std::array<std::string_view, 3> kNames{"learning_rate", "decay", "epsilon"};
    return kNames;
  }
  // With epsilon 0 a mean square that has decayed to 0 would be 0/0.
  std::span<const variable::HyperparameterRange> hyperparameter_ranges() const override {
    static constexpr std::array<variable::HyperparameterRange, 3> kRanges{
        variable::HyperparameterRange::not_negative, variable::HyperparameterRange::fraction,
        variable::HyperparameterRange::positive};
    return kRanges;
  }
  std::span<const std::string_view> slot_names() const override {
    static constexpr std::array<std::string_view, 1> kNames{"mean_square"};
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
      const T decay = static_cast<T>(hyper[1]);
      const T rest = static_cast<T>(1.0 - hyper[1]);
      const T epsilon = static_cast<T>(hyper[2]);
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* r = slots[0].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      for_each_element(value.numel(), [=](std::int64_t i) {
        const T mean_square = decay * r[i] + rest * g[i] * g[i];
        r[i] = mean_square;
        out[i] = p[i] - rate * g[i] / std::sqrt(mean_square + epsilon);
      });
    });
  }

  void update_anywhere(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                       const at::Tensor& gradient, std::span<const double> hyper) const override {
    slots[0].mul_(hyper[1]).addcmul_(gradient, gradient, 1.0 - hyper[1]);
    at::addcdiv_out(new_value, value, gradient, slots[0].add(hyper[2]).sqrt_(), -hyper[0]);
  }
};

}  // namespace

const variable::UpdateRule& rmsprop_rule() {
  static const RmspropRule kRule;
  return kRule;
}

}  // namespace optimizer

RMSprop::RMSprop(std::vector<Variable> variables, RMSpropOptions options)
    : Optimizer(std::move(variables), optimizer::rmsprop_rule(), options.learning_rate,
                {options.decay, options.epsilon}, options.name) {}

}  // namespace cohort
