// SPDX-License-Identifier: Apache-2.0
// One training step of an MLP, eager and interpreted, and the cost of decoding a program.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <benchmark/benchmark.h>

#include "cohort/core/error.h"
#include "cohort/function/program/wire.h"
#include "cohort/function/trace.h"

namespace cohort::function {
namespace {

using Tensors = std::vector<at::Tensor>;

// A host for programs without effects.
class NoResources : public internal::EffectHandler {
 public:
  Tensors iterator_next(std::int64_t) override { refuse(); }
  void update(internal::Effect) override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    throw Error(ErrorCode::internal, "[bench] no resources here");
  }
};

// An MLP 64-64-64-10 on batches of 32 with SGD.
class Mlp {
 public:
  Mlp() {
    constexpr std::int64_t kUnits[] = {64, 64, 64, 10};
    for (int layer = 0; layer < 3; ++layer) {
      add(at::randn({kUnits[layer + 1], kUnits[layer]}).mul_(0.1));
      add(at::randn({kUnits[layer + 1]}).mul_(0.1));
    }
  }

  Tensors step(const Tensors& batch) {
    at::Tensor x = batch[0];
    for (std::size_t i = 0; i < weights.size(); i += 2) {
      x = at::linear(x, weights[i], weights[i + 1]);
      if (i + 2 < weights.size()) x = at::relu(x);
    }
    const at::Tensor loss = at::cross_entropy_loss(x, batch[1]);
    for (at::Tensor& weight : weights) weight.mutable_grad().reset();
    loss.backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& weight : weights) weight.sub_(weight.grad(), 0.01);
    return {loss.detach()};
  }

  // The variables are local: the program updates the given tensors in place.
  Bytes trace() {
    TraceOptions options;
    options.variable_of = [this](const void* storage) -> const TracedVariable* {
      for (std::size_t i = 0; i < weights.size(); ++i) {
        if (weights[i].storage().unsafeGetStorageImpl() == storage) return &variables_[i];
      }
      return nullptr;
    };
    return function::trace(
               batch(), batch(), [this](const Tensors& inputs) { return step(inputs); }, options)
        .bytes;
  }

  static Tensors batch() { return {at::randn({32, 64}), at::randint(10, {32}, at::kLong)}; }

  Tensors weights;

 private:
  void add(const at::Tensor& weight) {
    weights.push_back(weight.detach().requires_grad_());
    variables_.push_back(
        {.name = std::string("w").append(std::to_string(variables_.size())), .is_remote = false});
  }

  std::vector<TracedVariable> variables_;
};

void eager_step(benchmark::State& state) {
  Mlp mlp;
  const Tensors batch = Mlp::batch();
  for (auto _ : state) benchmark::DoNotOptimize(mlp.step(batch));
}
BENCHMARK(eager_step);

void interpreted_step(benchmark::State& state) {
  Mlp mlp;
  const Tensors batch = Mlp::batch();
  const auto program = PreparedProgram::decode(mlp.trace());
  Tensors variables;
  for (const ProgramInfo::Variable& variable : program->info().variables) {
    variables.push_back(
        mlp.weights.at(static_cast<std::size_t>(variable.name.back() - '0')).detach());
  }
  NoResources host;
  for (auto _ : state) benchmark::DoNotOptimize(program->run(batch, variables, host, 1));
  state.counters["ops"] = static_cast<double>(program->info().op_count);
}
BENCHMARK(interpreted_step);

void decode_only(benchmark::State& state) {
  const Bytes bytes = Mlp().trace();
  for (auto _ : state) benchmark::DoNotOptimize(decode_program(bytes));
  state.counters["bytes"] = static_cast<double>(bytes.size());
}
BENCHMARK(decode_only);

void decode_and_prepare(benchmark::State& state) {
  const Bytes bytes = Mlp().trace();
  for (auto _ : state) benchmark::DoNotOptimize(PreparedProgram::decode(bytes));
}
BENCHMARK(decode_and_prepare);

void trace_twice(benchmark::State& state) {
  Mlp mlp;
  for (auto _ : state) benchmark::DoNotOptimize(mlp.trace());
}
BENCHMARK(trace_twice);

}  // namespace
}  // namespace cohort::function
