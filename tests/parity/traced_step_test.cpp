// SPDX-License-Identifier: Apache-2.0
// A traced step has the same bits as the eager one: 100 steps of an MLP and a CNN with batch norm,
// with each optimizer. Both sides use Cohort's update rules; the traced side runs decoded bytes, as
// a server does.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cohort/core/error.h"
#include "cohort/function/trace.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/variable_home.h"
#include "cohort/variable/variable_table.h"

namespace cohort {
namespace {

constexpr int kSteps = 100;

torch::nn::Sequential mlp() {
  using namespace torch::nn;
  return Sequential(Linear(64, 64), ReLU(), Linear(64, 64), ReLU(), Linear(64, 10));
}

torch::nn::Sequential cnn() {
  using namespace torch::nn;
  return Sequential(Unflatten(UnflattenOptions(1, {1, 8, 8})),
                    Conv2d(Conv2dOptions(1, 8, 3).padding(1)), BatchNorm2d(8), ReLU(), MaxPool2d(2),
                    Conv2d(Conv2dOptions(8, 8, 3).padding(1)), ReLU(), Flatten(), Linear(128, 10));
}

struct Case {
  const char* name;
  std::function<torch::nn::Sequential()> model;
  std::function<Optimizer(std::vector<Variable>)> optimizer;
};

// A model whose parameters and buffers are variables of this process.
struct Replica {
  torch::nn::Sequential model;
  std::vector<Variable> parameters;
  std::vector<Variable> all;
  std::shared_ptr<Optimizer> optimizer;

  explicit Replica(const Case& of) : model((torch::manual_seed(3), of.model())) {
    for (const auto& entry : model->named_parameters()) {
      parameters.push_back(local_variable(entry.key(), entry.value()));
      all.push_back(parameters.back());
    }
    for (const auto& entry : model->named_buffers())
      all.push_back(local_variable(entry.key(), entry.value(), false));
    optimizer = std::make_shared<Optimizer>(of.optimizer(parameters));
  }
  at::Tensor step(const at::Tensor& x, const at::Tensor& y) {
    auto loss = torch::cross_entropy_loss(model->forward(x), y);
    optimizer->minimize(loss);
    return loss;
  }
};

// Simulates the parameter server for a traced program: effects change the replica's variables.
class LocalHost final : public internal::EffectHandler {
 public:
  LocalHost(Replica& replica, const function::ProgramInfo& info) {
    for (const auto& used : info.variables) {
      for (const Variable& variable : replica.all) {
        if (variable.name() == used.name) variables_.push_back(variable);
      }
    }
  }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> values;
    for (const Variable& variable : variables_) values.push_back(variable.read());
    return values;
  }
  std::vector<at::Tensor> iterator_next(std::int64_t) override {
    throw Error(ErrorCode::unimplemented, "no data here");
  }
  void update(internal::Effect effect) override {
    using Kind = internal::Effect::Kind;
    const Variable& variable = variables_.at(effect.variable);
    at::Tensor given = std::move(effect.tensors[0]);
    if (effect.kind == Kind::apply) {
      const Update update{variable, std::move(given)};
      std::vector<at::Tensor> hyper;
      for (const double value : effect.hyper) hyper.push_back(make_hyperparameter(value));
      apply_updates({optimizer::update_rule_of(effect.rule), effect.optimizer}, {&update, 1},
                    hyper);
      return;
    }
    if (effect.kind == Kind::assign_add) return variable.assign_add(given);
    if (effect.kind == Kind::assign_sub) return variable.assign_sub(given);
    variable.assign(given);
  }

 private:
  std::vector<Variable> variables_;
};

class TracedStepTest : public ::testing::TestWithParam<Case> {};

TEST_P(TracedStepTest, EqualsTheEagerStepBitForBit) {
  Replica eager(GetParam());
  Replica traced(GetParam());
  VariableTable table;
  for (const Variable& variable : traced.all) table.add(variable);
  torch::manual_seed(7);
  const auto draw = [] {
    return std::vector<at::Tensor>{torch::randn({32, 64}), torch::randint(10, {32})};
  };

  function::TraceOptions options;
  options.variable_of = table.lookup();
  const auto body = [&](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{traced.step(in[0], in[1])};
  };
  const function::Traced made = function::trace(draw(), draw(), body, options);
  const auto program = function::PreparedProgram::decode(made.bytes);

  for (int i = 0; i < kSteps; ++i) {
    const std::vector<at::Tensor> batch = draw();
    const at::Tensor expected = eager.step(batch[0], batch[1]);
    LocalHost host(traced, program->info());
    std::vector<at::Tensor> inputs = batch;
    for (const at::Tensor& hyper : made.captured_inputs)
      inputs.push_back(hyperparameter_snapshot(hyper));
    const at::Tensor loss = program->run(inputs, host.values(), host, 0).at(0);
    ASSERT_TRUE(torch::equal(loss, expected))
        << "step " << i << ": " << loss << " instead of " << expected;
  }
  for (std::size_t i = 0; i < eager.all.size(); ++i) {
    EXPECT_TRUE(torch::equal(traced.all[i].read(), eager.all[i].read())) << eager.all[i].name();
  }
}

template <class O, class Options>
std::function<Optimizer(std::vector<Variable>)> make(Options options) {
  return [options](std::vector<Variable> variables) { return O(std::move(variables), options); };
}

const std::vector<std::pair<const char*, std::function<Optimizer(std::vector<Variable>)>>>
    kOptimizers = {
        {"SGD", make<SGD>(SGDOptions{.learning_rate = 0.05})},
        {"Momentum", make<SGD>(SGDOptions{.learning_rate = 0.05, .momentum = 0.9})},
        {"Nesterov",
         make<SGD>(SGDOptions{.learning_rate = 0.05, .momentum = 0.9, .nesterov = true})},
        {"Adagrad", make<Adagrad>(AdagradOptions{.learning_rate = 0.05})},
        {"Adam", make<Adam>(AdamOptions{.learning_rate = 0.01})},
        {"AdamW", make<AdamW>(AdamWOptions{.learning_rate = 0.01})},
        {"RMSprop", make<RMSprop>(RMSpropOptions{.learning_rate = 0.01})},
};

std::vector<Case> cases(torch::nn::Sequential (*model)()) {
  std::vector<Case> made;
  for (const auto& [optimizer, factory] : kOptimizers) made.push_back({optimizer, model, factory});
  return made;
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Mlp, TracedStepTest, ::testing::ValuesIn(cases(&mlp)), kName);
INSTANTIATE_TEST_SUITE_P(CnnWithBatchNorm, TracedStepTest, ::testing::ValuesIn(cases(&cnn)), kName);

}  // namespace
}  // namespace cohort
