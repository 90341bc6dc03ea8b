// SPDX-License-Identifier: Apache-2.0
// Optimizers inside a trace: running the sent program equals running the step here, bit for bit.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <functional>

#include "cohort/function/trace.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/variable/variable_home.h"
#include "cohort/variable/variable_table.h"

namespace cohort {
namespace {

constexpr int kSteps = 100;

using MakeOptimizer = std::function<Optimizer(std::vector<Variable>)>;

// The parameters of a small network, with its loss.
struct Network {
  explicit Network(std::uint64_t seed) {
    at::Generator generator = at::detail::createCPUGenerator(seed);
    for (const auto& [name, sizes] : std::vector<std::pair<std::string, std::vector<std::int64_t>>>{
             {"w1", {5, 7}}, {"b1", {7}}, {"w2", {7, 3}}, {"b2", {3}}}) {
      variables.push_back(
          local_variable(name, at::randn(sizes, generator, at::TensorOptions(at::kFloat))));
    }
  }
  at::Tensor loss(const at::Tensor& x) const {
    const auto& v = variables;
    const at::Tensor hidden = x.matmul(v[0].tensor()).add(v[1].tensor()).tanh();
    return hidden.matmul(v[2].tensor()).add(v[3].tensor()).square().mean();
  }
  std::vector<Variable> variables;
};

// A parameter server in this process: applies rules by their names to its own values.
class OwningHost final : public internal::EffectHandler {
 public:
  std::vector<Variable> variables;
  int num_row_updates = 0, num_lazy_updates = 0;

  std::vector<at::Tensor> iterator_next(std::int64_t) override { return {}; }
  void update(internal::Effect effect) override {
    if (effect.kind != internal::Effect::Kind::apply) return;
    const Variable& variable = variables.at(effect.variable);
    at::Tensor gradient = effect.tensors[0];
    if (effect.row_ids.defined()) {
      gradient = variable::row_gradient(effect.row_ids, gradient, *variable.spec().sizes);
      ++num_row_updates;
    }
    num_lazy_updates += effect.lazy_rows ? 1 : 0;
    const Update update{variable, gradient};
    std::vector<at::Tensor> hyper;
    for (const double value : effect.hyper) hyper.push_back(make_hyperparameter(value));
    apply_updates({optimizer::update_rule_of(effect.rule), effect.optimizer}, {&update, 1}, hyper);
  }
};

// A traced step of a Network whose variables are elsewhere.
class Shipped {
 public:
  using Step = std::function<at::Tensor(const at::Tensor& x)>;

  Shipped(const Network& here, const Step& step) {
    VariableTable table;
    for (const Variable& variable : here.variables) table.add(variable);
    function::TraceOptions options;
    options.variable_of = table.lookup();
    options.lists_ops = true;
    const auto body = [&](const std::vector<at::Tensor>& inputs) {
      return std::vector{step(inputs[0])};
    };
    traced_ = function::trace({batch(1)}, {batch(2)}, body, options);
    program_ = function::PreparedProgram::decode(traced_.bytes);
    for (const auto& variable : traced_.info.variables) {
      const auto entry = table.find(variable.name);
      host_.variables.push_back(local_variable(variable.name, entry->variable.read()));
    }
  }
  at::Tensor run(const at::Tensor& x) {
    std::vector<at::Tensor> inputs{x};
    CountedUpdates counted;
    for (at::Tensor& captured : hyperparameters_of_step(traced_.captured_inputs, counted))
      inputs.push_back(std::move(captured));
    counted.keep();
    std::vector<at::Tensor> values;
    for (const Variable& variable : host_.variables) values.push_back(variable.read());
    return program_->run(inputs, values, host_, 0).at(0);
  }
  const std::string& listing() const { return traced_.listing; }
  int num_row_updates() const { return host_.num_row_updates; }
  int num_lazy_updates() const { return host_.num_lazy_updates; }
  at::Tensor value(std::string_view name) const {
    for (const Variable& variable : host_.variables) {
      if (variable.name() == name) return variable.read();
    }
    return {};
  }
  static at::Tensor batch(std::uint64_t seed) {
    return at::randn({4, 5}, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kFloat));
  }

 private:
  function::Traced traced_;
  std::shared_ptr<const function::PreparedProgram> program_;
  OwningHost host_;
};

class OptimizerInATrace : public ::testing::TestWithParam<MakeOptimizer> {
 protected:
  void expect_shipped_equals_here() const {
    for (const Variable& variable : here_.variables) {
      EXPECT_TRUE(at::equal(shipped_.value(variable.name()), variable.read())) << variable.name();
    }
  }
  Network here_{7};
  Optimizer optimizer_ = GetParam()(here_.variables);
  Shipped::Step step_ = [this](const at::Tensor& x) {
    const at::Tensor loss = here_.loss(x);
    optimizer_.minimize(loss);
    return loss;
  };
  Shipped shipped_{here_, step_};
};

TEST_P(OptimizerInATrace, AHundredStepsEqualThoseRunHere) {
  for (int i = 0; i < kSteps; ++i) {
    const at::Tensor x = Shipped::batch(std::uint64_t(i) + 100);
    ASSERT_TRUE(at::equal(shipped_.run(x), step_(x).detach())) << "loss of step " << i;
  }
  expect_shipped_equals_here();
}

TEST_P(OptimizerInATrace, ANewLearningRateNeedsNoNewTrace) {
  for (const double rate : {0.5, 0.125, 0.0}) {
    optimizer_.set_learning_rate(rate);
    shipped_.run(Shipped::batch(3));
    step_(Shipped::batch(3));
    expect_shipped_equals_here();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, OptimizerInATrace,
    ::testing::Values(
        [](auto v) -> Optimizer { return SGD(v, {.learning_rate = 0.1}); },
        [](auto v) -> Optimizer { return SGD(v, {.learning_rate = 0.1, .momentum = 0.9}); },
        [](auto v) -> Optimizer {
          return SGD(v, {.learning_rate = 0.1, .momentum = 0.9, .nesterov = true});
        },
        [](auto v) -> Optimizer { return Adagrad(v, {.learning_rate = 0.1}); },
        [](auto v) -> Optimizer { return RMSprop(v, {.learning_rate = 0.01}); },
        [](auto v) -> Optimizer { return Adam(v, {.learning_rate = 0.01}); },
        [](auto v) -> Optimizer { return SGD(v, {.learning_rate = 0.1, .weight_decay = 0.01}); },
        [](auto v) -> Optimizer {
          return SGD(v, {.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01});
        },
        [](auto v) -> Optimizer { return Adam(v, {.learning_rate = 0.01, .weight_decay = 0.01}); },
        [](auto v) -> Optimizer { return AdamW(v, {.learning_rate = 0.01}); },
        [](auto v) -> Optimizer {
          return SGD(v, {.learning_rate = 0.1, .momentum = 0.9, .dampening = 0.5});
        },
        [](auto v) -> Optimizer {
          return RMSprop(v, {.learning_rate = 0.01, .momentum = 0.9, .centered = true});
        },
        [](auto v) -> Optimizer { return Adam(v, {.learning_rate = 0.01, .amsgrad = true}); },
        [](auto v) -> Optimizer {
          return Adam(v, {.learning_rate = 0.01, .formula = OptimizerFormula::tensorflow});
        }));

// Two updates in each step: the second uses the rate that follows the first one's, as in an eager
// run.
TEST(SchedulesInATrace, GiveEachUpdateTheRateThatItHasHere) {
  const Network here(7), traced(7);
  const AdamWOptions options{
      .learning_rate = LinearWarmup(
          {.warmup_steps = 5,
           .after_warmup = CosineDecay({.initial_learning_rate = 0.05, .decay_steps = 20})})};
  const AdamW here_optimizer(here.variables, options), traced_optimizer(traced.variables, options);
  const auto step_of = [](const Network& network, const AdamW& optimizer) {
    return [&](const at::Tensor& x) {
      const at::Tensor loss = network.loss(x);
      const auto gradients = optimizer.compute_gradients(loss);
      for (int i = 0; i < 2; ++i) optimizer.apply_gradients(gradients);
      return loss;
    };
  };
  const auto step = step_of(here, here_optimizer);
  Shipped shipped(traced, step_of(traced, traced_optimizer));
  EXPECT_EQ(traced_optimizer.iterations(), 0) << "a trace is no update";
  for (int i = 0; i < 15; ++i) {
    const at::Tensor x = Shipped::batch(std::uint64_t(i) + 100);
    shipped.run(x);
    step(x);
    EXPECT_EQ(traced_optimizer.iterations(), 2 * (i + 1));
    for (const Variable& variable : here.variables)
      ASSERT_TRUE(at::equal(shipped.value(variable.name()), variable.read())) << "step " << i;
  }
}

TEST(NamesInATrace, TellTheSlotsOfTwoOptimizersApart) {
  Network here(7);
  const SGDOptions options{.learning_rate = 0.1, .momentum = 0.9};
  SGDOptions first = options, second = options;
  first.name = "first";
  second.name = "second";
  const SGD one(here.variables, first), other(here.variables, second);
  const auto step = [&](const at::Tensor& x) {
    const at::Tensor loss = here.loss(x);
    const auto gradients = one.compute_gradients(loss);
    one.apply_gradients(gradients);
    other.apply_gradients(gradients);
    return loss;
  };
  Shipped shipped(here, step);
  EXPECT_NE(shipped.listing().find("cohort::apply(\"momentum\", \"second\", 0,"), std::string::npos)
      << shipped.listing();
  for (int i = 0; i < 5; ++i) {
    const at::Tensor x = Shipped::batch(std::uint64_t(i) + 100);
    EXPECT_TRUE(at::equal(shipped.run(x), step(x).detach())) << "loss of step " << i;
  }
}

TEST(ClippingInATrace, EqualsClippingHere) {
  Network here(7);
  const SGD sgd(here.variables, {.learning_rate = 0.1});
  const auto step = [&](const at::Tensor& x) {
    const at::Tensor loss = here.loss(x);
    sgd.apply_gradients(clip_by_global_norm(sgd.compute_gradients(loss), 0.1).gradients);
    return loss;
  };
  Shipped shipped(here, step);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor x = Shipped::batch(std::uint64_t(i) + 100);
    EXPECT_TRUE(at::equal(shipped.run(x), step(x).detach())) << "loss of step " << i;
  }
}

// The rule of each variable travels with its own numbers, and one update is counted once.
TEST(GroupsInATrace, EqualGroupsHere) {
  Network here(7);
  const AdamW adamw(here.variables,
                    {.learning_rate = [](std::int64_t step) { return 0.1 / double(step + 1); },
                     .groups = {{.pattern = "b*", .weight_decay = 0},
                                {.pattern = "w1", .learning_rate_factor = 0.5},
                                {.pattern = "w2", .learning_rate = 0.01}}});
  const auto step = [&](const at::Tensor& x) {
    const at::Tensor loss = here.loss(x);
    adamw.minimize(loss);
    return loss;
  };
  Shipped shipped(here, step);
  Optimizer counter = adamw;
  for (int i = 0; i < 5; ++i) {
    const at::Tensor x = Shipped::batch(std::uint64_t(i) + 100);
    const at::Tensor sent = shipped.run(x);
    EXPECT_EQ(counter.iterations(), i + 1);
    counter.set_iterations(i);  // the same update here
    EXPECT_TRUE(at::equal(sent, step(x).detach())) << "loss of step " << i;
  }
}

TEST(OptimizersInATrace, ALossOfNoVariableIsRefusedAtTheTrace) {
  Network here(7);
  const SGD sgd(Network(8).variables);
  const auto step = [&](const at::Tensor& x) {
    sgd.minimize(here.loss(x));
    return x;
  };
  EXPECT_THAT(([&] { Shipped(here, step); }),
              testing::throws_error(ErrorCode::invalid_argument, "depends on none of them"));
}

TEST(OptimizersInATrace, ASparseEmbeddingUsedTwiceGivesRows) {
  for (const bool lazy_rows : {false, true}) {
    Network here(7), dense(7);
    const auto step_of = [](Network& net, const Optimizer& optimizer, bool is_sparse) {
      return [&net, &optimizer, is_sparse](const at::Tensor& x) {
        const auto rows = [&](std::int64_t first) {
          const at::Tensor ids = at::arange(first, first + 2);
          return at::embedding(net.variables[0].tensor(), ids, -1, false, is_sparse);
        };
        const at::Tensor loss = (rows(0) + rows(1)).mul(x.sum()).tanh().sum();
        optimizer.minimize(loss);
        return loss;
      };
    };
    const Adam adam(here.variables, {.learning_rate = 0.1, .lazy_rows = lazy_rows});
    const Adam plain(dense.variables, {.learning_rate = 0.1});
    Shipped shipped(here, step_of(here, adam, true));
    const auto eager = step_of(dense, plain, false);
    for (std::uint64_t i = 0; i < 3; ++i) {
      shipped.run(Shipped::batch(i));
      eager(Shipped::batch(i));
    }
    EXPECT_TRUE(at::equal(shipped.value("w1"), dense.variables[0].read()));
    EXPECT_EQ(shipped.num_row_updates(), 3);
    EXPECT_EQ(shipped.num_lazy_updates(), lazy_rows ? 3 : 0);
  }
}

// Regression: the rate was frozen, and a set was executed once by the trace and by no call.
TEST(OptimizersInATrace, HyperparametersAreReadAndSetOutside) {
  Network here(7);
  SGD sgd(here.variables, {.learning_rate = 0.5});
  const auto reads = [&](const at::Tensor& x) { return x.mul(sgd.learning_rate()); };
  const auto sets = [&](const at::Tensor& x) {
    sgd.set_learning_rate(0.25);
    return x;
  };
  EXPECT_THAT(([&] { Shipped(here, reads); }),
              testing::throws_error(ErrorCode::failed_precondition, "'learning_rate'"));
  EXPECT_THAT(([&] { Shipped(here, sets); }),
              testing::throws_error(ErrorCode::failed_precondition, "between two calls"));
  const auto counts = [&](const at::Tensor& x) { return x.mul(sgd.iterations()); };
  EXPECT_THAT(([&] { Shipped(here, counts); }),
              testing::throws_error(ErrorCode::failed_precondition, "'iterations'"));
  EXPECT_EQ(sgd.learning_rate(), 0.5);
}

TEST(OptimizersInATrace, OneMadeInsideTheStepIsRefused) {
  Network here(7);
  const auto step = [&](const at::Tensor& x) {
    const at::Tensor loss = here.loss(x);
    SGD(here.variables, {.learning_rate = 0.1}).minimize(loss);
    return loss;
  };
  EXPECT_THAT(([&] { Shipped(here, step); }),
              testing::throws_error(ErrorCode::failed_precondition, "make it once outside"));
}

// It was checked at iterations(), though the next step takes a lower number.
TEST(OptimizerInATraceWithASchedule, ANewScheduleIsCheckedAtTheNextNumber) {
  const Variable w = local_variable("w", at::ones({}));
  SGD sgd({w}, {.learning_rate = [](std::int64_t) { return 0.5; }});
  VariableTable table;
  table.add(w);
  function::TraceOptions options;
  options.variable_of = table.lookup();
  const auto body = [&](const std::vector<at::Tensor>& inputs) {
    const at::Tensor loss = w.tensor() * inputs[0];
    sgd.minimize(loss);
    return std::vector{loss.detach()};
  };
  const function::Traced traced = function::trace({at::ones({})}, {at::ones({})}, body, options);
  {
    CountedUpdates given_back, kept;
    hyperparameters_of_step(traced.captured_inputs, given_back);
    hyperparameters_of_step(traced.captured_inputs, kept);
    kept.keep();
  }
  ASSERT_EQ(sgd.iterations(), 1);
  EXPECT_THAT(
      [&] { sgd.set_learning_rate([](std::int64_t step) { return step == 0 ? -1.0 : 1; }); },
      testing::throws_error(ErrorCode::invalid_argument, "learning_rate >= 0, got -1"));
  sgd.set_learning_rate([](std::int64_t step) { return step == 1 ? -1.0 : 1; });
}

}  // namespace
}  // namespace cohort
