// SPDX-License-Identifier: Apache-2.0
// The options and the state of LibTorch's optimizers, which workers and replicas compare.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>
#include <tuple>
#include <type_traits>

#include "cohort/strategy/torch_optimizer.h"

namespace cohort::internal {
namespace {

using torch::optim::Optimizer;

std::string digits_of(double value) {
  char digits[32];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), value);
  return {std::begin(digits), end.ptr};
}

std::string bytes_of(const c10::IValue& value) {
  if (value.isInt()) return std::to_string(value.toInt());
  if (value.isDouble()) return digits_of(value.toDouble());
  if (!value.isTensor() || !value.toTensor().defined()) return {};
  const at::Tensor tensor = value.toTensor().detach().cpu().contiguous();
  return {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()};
}

// LibTorch 2 has the address itself as the key.
template <class Key>
Key key_of(const at::Tensor& parameter) {
  if constexpr (std::is_pointer_v<Key>) {
    return parameter.unsafeGetTensorImpl();
  } else {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  }
}

// The slots of a parameter, without their devices; empty if it has none, or if they cannot be read.
std::string state_of(const Optimizer& optimizer, const at::Tensor& parameter) {
  const auto& all = optimizer.state();
  const auto found = all.find(key_of<typename std::decay_t<decltype(all)>::key_type>(parameter));
  if (found == all.end()) return {};
  std::string bytes, state;
  try {
    torch::serialize::OutputArchive written;
    found->second->serialize(written);
    written.save_to([&](const void* data, std::size_t size) {
      bytes.append(static_cast<const char*>(data), size);
      return size;
    });
    torch::serialize::InputArchive read;
    read.load_from(bytes.data(), bytes.size(), at::Device(at::kCPU));
    for (const std::string& key : read.keys()) {
      c10::IValue value;
      if (read.try_read(key, value)) state += key + bytes_of(value);
    }
  } catch (const c10::Error&) {  // an optimizer of the user's without serialize()
    return {};
  }
  return state;
}

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

std::string difference_of_optimizers(const Optimizer& first, const Optimizer& other,
                                     std::size_t replica) {
  const auto& groups = first.param_groups();
  const auto& of_other = other.param_groups();
  const TorchOptions a = options_of_groups(groups), b = options_of_groups(of_other);
  const std::string name = " in replica " + std::to_string(replica);
  for (std::size_t i = 0; i < std::min(a.values.size(), b.values.size()); ++i) {
    if (a.values[i] == b.values[i]) continue;
    return std::string(a.names[i]) + " " + digits_of(a.values[i]) + " in replica 0, " +
           digits_of(b.values[i]) + name;
  }
  for (std::size_t i = 0; i < std::min(groups.size(), of_other.size()); ++i) {
    const std::vector<at::Tensor>& own = groups[i].params();
    const std::vector<at::Tensor>& others = of_other[i].params();
    for (std::size_t k = 0; k < std::min(own.size(), others.size()); ++k) {
      if (own[k].device().type() != others[k].device().type()) continue;  // they round differently
      if (state_of(first, own[k]) != state_of(other, others[k]))
        return "whose state is another one" + name + " than in replica 0";
    }
  }
  return {};
}

}  // namespace cohort::internal
