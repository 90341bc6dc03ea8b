// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/adam.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <cmath>

#include "cohort/optimizer/internal/kernel.h"

namespace cohort {
namespace optimizer {
namespace {

class AdamRule final : public UpdateRule {
 public:
  std::string_view name() const override { return "adam"; }
  std::span<const std::string_view> hyper_names() const override {
    static constexpr std::array<std::string_view, 4> kNames{"learning_rate", "beta_1", "beta_2",
                                                            "epsilon"};
    return kNames;
  }
  // With epsilon 0 the first zero gradient would be 0/0.
  std::span<const HyperRange> hyper_ranges() const override {
    static constexpr std::array<HyperRange, 4> kRanges{
        HyperRange::not_negative, HyperRange::fraction, HyperRange::fraction, HyperRange::positive};
    return kRanges;
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

  void update(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
              const at::Tensor& gradient, std::span<const double> hyper) const override {
    const double t = static_cast<double>(++*slots[2].data_ptr<std::int64_t>());
    const double corrected =
        hyper[0] * std::sqrt(1.0 - std::pow(hyper[2], t)) / (1.0 - std::pow(hyper[1], t));
    with_element_type(value, name(), [&]<class T>(T) {
      const T rate = static_cast<T>(corrected);
      const T beta_1 = static_cast<T>(hyper[1]);
      const T beta_2 = static_cast<T>(hyper[2]);
      const T rest_1 = static_cast<T>(1.0 - hyper[1]);
      const T rest_2 = static_cast<T>(1.0 - hyper[2]);
      const T epsilon = static_cast<T>(hyper[3]);
      const T* p = value.data_ptr<T>();
      const T* g = gradient.data_ptr<T>();
      T* m = slots[0].data_ptr<T>();
      T* v = slots[1].data_ptr<T>();
      T* out = new_value.data_ptr<T>();
      for_each_element(value.numel(), [=](std::int64_t i) {
        const T mean = beta_1 * m[i] + rest_1 * g[i];
        const T square = beta_2 * v[i] + rest_2 * g[i] * g[i];
        m[i] = mean;
        v[i] = square;
        out[i] = p[i] - rate * mean / (std::sqrt(square) + epsilon);
      });
    });
  }
};

}  // namespace

const UpdateRule& adam_rule() {
  static const AdamRule kRule;
  return kRule;
}

}  // namespace optimizer

Adam::Adam(std::vector<Variable> variables, AdamOptions options)
    : Optimizer(std::move(variables), optimizer::adam_rule(),
                {options.learning_rate, options.beta_1, options.beta_2, options.epsilon}) {}

}  // namespace cohort
