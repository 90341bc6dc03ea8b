// SPDX-License-Identifier: Apache-2.0
// The training steps that benchmarks of strategies compare: small networks, their data, and the
// ways to train them.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/variable/variable.h"

namespace cohort::bench {

using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kRows = 32;  // of each replica
constexpr double kRate = 0.001;

struct Network {
  std::string title;
  std::vector<std::int64_t> widths;
  int steps;  // in a round
};

inline Tensors weights_of(const Network& network) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  const at::TensorOptions options(at::kFloat);
  Tensors weights;
  for (std::size_t i = 1; i < network.widths.size(); ++i) {
    const std::int64_t rows = network.widths[i], columns = network.widths[i - 1];
    weights.push_back(at::randn({rows, columns}, generator, options).mul_(0.05));
    weights.push_back(at::randn({rows}, generator, options).mul_(0.05));
  }
  return weights;
}

// The arguments of replica `replica`.
inline Tensors batch_of(const Network& network, int replica) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(replica));
  return {at::randn({kRows, network.widths.front()}, generator, at::TensorOptions(at::kFloat)),
          at::randint(network.widths.back(), {kRows}, generator, at::TensorOptions(at::kLong))};
}

// The mean loss of the rows.
inline at::Tensor loss_of(at::Tensor x, const at::Tensor& y, const Tensors& weights) {
  for (std::size_t i = 0; i < weights.size(); i += 2) {
    if (i > 0) x = at::relu(x);
    x = at::linear(x, weights[i], weights[i + 1]);
  }
  return at::cross_entropy_loss(x, y);
}

inline at::Tensor loss_of(const at::Tensor& x, const at::Tensor& y,
                          const std::vector<Variable>& variables) {
  Tensors weights;
  for (const Variable& variable : variables) weights.push_back(variable.tensor());
  return loss_of(x, y, weights);
}

// One way to train. After the same number of steps, the weights are the same.
class Training {
 public:
  Training() = default;
  virtual ~Training() = default;
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;
  virtual void step() = 0;
  virtual Tensors weights() const = 0;
};

// With LibTorch alone, on the rows of one replica.
class Plain final : public Training {
 public:
  Plain(const Network& network, int replica)
      : batch_(batch_of(network, replica)), weights_(weights_of(network)) {
    for (at::Tensor& weight : weights_) weight.requires_grad_();
  }
  void step() override {
    const Tensors gradients =
        torch::autograd::grad({loss_of(batch_[0], batch_[1], weights_)}, weights_);
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < weights_.size(); ++i) weights_[i].sub_(gradients[i], kRate);
  }
  Tensors weights() const override { return weights_; }

 private:
  const Tensors batch_;
  Tensors weights_;
};

inline Tensors values_of(const std::vector<Variable>& variables) {
  Tensors values;
  for (const Variable& variable : variables) values.push_back(variable.read().detach());
  return values;
}

inline bool are_close(const Tensors& a, const Tensors& b, double tolerance) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!at::allclose(a[i], b.at(i), tolerance, tolerance)) return false;
  }
  return true;
}

}  // namespace cohort::bench
