// SPDX-License-Identifier: Apache-2.0
// A training step interpreted as on a worker, compared to the same step run eagerly, with the same
// update rule on local variables.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>

#include <functional>
#include <string>
#include <vector>

#include "bench/report.h"
#include "cohort/core/kept_memory.h"
#include "cohort/function/trace.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/variable_home.h"
#include "cohort/variable/variable_table.h"

namespace cohort::bench {
namespace {

using Tensors = std::vector<at::Tensor>;
using MakeOptimizer = std::function<Optimizer(std::vector<Variable>)>;

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kClasses = 10;

// A network: the sizes of its variables, and its forward pass.
struct Network {
  std::string name;
  std::vector<std::vector<std::int64_t>> sizes;
  std::vector<std::int64_t> input;
  std::function<at::Tensor(const std::vector<Variable>&, at::Tensor)> forward;
  int steps = 100;  // per round

  std::vector<Variable> variables() const {
    at::Generator generator = at::detail::createCPUGenerator(7);
    std::vector<Variable> made;
    for (const auto& size : sizes) {
      const at::Tensor value = at::randn(size, generator, at::TensorOptions(at::kFloat)).mul_(0.1);
      made.push_back(local_variable("v" + std::to_string(made.size()), value));
    }
    return made;
  }
  Tensors batch(std::uint64_t seed) const {
    at::Generator generator = at::detail::createCPUGenerator(seed);
    return {at::randn(input, generator, at::TensorOptions(at::kFloat)),
            at::randint(kClasses, {kBatch}, generator, at::TensorOptions(at::kLong))};
  }
};

Network mlp() {
  return {.name = "MLP 64-64-64-10, batch 32",
          .sizes = {{64, 64}, {64}, {64, 64}, {64}, {kClasses, 64}, {kClasses}},
          .input = {kBatch, 64},
          .forward =
              [](const std::vector<Variable>& v, at::Tensor x) {
                x = at::relu(at::linear(x, v[0].tensor(), v[1].tensor()));
                x = at::relu(at::linear(x, v[2].tensor(), v[3].tensor()));
                return at::linear(x, v[4].tensor(), v[5].tensor());
              },
          .steps = 500};
}

Network cnn() {
  return {.name = "CNN conv8-conv16-dense on 28x28, batch 32",
          .sizes = {{8, 1, 3, 3}, {8}, {16, 8, 3, 3}, {16}, {kClasses, 16 * 7 * 7}, {kClasses}},
          .input = {kBatch, 1, 28, 28},
          .forward =
              [](const std::vector<Variable>& v, at::Tensor x) {
                x = at::relu(at::conv2d(x, v[0].tensor(), v[1].tensor(), 1, 1));
                x = at::max_pool2d(x, {2, 2});
                x = at::relu(at::conv2d(x, v[2].tensor(), v[3].tensor(), 1, 1));
                x = at::max_pool2d(x, {2, 2}).flatten(1);
                return at::linear(x, v[4].tensor(), v[5].tensor());
              },
          .steps = 50};
}

// Runs the steps eagerly.
class Eager {
 public:
  Eager(const Network& network, const MakeOptimizer& make)
      : network_(network), variables(network.variables()), optimizer_(make(variables)) {}

  at::Tensor step(const Tensors& batch) {
    const at::Tensor loss = at::cross_entropy_loss(network_.forward(variables, batch[0]), batch[1]);
    optimizer_.minimize(loss);
    return loss.detach();
  }

 private:
  const Network& network_;

 public:
  const std::vector<Variable> variables;

 private:
  const Optimizer optimizer_;
};

// Applies updates to its own variables, as a parameter server does.
class OwningHost final : public internal::EffectHandler {
 public:
  std::vector<Variable> variables;

  Tensors iterator_next(std::int64_t) override { return {}; }
  void update(internal::Effect effect) override {
    if (effect.kind != internal::Effect::Kind::apply) return;
    const Update update{variables.at(effect.variable), std::move(effect.tensors[0])};
    std::vector<at::Tensor> hyper;
    for (const double value : effect.hyper) hyper.push_back(make_hyperparameter(value));
    apply_updates({optimizer::update_rule_of(effect.rule), effect.optimizer}, {&update, 1}, hyper);
  }
};

// Traces the same step, and runs a program that is decoded from its bytes.
class Interpreted {
 public:
  Interpreted(const Network& network, const MakeOptimizer& make) {
    Eager here(network, make);
    VariableTable table;
    for (const Variable& variable : here.variables) table.add(variable);
    function::TraceOptions options;
    options.variable_of = table.lookup();
    const auto body = [&](const Tensors& inputs) { return Tensors{here.step(inputs)}; };
    const auto traced = function::trace(network.batch(1), network.batch(2), body, options);
    program_ = function::PreparedProgram::decode(traced.bytes);
    for (const auto& used : traced.info.variables) {
      const Variable& variable = table.find(used.name)->variable;
      host_.variables.push_back(local_variable(used.name, variable.read()));
      values_.push_back(host_.variables.back().tensor().detach());
    }
    for (const at::Tensor& value : traced.captured_inputs) {
      captured_.push_back(hyperparameter_snapshot(value));
    }
  }

  at::Tensor step(const Tensors& batch) {
    Tensors inputs = batch;
    inputs.insert(inputs.end(), captured_.begin(), captured_.end());
    return program_->run(inputs, values_, host_, 0)[0];
  }

 private:
  std::shared_ptr<const function::PreparedProgram> program_;
  OwningHost host_;
  Tensors values_;
  Tensors captured_;
};

void compare(const Bench& bench, const Network& network, const std::string& optimizer,
             const MakeOptimizer& make) {
  const std::string title = network.name + ", " + optimizer;
  if (!bench.wants(title)) return;
  Eager eager(network, make);
  Interpreted interpreted(network, make);
  for (std::uint64_t i = 0; i < 20; ++i) {
    const Tensors batch = network.batch(100 + i);
    require(at::equal(eager.step(batch), interpreted.step(batch)), title);
  }
  const Tensors batch = network.batch(3);
  const auto us_a_step = [&](auto& contender) {
    const double seconds = seconds_of([&] {
      for (int i = 0; i < network.steps; ++i) contender.step(batch);
    });
    return 1e6 * seconds / network.steps;
  };
  bench.compare(title, {.unit = "us"},
                {{"eager", [&] { return us_a_step(eager); }},
                 {"interpreted", [&] { return us_a_step(interpreted); }}});
}

void run(const Bench& bench) {
  const auto sgd = [](std::vector<Variable> v) { return SGD(v, {.learning_rate = 0.01}); };
  const auto momentum = [](std::vector<Variable> v) {
    return SGD(v, {.learning_rate = 0.01, .momentum = 0.9});
  };
  const auto adam = [](std::vector<Variable> v) { return Adam(v); };
  for (const Network& network : {mlp(), cnn()}) {
    compare(bench, network, "SGD", sgd);
    compare(bench, network, "SGD with momentum", momentum);
    compare(bench, network, "Adam", adam);
  }
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  cohort::keep_freed_memory();  // as run_main() does: else the heap's layout decides on page faults
  cohort::bench::run(cohort::bench::Bench(argc, argv));
  return 0;
}
