// SPDX-License-Identifier: Apache-2.0
// Random steps that fail leave what they leave when they end at their last update; and random
// losses, of several optimizers of LibTorch, train as LibTorch's own program does that calls
// zero_grad() before each step.
//
//   COHORT_FUZZ_PROGRAMS=1000 build/dev/tests/failed_step_fuzz_test    # a long run
//   COHORT_FUZZ_SEED=17 build/dev/tests/failed_step_fuzz_test          # one program
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/fuzz_range.h"

namespace cohort::parity {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr std::uint64_t kPrograms = 40;

struct BlockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return dropout->forward(norm->forward(linear->forward(x)));
  }
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(3, 3))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(3))};
  torch::nn::Dropout dropout{register_module("dropout", torch::nn::Dropout(0.5))};
};
TORCH_MODULE(Block);

enum class Op { forward_0, forward_1, sum, write, draw, minimize_0, minimize_1, assign };
constexpr int kOps = 8;

bool is_update(Op op) { return op == Op::minimize_0 || op == Op::minimize_1 || op == Op::assign; }

struct StepProgram {
  std::vector<Op> ops;
  std::size_t fails_at = 0;  // before this operation
  bool one_replica_fails = false;
  bool uses_torch_optimizers = false;
};

StepProgram random_step(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  StepProgram program;
  const std::size_t size = 2 + random() % 7;
  for (std::size_t i = 0; i < size; ++i) program.ops.push_back(static_cast<Op>(random() % kOps));
  program.fails_at = random() % (size + 1);
  program.one_replica_fails = random() % 2 == 0;
  program.uses_torch_optimizers = random() % 2 == 0;
  return program;
}

// The operations that stay done if the step fails.
std::size_t kept_operations(const StepProgram& program) {
  for (std::size_t i = program.fails_at; i > 0; --i) {
    if (is_update(program.ops[i - 1])) return i;
  }
  return 0;
}

enum class Way { run, function };

// Programs with variables of their own.
class FailingSide {
 public:
  FailingSide(const StepProgram& program, int replicas, Way way)
      : program_(program),
        replicas_(replicas),
        way_(way),
        strategy_(testing::cpu_devices(replicas)) {
    for (int i = 0; i < 2; ++i) {
      blocks_.push_back(
          strategy_.replicate([] { return Block(); }, {.name = "block" + std::to_string(i)}));
      if (program.uses_torch_optimizers && way == Way::run) {
        torch_sgds_.emplace_back(blocks_.back(), [](Tensors parameters) {
          return torch::optim::SGD(std::move(parameters),
                                   torch::optim::SGDOptions(0.1).momentum(0.5));
        });
      } else {
        sgds_.emplace_back(blocks_.back().parameters(),
                           SGDOptions{.learning_rate = 0.1, .momentum = 0.5});
      }
    }
  }

  // Runs the operations before `end`; the step may fail where the program says.
  void call(std::size_t end, bool fails, std::uint64_t data) {
    Tensors x, index;
    for (int r = 0; r < replicas_; ++r) {
      x.push_back(at::randn(
          {4, 3}, at::detail::createCPUGenerator(data * 8 + static_cast<std::uint64_t>(r))));
      const bool is_bad = fails && (!program_.one_replica_fails || r == replicas_ - 1);
      index.push_back(torch::full({1}, is_bad ? 99 : 0, torch::kLong));
    }
    const PerReplica<at::Tensor> all(x), indices(index);
    const Step step = [this, end](const at::Tensor& rows, const at::Tensor& row) {
      return this->step(end, rows, row);
    };
    if (way_ == Way::run) {
      strategy_.run(step, all, indices);
    } else {
      functions_.try_emplace(end, strategy_.function(step)).first->second(all, indices);
    }
  }

  Tensors values(bool draws) const {
    Tensors values;
    std::vector<Variable> variables{seen_, scratch_, counter_};
    for (const auto& block : blocks_)
      variables.insert(variables.end(), block.variables().begin(), block.variables().end());
    for (const Variable& variable : variables) {
      for (const Variable& each : strategy_.local_results(variable))
        values.push_back(each.read().detach().clone());
    }
    if (draws) values.push_back(torch::rand({2}));  // where LibTorch's generator is
    return values;
  }

 private:
  using Step = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

  at::Tensor step(std::size_t end, const at::Tensor& x, const at::Tensor& index) {
    const at::Tensor table = torch::ones({2, 1});
    std::array<at::Tensor, 2> outputs{x, x};
    at::Tensor factor = torch::ones({1});
    for (std::size_t i = 0; i <= end; ++i) {
      const bool may_fail = i == program_.fails_at && end == program_.ops.size();
      if (may_fail) factor = factor * torch::embedding(table, index).flatten();
      if (i < end) run(program_.ops[i], x, outputs);
    }
    return factor;
  }

  void minimize(std::size_t i, const at::Tensor& x) {
    const at::Tensor loss = average_loss(blocks_[i]->forward(x).square().mean(1));
    if (torch_sgds_.empty()) {
      sgds_[i].minimize(loss);
    } else {
      torch_sgds_[i].minimize(loss);
    }
  }

  void run(Op op, const at::Tensor& x, std::array<at::Tensor, 2>& outputs) {
    switch (op) {
      case Op::forward_0:
      case Op::forward_1: {
        const std::size_t i = op == Op::forward_0 ? 0 : 1;
        outputs[i] = blocks_[i]->forward(outputs[i]).detach();
        break;
      }
      case Op::sum:
        seen_.assign_add(torch::full({}, 3, torch::kLong));
        break;
      case Op::write: {
        const torch::NoGradGuard no_grad;
        scratch_.tensor().mul_(0.5).add_(outputs[0].mean(0));
        break;
      }
      case Op::draw:
        scratch_.assign(torch::rand({3}));
        break;
      case Op::minimize_0:
        minimize(0, x);
        break;
      case Op::minimize_1:
        minimize(1, x);
        break;
      case Op::assign:
        counter_.assign_add(outputs[1].detach().mean());
        break;
    }
  }

  static VariableOptions on_read(VariableAggregation aggregation) {
    return {.is_trainable = false,
            .synchronization = VariableSynchronization::on_read,
            .aggregation = aggregation};
  }

  const StepProgram& program_;
  const int replicas_;
  const Way way_;
  MirroredStrategy strategy_;
  std::vector<Replicated<Block>> blocks_;
  std::map<std::size_t, StrategyFunction<Step>> functions_;  // by their ends
  std::vector<SGD> sgds_;
  std::vector<TorchOptimizer<torch::optim::SGD>> torch_sgds_;
  const Variable seen_ =
      strategy_.variable("seen", torch::zeros({}, torch::kLong), on_read(VariableAggregation::sum));
  const Variable scratch_ =
      strategy_.variable("scratch", torch::zeros({3}), on_read(VariableAggregation::mean));
  const Variable counter_ =
      strategy_.variable("counter", torch::zeros({}),
                         {.is_trainable = false, .aggregation = VariableAggregation::mean});
};

// The tensors after three calls, of which each fails once at first; if `fails` is false, each ends
// before that where its last update ends.
Tensors left_by_calls(const StepProgram& program, int replicas, Way way, bool fails) {
  torch::manual_seed(5);
  FailingSide side(program, replicas, way);
  Tensors left;
  const std::size_t size = program.ops.size(), kept = kept_operations(program);
  const auto add = [&] {
    for (at::Tensor& value : side.values(/*draws=*/way == Way::run || kept == 0))
      left.push_back(std::move(value));
  };
  side.call(size, false, 100);  // a trace that fails would leave nothing
  for (std::uint64_t i = 0; i < 3; ++i) {
    if (fails) {
      EXPECT_THROW(side.call(size, true, i), std::exception);
    } else if (kept > 0) {
      side.call(kept, false, i);
    }
    add();
    // A traced step draws its number when it begins, so it stays drawn with any update.
    if (way == Way::function && kept > 0) torch::manual_seed(i);
    side.call(size, false, i);
    add();
  }
  return left;
}

std::string text_of(const StepProgram& program) {
  std::string text = "operations";
  for (const Op op : program.ops) text += " " + std::to_string(static_cast<int>(op));
  return text + ", fails before " + std::to_string(program.fails_at) +
         (program.one_replica_fails ? " in one replica" : "") +
         (program.uses_torch_optimizers ? ", torch::optim" : "");
}

TEST(FailedStepFuzz, LeavesWhatWasThereAfterTheLastUpdate) {
  at::set_num_threads(1);
  const testing::FuzzRange range = testing::fuzz_range(kPrograms);
  for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    const StepProgram program = random_step(seed);
    for (const int replicas : {1, 2}) {
      for (const Way way : {Way::run, Way::function}) {
        const Tensors wanted = left_by_calls(program, replicas, way, false);
        const Tensors got = left_by_calls(program, replicas, way, true);
        ASSERT_EQ(got.size(), wanted.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          ASSERT_TRUE(got[i].equal(wanted[i]))
              << "COHORT_FUZZ_SEED=" << seed << " with " << replicas << " replicas, "
              << (way == Way::run ? "run(): " : "function(): ") << text_of(program) << ": value "
              << i << " of " << got.size() << ": " << got[i] << " for " << wanted[i];
        }
      }
    }
  }
}

struct ScalarsImpl : torch::nn::Module {
  ScalarsImpl() {
    for (int i = 0; i < 3; ++i)
      register_parameter("p" + std::to_string(i), torch::full({2}, 1.0 + i, torch::kDouble));
  }
};
TORCH_MODULE(Scalars);

using Coefficients = std::array<double, 3>;

// A loss that reaches the parameters whose coefficient is not 0; one is not.
at::Tensor loss_of(const Tensors& parameters, const Coefficients& coefficients) {
  at::Tensor loss;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (coefficients[i] == 0) continue;
    const at::Tensor part = (parameters[i] * coefficients[i]).square().sum();
    loss = loss.defined() ? loss + part : part;
  }
  return loss;
}

// An act of both programs.
struct Event {
  // One step with its own passes; minimize(); zero_grad(), after which all passes count, and the
  // step that ends it; and a run that fails after a pass.
  enum class Kind { round, minimize, begin, end, fail } kind;
  std::size_t optimizer = 0;
  std::vector<Coefficients> losses = {};  // of its backward passes
  bool begins_run = false;
};

// Optimizer 0 trains the first parameter, optimizer 1 the others.
std::vector<Event> random_events(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Event> events;
  std::array<bool, 2> accumulates{false, false};
  for (int i = 0; i < 14; ++i) {
    Event event{static_cast<Event::Kind>(random() % 5), random() % 2};
    const bool is_any = accumulates[0] || accumulates[1];
    bool& own = accumulates[event.optimizer];
    if (event.kind == Event::Kind::begin && own) event.kind = Event::Kind::end;
    if (event.kind == Event::Kind::end && !own) event.kind = Event::Kind::begin;
    if (event.kind == Event::Kind::fail && is_any) continue;
    own = event.kind == Event::Kind::begin;
    for (std::size_t k = 0; k < 1 + random() % 2; ++k) {
      Coefficients& loss = event.losses.emplace_back();
      for (double& each : loss) each = static_cast<double>(random() % 3) / 4;
      loss[random() % 3] = 0.25;
    }
    // A step whose own losses have no gradient would use those of another's, as one loss may serve
    // several optimizers.
    event.losses[0][event.optimizer] = 0.5;
    event.begins_run = event.kind == Event::Kind::fail || random() % 2 == 0 ||
                       (!events.empty() && events.back().kind == Event::Kind::fail);
    events.push_back(std::move(event));
  }
  return events;
}

Tensors of_optimizer(const Tensors& all, std::size_t optimizer) {
  return optimizer == 0 ? Tensors{all[0]} : Tensors{all[1], all[2]};
}

torch::optim::SGD sgd_of(const Tensors& all, std::size_t optimizer) {
  return torch::optim::SGD(of_optimizer(all, optimizer),
                           torch::optim::SGDOptions(0.05).momentum(0.5));
}

// LibTorch's own program.
Tensors trained_by_torch(const std::vector<Event>& events) {
  Scalars model;
  const Tensors all = model->parameters();
  std::array<torch::optim::SGD, 2> optimizers{sgd_of(all, 0), sgd_of(all, 1)};
  std::array<bool, 2> accumulates{false, false};
  const auto clear = [](torch::optim::SGD& optimizer) {
    for (auto& group : optimizer.param_groups())
      for (at::Tensor& each : group.params()) each.mutable_grad().reset();
  };
  for (const Event& event : events) {
    torch::optim::SGD& own = optimizers[event.optimizer];
    bool& is_accumulating = accumulates[event.optimizer];
    switch (event.kind) {
      case Event::Kind::round:
        if (!is_accumulating) clear(own);
        for (const Coefficients& each : event.losses) loss_of(all, each).backward();
        own.step();
        clear(own);
        is_accumulating = false;
        break;
      case Event::Kind::minimize: {
        clear(own);
        const Tensors wanted = of_optimizer(all, event.optimizer);
        const Tensors gradients =
            torch::autograd::grad({loss_of(all, event.losses[0])}, wanted, {}, {}, false, true);
        for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i].mutable_grad() = gradients[i];
        own.step();
        clear(own);
        is_accumulating = false;
        break;
      }
      case Event::Kind::begin:
        clear(own);
        is_accumulating = true;
        break;
      case Event::Kind::end:
        own.step();
        clear(own);
        is_accumulating = false;
        break;
      case Event::Kind::fail:
        break;
    }
  }
  return all;
}

Tensors trained_by_replicas(const std::vector<Event>& events, int replicas) {
  MirroredStrategy strategy(testing::cpu_devices(replicas));
  const auto model = strategy.replicate([] { return Scalars(); });
  std::vector<TorchOptimizer<torch::optim::SGD>> optimizers;
  for (std::size_t i = 0; i < 2; ++i)
    optimizers.emplace_back(model, [i](const Tensors& all) { return sgd_of(all, i); });
  const auto happen = [&](const Event& event) {
    const Tensors all = model->parameters();
    const auto share = [&](const Coefficients& each) { return loss_of(all, each) / replicas; };
    const auto& own = optimizers[event.optimizer];
    if (event.kind == Event::Kind::minimize) return own.minimize(share(event.losses[0]));
    if (event.kind == Event::Kind::begin) own.zero_grad();
    if (event.kind == Event::Kind::round || event.kind == Event::Kind::fail) {
      for (const Coefficients& each : event.losses) share(each).backward();
    }
    const bool is_last = get_replica_context()->local_replica_id() == replicas - 1;
    if (event.kind == Event::Kind::fail && is_last) throw std::runtime_error("no");
    if (event.kind == Event::Kind::round || event.kind == Event::Kind::end) own.step();
  };
  for (std::size_t begin = 0; begin < events.size();) {
    std::size_t end = begin + 1;
    while (end < events.size() && !events[end].begins_run) ++end;
    const auto run = [&] {
      strategy.run([&] {
        for (std::size_t i = begin; i < end; ++i) happen(events[i]);
      });
    };
    if (events[begin].kind == Event::Kind::fail) {
      EXPECT_THROW(run(), std::runtime_error);
    } else {
      run();
    }
    begin = end;
  }
  Tensors values;
  for (const Variable& each : model.parameters()) values.push_back(each.read().detach());
  return values;
}

TEST(FailedStepFuzz, LeftoverGradientsCountAsInLibTorchAfterZeroGrad) {
  at::set_num_threads(1);
  const testing::FuzzRange range = testing::fuzz_range(kPrograms);
  for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    const std::vector<Event> events = random_events(seed);
    const Tensors wanted = trained_by_torch(events);
    for (const int replicas : {1, 2}) {
      const Tensors got = trained_by_replicas(events, replicas);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_TRUE(at::allclose(got[i], wanted[i], 1e-9, 1e-9))
            << "COHORT_FUZZ_SEED=" << seed << " with " << replicas << " replicas: parameter " << i
            << ": " << got[i] << " for " << wanted[i];
      }
    }
  }
}

}  // namespace
}  // namespace cohort::parity
