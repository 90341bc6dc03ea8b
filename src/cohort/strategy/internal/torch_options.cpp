// SPDX-License-Identifier: Apache-2.0
// The options of LibTorch's optimizers, which workers compare.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>

#include "cohort/strategy/torch_optimizer.h"

namespace cohort::internal {
namespace {

void add(TorchOptions& all, std::string_view name, double value) {
  all.names.push_back(name);
  all.values.push_back(value);
}

template <class Options>
void add_of_adam(TorchOptions& all, std::string_view optimizer, const Options& options) {
  all.optimizer = optimizer;
  add(all, "lr", options.lr());
  add(all, "beta_1", std::get<0>(options.betas()));
  add(all, "beta_2", std::get<1>(options.betas()));
  add(all, "eps", options.eps());
  add(all, "weight_decay", options.weight_decay());
  add(all, "amsgrad", options.amsgrad() ? 1 : 0);
}

void add_of(TorchOptions& all, const torch::optim::SGDOptions& options) {
  all.optimizer = "SGD";
  add(all, "lr", options.lr());
  add(all, "momentum", options.momentum());
  add(all, "dampening", options.dampening());
  add(all, "weight_decay", options.weight_decay());
  add(all, "nesterov", options.nesterov() ? 1 : 0);
}

void add_of(TorchOptions& all, const torch::optim::RMSpropOptions& options) {
  all.optimizer = "RMSprop";
  add(all, "lr", options.lr());
  add(all, "alpha", options.alpha());
  add(all, "eps", options.eps());
  add(all, "weight_decay", options.weight_decay());
  add(all, "momentum", options.momentum());
  add(all, "centered", options.centered() ? 1 : 0);
}

void add_of(TorchOptions& all, const torch::optim::AdagradOptions& options) {
  all.optimizer = "Adagrad";
  add(all, "lr", options.lr());
  add(all, "lr_decay", options.lr_decay());
  add(all, "weight_decay", options.weight_decay());
  add(all, "initial_accumulator_value", options.initial_accumulator_value());
  add(all, "eps", options.eps());
}

}  // namespace

TorchOptions options_of_groups(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  using torch::optim::AdagradOptions;
  using torch::optim::AdamOptions;
  using torch::optim::AdamWOptions;
  using torch::optim::RMSpropOptions;
  using torch::optim::SGDOptions;
  TorchOptions all;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (!groups[i].has_options()) continue;
    if (groups.size() > 1) add(all, "of group", static_cast<double>(i));
    const torch::optim::OptimizerOptions& options = groups[i].options();
    if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options)) add_of(all, *sgd);
    if (const auto* adam = dynamic_cast<const AdamOptions*>(&options))
      add_of_adam(all, "Adam", *adam);
    if (const auto* adamw = dynamic_cast<const AdamWOptions*>(&options))
      add_of_adam(all, "AdamW", *adamw);
    if (const auto* rmsprop = dynamic_cast<const RMSpropOptions*>(&options)) add_of(all, *rmsprop);
    if (const auto* adagrad = dynamic_cast<const AdagradOptions*>(&options)) add_of(all, *adagrad);
  }
  return all;
}

}  // namespace cohort::internal
