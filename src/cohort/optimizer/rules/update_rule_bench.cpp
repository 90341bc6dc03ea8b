// SPDX-License-Identifier: Apache-2.0
// Bytes per second of value, slots and gradient that a rule processes, in place and into another
// buffer.
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include "cohort/optimizer/optimizer.h"

namespace cohort {
namespace {

void run_rule(benchmark::State& state, std::string_view name, bool is_in_place) {
  const variable::UpdateRule& rule = optimizer::update_rule_of(name);
  const std::vector<double> hyper(rule.hyperparameter_names().size(), 1e-3);
  const at::TensorOptions options(at::kFloat);
  at::Tensor value = at::randn({state.range(0)}, options);
  at::Tensor other = is_in_place ? value : at::randn({state.range(0)}, options);
  const at::Tensor gradient = at::randn({state.range(0)}, options);
  std::vector<at::Tensor> slots = rule.create_slots(value, hyper);
  std::size_t bytes = value.nbytes() + other.nbytes() + gradient.nbytes();
  for (const at::Tensor& slot : slots) bytes += 2 * slot.nbytes();
  for (auto _ : state) rule.update(other, value, slots, gradient, hyper);
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

// One size that fits the cache, and one far larger.
void add_sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Arg(10'000)->Arg(100'352)->Arg(40 << 20)->UseRealTime();
}

const bool kIsRegistered = [] {
  for (const std::string_view name : optimizer::update_rule_names()) {
    for (const bool is_in_place : {true, false}) {
      const std::string title = std::string(name) + (is_in_place ? "/in_place" : "/other_buffer");
      add_sizes(benchmark::RegisterBenchmark(title.c_str(), run_rule, name, is_in_place));
    }
  }
  return true;
}();

}  // namespace
}  // namespace cohort
