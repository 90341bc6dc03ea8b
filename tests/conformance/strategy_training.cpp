// SPDX-License-Identifier: Apache-2.0
// The step `train`: models that the strategy's replicas train, with the library's optimizers.
#include "cohort/optimizer/optimizers.h"
#include "tests/conformance/strategy_steps.h"
#include "tests/conformance/strategy_tensors.h"

namespace cohort::conformance::strategy {
namespace {

using Parameters = std::map<std::string, Variable>;

Optimizer optimizer_of(const Json& spec, std::vector<Variable> variables) {
  const auto kind = member(spec, "kind").get<std::string>();
  const auto number = [&](const char* key) { return member(spec, key).get<double>(); };
  const double rate = number("lr");
  if (kind == "sgd" || kind == "momentum" || kind == "nesterov") {
    return SGD(std::move(variables), {.learning_rate = rate,
                                      .momentum = member_or(spec, "momentum", 0.0),
                                      .nesterov = member_or(spec, "nesterov", kind == "nesterov")});
  }
  if (kind == "adagrad") {
    return Adagrad(std::move(variables), {.learning_rate = rate,
                                          .initial_accumulator = number("initial_accumulator"),
                                          .formula = OptimizerFormula::tensorflow});
  }
  if (kind == "rmsprop") {
    return RMSprop(std::move(variables), {.learning_rate = rate,
                                          .alpha = number("decay"),
                                          .eps = number("epsilon"),
                                          .formula = OptimizerFormula::tensorflow});
  }
  if (kind == "adam") {
    return Adam(std::move(variables), {.learning_rate = rate,
                                       .beta_1 = number("beta1"),
                                       .beta_2 = number("beta2"),
                                       .eps = number("epsilon"),
                                       .formula = OptimizerFormula::tensorflow});
  }
  throw CaseFault("unknown optimizer " + brief(spec, 120));
}

at::Tensor prediction(const std::string& model, const Parameters& parameters, const at::Tensor& x) {
  const auto layer = [&](const at::Tensor& in, const char* weight, const char* bias) {
    return in.matmul(parameters.at(weight).tensor()).add(parameters.at(bias).tensor());
  };
  if (model == "linear") return layer(x, "w", "b");
  // One layer of this kind, or two, as the parameters say.
  if (model == "linear_relu" && parameters.contains("w")) return layer(x, "w", "b").relu();
  if (model == "linear_relu") return layer(layer(x, "w1", "b1").relu(), "w2", "b2");
  if (model == "mlp") return layer(layer(x, "w1", "b1").tanh(), "w2", "b2");
  throw CaseFault("unknown model '" + model + "'");
}

// The loss of one replica.
at::Tensor replica_loss(const Json& step, const Parameters& parameters, const at::Tensor& x,
                        const at::Tensor& y) {
  const at::Tensor predicted = prediction(member(step, "model"), parameters, x);
  at::Tensor loss =
      average_loss(predicted.sub(y).square().mean(1),
                   {.global_batch_size = member(step, "global_batch").get<std::int64_t>()});
  const double l2 = member_or(step, "l2", 0.0);
  if (l2 == 0) return loss;
  for (const auto& [name, variable] : parameters) {
    loss = loss.add(scale_regularization_loss(variable.tensor().square().sum().mul(l2)));
  }
  return loss;
}

// The parts of this worker, which has one replica if there are several.
PerReplica<at::Tensor> parts_of(const Json& parts, const Step& step, bool is_bare) {
  std::vector<at::Tensor> tensors;
  for (const Json& part : parts) tensors.push_back(read_tensor(part));
  if (step.test.workers() > 1) tensors = {tensors.at(step.test.worker())};
  return is_bare ? PerReplica<at::Tensor>::bare(tensors.at(0))
                 : PerReplica<at::Tensor>(std::move(tensors));
}

Json values_of(const at::Tensor& tensor) {
  return write_tensor(tensor.detach().to(at::kDouble).flatten())["v"];
}

Parameters made_parameters(const Step& step, Strategy& strategy) {
  Parameters parameters;
  const bool has_scope = &strategy != &default_strategy();
  std::optional<StrategyScope> scope;
  if (has_scope) scope.emplace(strategy);
  for (const auto& [name, value] : member(step.json, "params").items()) {
    parameters.emplace(name, step.test.create_variable(name, read_tensor(value), {}));
  }
  return parameters;
}

Value train(const Step& step) {
  Strategy& strategy = step.strategy();
  const Parameters parameters = made_parameters(step, strategy);
  std::vector<Variable> variables;
  for (const auto& [name, variable] : parameters) variables.push_back(variable);
  const Optimizer optimizer = optimizer_of(member(step.json, "optimizer"), variables);
  const auto train_step = [&](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor loss = replica_loss(step.json, parameters, x, y);
    optimizer.minimize(loss);
    return loss.detach();
  };
  Json steps = Json::array();
  const bool is_bare = strategy.num_replicas_in_sync() == 1;
  for (const Json& batch : member(step.json, "batches")) {
    const PerReplica<at::Tensor> x = parts_of(member(batch, "x"), step, is_bare);
    const PerReplica<at::Tensor> y = parts_of(member(batch, "y"), step, is_bare);
    const at::Tensor loss = strategy.reduce(ReduceOp::sum, strategy.run(train_step, x, y));
    Json values = Json::object();
    for (const auto& [name, variable] : parameters) values[name] = values_of(variable.read());
    steps.push_back({{"loss", values_of(loss)[0]}, {"params", std::move(values)}});
  }
  return Value::of_json(std::move(steps));
}

}  // namespace

const StepTable& training_steps() {
  static const StepTable table = {
      {"train",
       {train, {"strategy", "model", "params", "optimizer", "batches", "global_batch", "l2"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
