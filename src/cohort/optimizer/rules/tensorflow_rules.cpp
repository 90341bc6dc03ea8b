// SPDX-License-Identifier: Apache-2.0
// The rules with TensorFlow's formulas (OptimizerFormula::tensorflow). Their slots have LibTorch's
// names, as those of the other rules. With an epsilon or a start of 0 the first zero gradient would
// be 0/0, so these are positive.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/addcdiv.h>

#include <cmath>
#include <cstdint>

#include "cohort/optimizer/rules/kernel.h"

namespace cohort::optimizer {
namespace {

class TensorflowRMSpropRule final : public ElementRule {
 public:
  using enum variable::HyperparameterRange;
  TensorflowRMSpropRule()
      : ElementRule("tensorflow_rmsprop",
                    {{"learning_rate", not_negative}, {"alpha", fraction}, {"eps", positive}},
                    {"square_avg"}) {}
  std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                       std::span<const double>) const override {
    return {slot_of(variable, 1.0)};
  }

  void update_on_cpu(const UpdatedElements& elements, at::Tensor& new_value,
                     const at::Tensor& value, std::span<at::Tensor> slots,
                     const at::Tensor& gradient, std::span<const double> hyper) const override {
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(hyper[0]);
      const T alpha = static_cast<T>(hyper[1]), rest = static_cast<T>(1.0 - hyper[1]);
      const T eps = static_cast<T>(hyper[2]);
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* squares = slots[0].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      elements.for_each([=](std::int64_t i, std::int64_t j) {
        const T square = alpha * squares[i] + rest * g[j] * g[j];
        squares[i] = square;
        out[i] = p[i] - rate * g[j] / std::sqrt(square + eps);
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
  using enum variable::HyperparameterRange;
  TensorflowAdagradRule()
      : ElementRule("tensorflow_adagrad",
                    {{"learning_rate", not_negative}, {"initial_accumulator", positive}}, {"sum"}) {
  }
  std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                       std::span<const double> hyper) const override {
    return {slot_of(variable, hyper[1])};
  }

  bool leaves_rows_of_zeros(std::span<const double> hyper) const override {
    return hyper[1] >= kLeastNormal;
  }
  void update_on_cpu(const UpdatedElements& elements, at::Tensor& new_value,
                     const at::Tensor& value, std::span<at::Tensor> slots,
                     const at::Tensor& gradient, std::span<const double> hyper) const override {
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(hyper[0]);
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* sums = slots[0].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      elements.for_each([=](std::int64_t i, std::int64_t j) {
        const T sum = sums[i] + g[j] * g[j];
        sums[i] = sum;
        out[i] = p[i] - rate * g[j] / std::sqrt(sum);
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

const variable::UpdateRule& tensorflow_rmsprop_rule() { return the<TensorflowRMSpropRule>(); }
const variable::UpdateRule& tensorflow_adagrad_rule() { return the<TensorflowAdagradRule>(); }

}  // namespace cohort::optimizer
