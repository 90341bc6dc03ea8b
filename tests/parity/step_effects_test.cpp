// SPDX-License-Identifier: Apache-2.0
// Updates inside a step: a traced step has the same results and leaves the same values, bit for
// bit, as the same body on local variables, whatever the body does to the tensors afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "cohort/function/trace.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/variable_table.h"

namespace cohort {
namespace {

using Tensors = std::vector<at::Tensor>;
using Body = std::function<Tensors(const Tensors& inputs)>;

constexpr int kSteps = 5;

// Simulates a worker and its parameter server: stores the effects, and applies them to its own
// values when the worker would push. Used only from one thread.
class PushingHost final : public internal::EffectHandler {
 public:
  struct Stored {
    at::Tensor value;
    std::map<std::string, Tensors, std::less<>> slots;
  };

  PushingHost(std::map<std::string, Stored>& stored, const function::ProgramInfo& info) {
    for (const auto& used : info.variables) used_.push_back(&stored.at(used.name));
  }
  Tensors values() const {
    Tensors values;
    for (const Stored* stored : used_) values.push_back(stored->value.clone());
    return values;
  }
  void push() {
    for (const auto& update : std::exchange(pending_, {})) update();
  }

  Tensors iterator_next(std::int64_t) override { return {}; }
  void update(internal::Effect effect) override {
    pending_.push_back([this, effect = std::move(effect)] {
      Stored& stored = at(static_cast<std::int64_t>(effect.variable));
      const at::Tensor& given = effect.tensors[0];
      using Kind = internal::Effect::Kind;
      if (effect.kind == Kind::assign || effect.kind == Kind::merge_average)
        stored.value.copy_(given);
      if (effect.kind == Kind::assign_add) stored.value.add_(given);
      if (effect.kind == Kind::assign_sub) stored.value.sub_(given);
      if (effect.kind != Kind::apply) return;
      const variable::UpdateRule& known = optimizer::update_rule_of(effect.rule);
      auto [slots, is_new] = stored.slots.try_emplace(effect.optimizer);
      if (is_new) slots->second = known.create_slots(stored.value, effect.hyper);
      known.update(stored.value, stored.value, slots->second, given.contiguous(), effect.hyper);
    });
  }
  Tensors next_segment(std::span<const std::int64_t> variables) override {
    push();
    Tensors values;
    for (const std::int64_t variable : variables) values.push_back(at(variable).value.clone());
    segments.emplace_back(variables.begin(), variables.end());
    return values;
  }

  std::vector<std::vector<std::int64_t>> segments;  // the variables that each segment pulled

 private:
  Stored& at(std::int64_t index) { return *used_.at(static_cast<std::size_t>(index)); }

  std::vector<Stored*> used_;
  std::vector<std::function<void()>> pending_;
};

// The variables of one side of the comparison.
struct World {
  Variable variable(const std::string& name, at::Tensor value, bool is_trainable = true) {
    variables.push_back(local_variable(name, std::move(value), is_trainable));
    return variables.back();
  }
  std::vector<Variable> variables;
};

using MakeBody = std::function<Body(World&)>;

at::Tensor ramp(std::vector<std::int64_t> sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return torch::linspace(-1.0, 1.5, count).view(sizes).clone();
}

// Runs the body that `make` returns eagerly, and traced with its variables on a host.
class StepEffects : public ::testing::Test {
 protected:
  static Tensors draw(std::uint64_t seed) {
    torch::manual_seed(seed);
    return {torch::randn({4, 3})};
  }

  void trace_it(const MakeBody& make) {
    VariableTable table;
    World stand_ins;
    const Body body = make(stand_ins);
    for (const Variable& variable : stand_ins.variables) {
      table.add(variable);
      stored_[variable.name()].value = variable.read();
    }
    function::TraceOptions options;
    options.variable_of = table.lookup();
    traced_ = function::trace(draw(100), draw(101), body, options);
    program_ = function::PreparedProgram::decode(traced_.bytes);
  }

  Tensors run(const Tensors& batch) {
    PushingHost host(stored_, program_->info());
    Tensors inputs = batch;
    for (const at::Tensor& hyper : traced_.captured_inputs)
      inputs.push_back(hyperparameter_snapshot(hyper));
    Tensors outputs = program_->run(inputs, host.values(), host, 0);
    host.push();
    segments_ = host.segments;
    return outputs;
  }

  // `segments`: how many times a run pulls again.
  void expect_equals_eager(const MakeBody& make, std::size_t segments = 0) {
    World world;
    const Body eager = make(world);
    trace_it(make);
    for (int i = 0; i < kSteps; ++i) {
      const Tensors batch = draw(static_cast<std::uint64_t>(i));
      const Tensors expected = eager(batch);
      const Tensors actual = run(batch);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t k = 0; k < actual.size(); ++k) {
        EXPECT_TRUE(torch::equal(actual[k], expected[k]))
            << "output " << k << " of step " << i << ": " << actual[k] << " instead of "
            << expected[k];
      }
      for (const Variable& variable : world.variables) {
        const at::Tensor& value = stored_.at(variable.name()).value;
        EXPECT_TRUE(torch::equal(value, variable.read()))
            << variable.name() << " after step " << i << ": " << value << " instead of "
            << variable.read();
      }
      if (are_segments_counted_) {
        EXPECT_EQ(segments_.size(), segments);
      }
    }
  }

  std::map<std::string, PushingHost::Stored> stored_;
  std::vector<std::vector<std::int64_t>> segments_;  // segments of the last run
  bool are_segments_counted_ = true;
  function::Traced traced_;
  std::shared_ptr<const function::PreparedProgram> program_;
};

// Effects keep the value at the time of their call.

TEST_F(StepEffects, GradientsMayBeZeroedAfterTheyWereApplied) {
  expect_equals_eager([](World& world) -> Body {
    Variable w = world.variable("w", ramp({3}));
    const SGD optimizer({w}, {.learning_rate = 0.5});
    return [=](const Tensors& in) mutable {
      in[0].mul(w.tensor()).sum().backward();
      optimizer.apply_gradients({{w.tensor().grad(), w}});
      w.tensor().mutable_grad().zero_();
      return Tensors{};
    };
  });
}

TEST_F(StepEffects, OneBufferMayCarryTwoGradients) {
  expect_equals_eager([](World& world) -> Body {
    Variable a = world.variable("a", ramp({3})), b = world.variable("b", ramp({3}));
    const SGD optimizer({a, b}, {.learning_rate = 0.5});
    return [=](const Tensors& in) mutable {
      at::Tensor buffer = in[0].sum(0);
      optimizer.apply_gradients({{buffer, a}});
      buffer.mul_(3).add_(1);
      optimizer.apply_gradients({{buffer, b}});
      return Tensors{};
    };
  });
}

TEST_F(StepEffects, AnAssignedValueMayBeWrittenAfterwards) {
  expect_equals_eager([](World& world) -> Body {
    Variable w = world.variable("w", ramp({3}));
    return [=](const Tensors& in) mutable {
      at::Tensor v = in[0].sum(0) * 2;
      w.assign(v);
      v.add_(100);
      return Tensors{v};
    };
  });
}

TEST_F(StepEffects, AViewOfAnAssignedValueMayBeWrittenAfterwards) {
  expect_equals_eager([](World& world) -> Body {
    Variable w = world.variable("w", ramp({3}));
    return [=](const Tensors& in) mutable {
      at::Tensor whole = in[0] * 2;
      w.assign(whole.select(0, 1));
      whole.view({-1}).slice(0, 2, 5).add_(100);
      return Tensors{};
    };
  });
}

// This holds also for the memory of a variable's register.
TEST_F(StepEffects, ABufferMayBeWrittenAfterItWasAssignedElsewhere) {
  expect_equals_eager([](World& world) -> Body {
    Variable w = world.variable("w", ramp({3}));
    Variable buffer = world.variable("buffer", ramp({3}), false);
    return [=](const Tensors& in) mutable {
      w.assign(buffer.tensor());
      buffer.tensor().add_(in[0].sum(0));
      return Tensors{};
    };
  });
}

// Reads after an update see the updated value.

at::Tensor error_of(const at::Tensor& x, const at::Tensor& w) { return x.mul(w).sum(1).tanh(); }

TEST_F(StepEffects, TwoStepsOfAnOptimizerInARow) {
  expect_equals_eager(
      [](World& world) -> Body {
        Variable w = world.variable("w", ramp({3})), b = world.variable("b", ramp({1}));
        const SGD optimizer({w, b}, {.learning_rate = 0.5, .momentum = 0.9});
        return [=](const Tensors& in) mutable {
          Tensors losses;
          for (int i = 0; i < 3; ++i) {
            losses.push_back(error_of(in[0], w.tensor()).add(b.tensor()).square().mean());
            optimizer.minimize(losses.back());
          }
          return losses;
        };
      },
      2);
}

TEST_F(StepEffects, AGenerativeAdversarialNetwork) {
  expect_equals_eager(
      [](World& world) -> Body {
        Variable g = world.variable("generator", ramp({3}));
        Variable d = world.variable("discriminator", ramp({3}));
        const SGD of_d({d}, {.learning_rate = 0.5}), of_g({g}, {.learning_rate = 0.25});
        return [=](const Tensors& in) mutable {
          const at::Tensor fake = in[0].mul(g.tensor()).add(1);
          const at::Tensor d_loss =
              (error_of(fake.detach(), d.tensor()) - error_of(in[0], d.tensor())).mean();
          of_d.minimize(d_loss);
          const at::Tensor g_loss = -error_of(fake, d.tensor()).mean();
          of_g.minimize(g_loss);
          return Tensors{d_loss, g_loss};
        };
      },
      1);
}

TEST_F(StepEffects, WeightsClippedAfterTheStep) {
  expect_equals_eager(
      [](World& world) -> Body {
        Variable w = world.variable("w", ramp({3}));
        const SGD optimizer({w}, {.learning_rate = 5});
        return [=](const Tensors& in) mutable {
          optimizer.minimize(error_of(in[0], w.tensor()).mean());
          w.assign(w.tensor().detach().clamp(-0.1, 0.1));
          return Tensors{};
        };
      },
      1);
}

TEST_F(StepEffects, WeightsDecayedAfterTheStep) {
  expect_equals_eager(
      [](World& world) -> Body {
        Variable w = world.variable("w", ramp({3}));
        const SGD optimizer({w}, {.learning_rate = 0.5});
        return [=](const Tensors& in) mutable {
          optimizer.minimize(error_of(in[0], w.tensor()).mean());
          w.assign_sub(w.read() * 0.125);
          return Tensors{};
        };
      },
      1);
}

// Regression: a term of a loss that had read() in place of tensor() was not trained, without a
// word.
TEST_F(StepEffects, PenaltiesOfValuesThatWereReadAreTrained) {
  const auto make_with = [](bool is_read) -> MakeBody {
    return [is_read](World& world) -> Body {
      Variable w = world.variable("w", ramp({3})), b = world.variable("b", ramp({1}));
      const SGD optimizer({w, b}, {.learning_rate = 0.5, .momentum = 0.9});
      return [=](const Tensors& in) mutable {
        const auto value = [&](const Variable& v) { return is_read ? v.read() : v.tensor(); };
        Tensors losses;
        for (int i = 0; i < 2; ++i) {
          const at::Tensor error = error_of(in[0], w.tensor()).add(value(b)).square().mean();
          losses.push_back(error + value(w).square().sum() * 0.125);
          optimizer.minimize(losses.back());
        }
        w.assign(value(w).detach().clamp(-0.5, 0.5));
        return losses;
      };
    };
  };
  expect_equals_eager(make_with(true), 2);
  World by_read, by_tensor;
  const Body read = make_with(true)(by_read), tensor = make_with(false)(by_tensor);
  for (int i = 0; i < kSteps; ++i) {
    read(draw(static_cast<std::uint64_t>(i)));
    tensor(draw(static_cast<std::uint64_t>(i)));
    for (std::size_t v = 0; v < 2; ++v)
      EXPECT_TRUE(torch::equal(by_read.variables[v].read(), by_tensor.variables[v].read())) << i;
  }
}

// The gradient is the variable's, whatever value it had when it was read.
TEST_F(StepEffects, ValuesThatWereReadBeforeAndAfterAnUpdateHaveOneGradient) {
  expect_equals_eager(
      [](World& world) -> Body {
        Variable w = world.variable("w", ramp({3})),
                 mean = world.variable("mean", ramp({3}), false);
        const SGD optimizer({w}, {.learning_rate = 0.5});
        return [=](const Tensors& in) mutable {
          at::Tensor before = w.read();
          const at::Tensor half = before.mul_(0.5);
          w.assign_add(in[0].sum(0));
          mean.assign(mean.read() * 0.5 + w.read());
          const at::Tensor loss = half.mul(w.read()).add(w.tensor().sin()).sum();
          optimizer.minimize(loss);
          return Tensors{loss, w.read()};
        };
      },
      2);
}

TEST_F(StepEffects, AnAssignedVariableIsReadAsAssigned) {
  const MakeBody make = [](World& world) -> Body {
    Variable w = world.variable("w", ramp({3}));
    return [=](const Tensors& in) mutable {
      w.assign(torch::full({3}, 7.0));
      return Tensors{w.tensor() * in[0], w.read()};
    };
  };
  expect_equals_eager(make, 1);
  EXPECT_FALSE(program_->info().variables.at(0).is_read) << "nobody needs the value before";
}

TEST_F(StepEffects, AReturnedVariableIsReturnedAsUpdated) {
  expect_equals_eager(
      [](World& world) -> Body {
        Variable w = world.variable("w", ramp({3}));
        return [=](const Tensors& in) mutable {
          const at::Tensor returned = w.tensor().detach();
          const at::Tensor before = returned * 1;
          w.assign_add(in[0].sum(0));
          return Tensors{returned, before, w.tensor().detach()};
        };
      },
      1);
}

TEST_F(StepEffects, ViewsMadeBeforeAnUpdateSeeIt) {
  expect_equals_eager(
      [](World& world) -> Body {
        Variable w = world.variable("w", ramp({2, 3}));
        return [=](const Tensors& in) mutable {
          const at::Tensor columns = w.tensor().detach().t(), row = columns.select(1, 1);
          const at::Tensor copy = row.clone();
          w.assign_add(in[0].slice(0, 0, 2));
          return Tensors{columns * 2, row + 1, copy};
        };
      },
      1);
}

TEST_F(StepEffects, WritesAndUpdatesOfOneBufferKeepTheirOrder) {
  using Change = std::function<void(Variable&, const at::Tensor&)>;
  const std::vector<Change> changes = {
      [](Variable& v, const at::Tensor&) { v.tensor().mul_(2); },
      [](Variable& v, const at::Tensor& x) { v.tensor().select(0, 1).add_(x.sum()); },
      [](Variable& v, const at::Tensor& x) { v.tensor().copy_(x.select(0, 3)); },
      [](Variable& v, const at::Tensor& x) { v.assign(x.select(0, 2)); },
      [](Variable& v, const at::Tensor& x) { v.assign_add(x.select(0, 1)); },
      [](Variable& v, const at::Tensor& x) { v.assign_sub(v.tensor() * x.select(0, 0)); },
  };
  for (std::size_t i = 0; i < changes.size() * changes.size() * changes.size(); ++i) {
    const auto& first = changes[i % changes.size()];
    const auto& second = changes[i / changes.size() % changes.size()];
    const auto& third = changes[i / changes.size() / changes.size()];
    SCOPED_TRACE(i);
    are_segments_counted_ = false;
    expect_equals_eager([&](World& world) -> Body {
      Variable buffer = world.variable("buffer", ramp({3}), false);
      return [=](const Tensors& in) mutable {
        for (const Change& change : {first, second, third}) change(buffer, in[0]);
        return Tensors{};
      };
    });
    if (HasFailure()) break;
  }
}

TEST_F(StepEffects, OneSegmentPullsAllThatWasUpdatedBeforeIt) {
  const MakeBody make = [](World& world) -> Body {
    Variable a = world.variable("a", ramp({3})), b = world.variable("b", ramp({3}));
    Variable c = world.variable("c", ramp({3}));
    return [=](const Tensors& in) mutable {
      for (Variable* each : {&a, &b, &c}) each->assign_add(in[0].sum(0));
      const at::Tensor first = a.tensor() * 2;
      c.assign_add(first);
      return Tensors{first.detach(), b.tensor().detach() * 3, a.tensor().detach() * 5};
    };
  };
  expect_equals_eager(make, 1);
  EXPECT_EQ(segments_.at(0), (std::vector<std::int64_t>{0, 1})) << "nobody reads c again";
}

TEST_F(StepEffects, AVariableUpdatedTwiceIsPulledTwice) {
  expect_equals_eager(
      [](World& world) -> Body {
        Variable a = world.variable("a", ramp({3})), b = world.variable("b", ramp({3}));
        return [=](const Tensors& in) mutable {
          a.assign_add(in[0].sum(0));
          b.assign(a.tensor().detach() * 2);
          a.assign_add(b.tensor().detach());
          a.assign_add(b.tensor().detach());
          return Tensors{a.read(), b.read()};
        };
      },
      3);
}

// An effect or an output that holds a variable's value keeps it when an update overwrites it.
TEST_F(StepEffects, EffectsKeepAVariablesValueOverASegment) {
  expect_equals_eager(
      [](World& world) -> Body {
        Variable a = world.variable("a", ramp({3})), b = world.variable("b", ramp({3}));
        return [=](const Tensors& in) mutable {
          b.assign(a.tensor());
          a.assign_add(in[0].sum(0));
          return Tensors{a.tensor().detach() + b.tensor().detach()};
        };
      },
      1);
}

TEST_F(StepEffects, ABackwardPassThroughAnOverwrittenValueIsRefusedAsItIsHere) {
  const MakeBody make = [](World& world) -> Body {
    Variable w = world.variable("w", ramp({3}));
    const SGD optimizer({w}, {.learning_rate = 0.5});
    return [=](const Tensors& in) mutable {
      const at::Tensor x = in[0].detach().requires_grad_();
      const at::Tensor first = x.mul(w.tensor()).sum(), second = first.square();
      optimizer.apply_gradients({{in[0].sum(0), w}});
      second.backward();
      return Tensors{x.grad()};
    };
  };
  World world;
  const Body eager = make(world);
  const std::string words = "modified by an inplace operation";
  EXPECT_THAT([&] { eager(draw(1)); },
              ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(words)));
  EXPECT_THAT([&] { trace_it(make); },
              ::testing::ThrowsMessage<std::exception>(::testing::HasSubstr(words)));
}

}  // namespace
}  // namespace cohort
