// SPDX-License-Identifier: Apache-2.0
// A training that can be stopped and go on: with dropout, batch statistics, a schedule, shuffled
// data and partial batches.
#pragma once

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/data/dataset.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"

namespace cohort::parity {

inline constexpr std::int64_t kRows = 54, kBatch = 8, kSteps = 24;

struct ResumableNetImpl : torch::nn::Module {
  ResumableNetImpl()
      : first(register_module("first", torch::nn::Linear(6, 16))),
        norm(register_module("norm", torch::nn::BatchNorm1d(16))),
        dropout(register_module("dropout", torch::nn::Dropout(0.3))),
        last(register_module("last", torch::nn::Linear(16, 1))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return last(dropout(torch::relu(norm(first(x)))));
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout dropout;
  torch::nn::Linear last;
};
TORCH_MODULE(ResumableNet);

// One process of a training. `S`: its strategy.
template <class S>
class ResumableTraining {
 public:
  // `is_torch`: with a TorchOptimizer, else with cohort::Adam and a schedule.
  template <class... A>
  explicit ResumableTraining(bool is_torch, A&&... of_strategy)
      : strategy_(std::forward<A>(of_strategy)...),
        net_(strategy_.replicate([] { return ResumableNet(); })),
        data_(strategy_.distribute_dataset(
            Dataset::range(kRows).shuffle(kRows, {.seed = 3}).batch(kBatch))),
        iterator_(data_.iterator()) {
    if (is_torch) {
      torch_.emplace(net_, [](std::vector<at::Tensor> parameters) {
        return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(0.01));
      });
    } else {
      adam_.emplace(net_.parameters(),
                    AdamOptions{.learning_rate = LearningRateSchedule([](std::int64_t step) {
                                  return 0.02 / (1.0 + 0.1 * double(step));
                                })});
    }
    checkpoint_.emplace(strategy_);
    checkpoint_->add("step", step_).add("pass", data_).add("data", iterator_);
  }
  // Trains until the step of this number. `after_step` gets the number of steps.
  void train(std::int64_t until, const std::function<void(std::int64_t)>& after_step = {}) {
    while (step_ < until) {
      std::optional<DistributedElement> batch = iterator_.try_next();
      if (!batch) {
        iterator_ = data_.iterator();
        batch = iterator_.try_next();
      }
      strategy_.run([this](const Nest& ids) { step(ids.tensor()); }, *batch);
      ++step_;
      if (after_step) after_step(step_);
    }
  }
  void save(const std::string& path) const { checkpoint_->write(path, step_); }
  void restore(const std::string& path) { checkpoint_->read(path).assert_consumed(); }
  S& strategy() { return strategy_; }
  const Replicated<ResumableNet>& net() const { return net_; }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> values;
    for (const Variable& each : net_.variables()) values.push_back(each.read().clone());
    return values;
  }

 private:
  void step(const at::Tensor& ids) {
    const at::Tensor x =
        torch::sin(ids.to(torch::kFloat).unsqueeze(1) * torch::arange(1, 7, torch::kFloat));
    const at::Tensor losses = (net_->forward(x) - x.sum(1, true)).square().sum(1);
    const at::Tensor loss = average_loss(losses);
    torch_ ? torch_->minimize(loss) : adam_->minimize(loss);
  }

  S strategy_;
  Replicated<ResumableNet> net_;
  DistributedDataset data_;
  DistributedIterator iterator_;
  std::optional<TorchOptimizer<torch::optim::Adam>> torch_;
  std::optional<Adam> adam_;
  std::int64_t step_ = 0;
  std::optional<Checkpoint> checkpoint_;
};

}  // namespace cohort::parity
