// SPDX-License-Identifier: Apache-2.0
// Work that must not grow faster than the number of things it is for: each row does it for n and
// for 10 n of them, and prints the time for one, so that a ratio far below 1 shows a square. Tests
// compare the counted work (comparisons, programs, bytes). Also an optimizer's step of 10,000 small
// parameters beside LibTorch's own.
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/report.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/core/run_main.h"
#include "cohort/data/field_function.h"
#include "cohort/data/iterator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/variable/saved_values.h"

namespace cohort::bench {
namespace {

using Tensors = std::vector<at::Tensor>;

// `seconds(n)`: how long the work for n things takes.
void grow(const Bench& bench, const std::string& title, int n,
          const std::function<double(int n)>& seconds) {
  if (!bench.wants(title)) return;
  const auto contender = [&](int count) {
    return Contender{std::to_string(count),
                     [&seconds, count] { return 1e6 * seconds(count) / count; }};
  };
  bench.compare(title, {.unit = "us for one"}, {contender(n), contender(10 * n)});
}

// Their gradients are parts of one tensor.
at::Tensor loss_of(const Tensors& parameters) { return at::cat(parameters).square().sum(); }

Tensors small_parameters(int count) {
  Tensors parameters;
  for (int i = 0; i < count; ++i) parameters.push_back(at::full({4}, 0.5).requires_grad_());
  return parameters;
}

constexpr double kRate = 0.01;

class TorchSteps {
 public:
  explicit TorchSteps(int count)
      : parameters_(small_parameters(count)), sgd_(parameters_, torch::optim::SGDOptions(kRate)) {}
  void step() {
    sgd_.zero_grad();
    loss_of(parameters_).backward();
    sgd_.step();
  }
  at::Tensor value() const { return parameters_.back().detach(); }

 private:
  Tensors parameters_;
  torch::optim::SGD sgd_;
};

// minimize(), without a strategy or in run() of one replica.
class OurSteps {
 public:
  OurSteps(int count, bool is_run) : is_run_(is_run) {
    for (const at::Tensor& each : small_parameters(count)) {
      const std::string name = "v" + std::to_string(variables_.size());
      variables_.push_back(is_run ? strategy_.variable(name, each.detach())
                                  : local_variable(name, each.detach()));
    }
    sgd_ = std::make_unique<SGD>(variables_, SGDOptions{.learning_rate = kRate});
  }
  void step() {
    const auto body = [this] {
      Tensors parameters;
      for (const Variable& each : variables_) parameters.push_back(each.tensor());
      sgd_->minimize(loss_of(parameters));
    };
    if (is_run_) {
      strategy_.run(body);
    } else {
      body();
    }
  }
  at::Tensor value() const { return variables_.back().read().detach(); }

 private:
  const bool is_run_;
  MirroredStrategy strategy_{std::vector<std::string>{"CPU:0"}};
  std::vector<Variable> variables_;
  std::unique_ptr<SGD> sgd_;
};

void steps(const Bench& bench) {
  constexpr int kParameters = 10'000;
  const std::string title = "growth: an SGD step of 10,000 parameters";
  if (bench.wants(title)) {
    TorchSteps torch_steps(kParameters);
    OurSteps alone(kParameters, false), in_run(kParameters, true);
    torch_steps.step();
    alone.step();
    in_run.step();
    require(at::allclose(alone.value(), torch_steps.value()), title);
    require(at::allclose(in_run.value(), torch_steps.value()), title + ", run()");
    const auto measure = [](auto& way) {
      return [&way] { return 1e3 * seconds_of([&] { way.step(); }); };
    };
    bench.compare(title, {.unit = "ms"},
                  {{"LibTorch", measure(torch_steps)},
                   {"minimize()", measure(alone)},
                   {"minimize() in run()", measure(in_run)}});
  }
  grow(bench, "growth: minimize(), of n parameters", 1'000, [](int n) {
    OurSteps ours(n, false);
    ours.step();
    return seconds_of([&] { ours.step(); });
  });
}

void strategies(const Bench& bench) {
  grow(bench, "growth: variable(), n alive", 1'000, [](int n) {
    MirroredStrategy strategy({"CPU:0"});
    std::vector<Variable> variables;
    return seconds_of([&] {
      for (int i = 0; i < n; ++i)
        variables.push_back(strategy.variable("v" + std::to_string(i), at::ones({1})));
    });
  });
  const auto replicate = [](MirroredStrategy& strategy, int n) {
    std::vector<Replicated<torch::nn::Linear>> models;
    for (int i = 0; i < n; ++i) {
      models.push_back(
          strategy.replicate([] { return torch::nn::Linear(1, 1); }, {.name = std::to_string(i)}));
    }
    return models;
  };
  grow(bench, "growth: replicate(), n times", 100, [&](int n) {
    MirroredStrategy strategy({"CPU:0"});
    return seconds_of([&] { replicate(strategy, n); });
  });
  // So that the time for one module is that of all.
  grow(bench, "growth: n empty runs, n modules alive", 100, [&](int n) {
    MirroredStrategy strategy({"CPU:0"});
    const auto models = replicate(strategy, n);
    return seconds_of([&] {
      for (int i = 0; i < n; ++i) strategy.run([] {});
    });
  });
}

void files(const Bench& bench) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() /
      ("growth_bench_" + std::to_string(::getpid()) + ".safetensors");
  grow(bench, "growth: restore_values() of n", 1'000, [&](int n) {
    std::map<std::string, Variable> variables;
    for (int i = 0; i < n; ++i) {
      const std::string name = "v" + std::to_string(i);
      variables.emplace(name, local_variable(name, at::ones({1})));
    }
    save_values(file, variables);
    return seconds_of([&] { restore_values(file, variables); });
  });
  std::filesystem::remove(file);
}

void coordinators(const Bench& bench) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("growth_bench_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  testing::TestCluster cluster({.workers = 1,
                                .ps = 1,
                                .command = {COHORT_COMMAND, "server"},
                                .data_dirs = {folder.string()}});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  grow(bench, "growth: run_epoch(), n lengths", 20, [&](int n) {
    const std::string file = folder / std::to_string(n);
    std::ofstream lines(file);
    for (int i = 1; i <= n; ++i) {
      for (int word = 0; word < i; ++word) lines << "a ";
      lines << '\n';
    }
    lines.close();
    const Dataset data = Dataset::text_line(StringTensor({1}, {file}))
                             .map(data::split({}))
                             .map(data::lookup({}, {.tokens = {"a", "b"}}));
    const Function step([](Iterator& it) { return it.next<at::Tensor>().sum(); });
    return seconds_of([&] { coordinator.run_epoch(step, data); });
  });
  grow(bench, "growth: schedule(), n signatures", 50, [&](int n) {
    const Function step([](at::Tensor x) { return x.sum(); });
    return seconds_of([&] {
      for (int i = 1; i <= n; ++i) coordinator.schedule(step, at::ones({i}));
      coordinator.join();
    });
  });
  std::filesystem::remove_all(folder);
}

void run(const Bench& bench) {
  at::set_num_threads(1);
  steps(bench);
  strategies(bench);
  files(bench);
  if (bench.wants("growth: run_epoch(), n lengths") ||
      bench.wants("growth: schedule(), n signatures"))
    coordinators(bench);
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [&](const cohort::Arguments&) {
    cohort::bench::run(cohort::bench::Bench(argc, argv));
    return 0;
  });
}
