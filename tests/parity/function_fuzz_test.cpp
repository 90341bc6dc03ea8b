// SPDX-License-Identifier: Apache-2.0
// Random steps on 1, 2 and 4 replicas have the same bits by run(), by strategy.function(), and in a
// reference in which replicas run one after the other without a strategy. function() may refuse a
// step, with a reason.
//
//   COHORT_FUZZ_PROGRAMS=2000 build/dev/tests/function_fuzz_test    # a long run
//   COHORT_FUZZ_SEED=17 build/dev/tests/function_fuzz_test          # one program, printed
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <string_view>

#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/fuzz_range.h"
#include "tests/parity/step_fuzz/generator.h"
#include "tests/parity/step_fuzz/sequential_side.h"
#include "tests/parity/step_fuzz/strategy_side.h"

namespace cohort::parity {
namespace {

struct Verdict {
  enum class Kind : std::uint8_t { equal, refused, both_throw, wrong };
  Kind kind = Kind::equal;
  std::string text = {};
};

// Tracing and joining may refuse a step: the remedy is run(). Any other error of a traced step is
// wrong.
bool is_refusal(const Error& error) {
  return std::string_view(error.what()).find("run() in") != std::string_view::npos;
}

Verdict wrong(const std::string& text) { return {Verdict::Kind::wrong, text}; }

// Whether replicas have written other values into one variable: run() and function() then throw,
// and the reference, which has no strategy, does not.
bool is_disagreement(const Error& error, const Tensors& values, int replicas) {
  if (std::string_view(error.what()).find("expected equal values of variable") ==
      std::string_view::npos) {
    return false;
  }
  const auto count = static_cast<std::size_t>(replicas);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!difference(values[i], values[i - i % count], {}).empty()) return true;
  }
  return false;
}

Verdict compare(const Program& program, int replicas) {
  const Tolerance tolerance = tolerance_for(program);
  MirroredStrategy strategies[] = {MirroredStrategy(testing::cpu_devices(replicas)),
                                   MirroredStrategy(testing::cpu_devices(replicas))};
  StrategySide eager(program, strategies[0]), traced(program, strategies[1]);
  SequentialSide sequential(program, replicas);
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const std::string call = "call " + std::to_string(i) + ": ";
    const SequentialSide::Outcome expected =
        sequential.call(program.calls[i], eager.step_arguments(program.calls[i], i), i + 1);
    const Outcome wanted = outcome_of(eager, program.calls[i], i, false);
    if (wanted.error && !expected.error &&
        !is_disagreement(*wanted.error, sequential.values(), replicas))
      return wrong(call + "only run() throws " + wanted.error->what());
    if (!wanted.error && expected.error)
      return wrong(call + "only the reference throws " + *expected.error);
    if (!wanted.error) {
      std::string text = first_difference(wanted.results, expected.outputs, {});
      if (text.empty()) text = first_difference(eager.values(), sequential.values(), {});
      if (!text.empty()) return wrong(call + "run() differs from the reference: " + text);
    }
    const Outcome got = outcome_of(traced, program.calls[i], i, true);
    if (wanted.error && got.error) return {Verdict::Kind::both_throw, got.error->what()};
    if (wanted.error) return wrong(call + "only run() throws " + wanted.error->what());
    if (got.error && is_refusal(*got.error)) return {Verdict::Kind::refused, got.error->what()};
    if (got.error) return wrong(call + got.error->what());
    const std::string text = first_difference(got.results, wanted.results, tolerance);
    if (!text.empty()) return wrong(call + text);
    if (eager.is_wrapped() != traced.is_wrapped()) return wrong(call + "is regrouped otherwise");
    const std::string change = first_difference(traced.values(), eager.values(), tolerance);
    if (!change.empty()) return wrong(call + change);
  }
  return {};
}

TEST(FunctionFuzz, StepsEqualThoseOfRun) {
  at::set_num_threads(1);  // LibTorch 2's order of additions depends on it
  const testing::FuzzRange range = testing::fuzz_range(60);
  std::map<Verdict::Kind, std::uint64_t> kinds;
  std::map<std::string, std::uint64_t> refusals;
  for (std::uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    const Program program = random_program(seed);
    if (range.count == 1) std::cout << to_string(program);
    for (const int replicas : {1, 2, 4}) {
      Verdict verdict = compare(program, replicas);
      ++kinds[verdict.kind];
      if (verdict.kind == Verdict::Kind::refused) ++refusals[reason_of(verdict.text)];
      if (verdict.kind != Verdict::Kind::wrong) continue;
      const Program smaller = shrunk(program, [&](const Program& candidate) {
        const Verdict now = compare(candidate, replicas);
        if (now.kind == Verdict::Kind::wrong) verdict = now;
        return now.kind == Verdict::Kind::wrong;
      });
      ADD_FAILURE() << "COHORT_FUZZ_SEED=" << seed << " with " << replicas
                    << " replicas: " << verdict.text << "\n"
                    << to_string(smaller);
    }
  }
  std::cout << kinds[Verdict::Kind::equal] << " equal, " << kinds[Verdict::Kind::refused]
            << " refused, " << kinds[Verdict::Kind::both_throw] << " throw in both ways\n";
  for (const auto& [reason, times] : refusals) std::cout << "  " << times << ": " << reason << '\n';
  if (range.count < 50) return;
  EXPECT_GE(kinds[Verdict::Kind::equal], range.count * 2);
}

}  // namespace
}  // namespace cohort::parity
