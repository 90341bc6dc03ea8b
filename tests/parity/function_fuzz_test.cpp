// SPDX-License-Identifier: Apache-2.0
// Random steps on 1, 2 and 4 replicas have the same bits by run(), by strategy.function(), and in a
// reference in which replicas run one after the other without a strategy. function() may refuse a
// step, with a reason.
//
//   COHORT_FUZZ_PROGRAMS=2000 build/dev/tests/function_fuzz_test    # a long run
//   COHORT_FUZZ_SEED=17 build/dev/tests/function_fuzz_test          # one program, printed
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "cohort/core/error.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "tests/parity/step_fuzz/comparison.h"
#include "tests/parity/step_fuzz/generator.h"
#include "tests/parity/step_fuzz/ops.h"
#include "tests/parity/step_fuzz/sequential_side.h"

namespace cohort::parity {
namespace {

std::optional<std::uint64_t> number_in_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

Tolerance tolerance_for(const Program& program) {
  Tolerance tolerance{.ignores_sign_of_zero = program.old_gradients != OldGradients::dropped};
  for (const Instruction& instruction : program.instructions) {
    if (step_ops().at(static_cast<std::size_t>(instruction.op)).is_rewritten)
      tolerance.relative = 1e-6;
  }
  return tolerance;
}

std::vector<std::string> devices(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back("CPU:" + std::to_string(i));
  return names;
}

// A program with its own variables, in the replicas of a strategy. Used from one thread.
class Side {
 public:
  Side(const Program& program, int replicas)
      : program_(program),
        replicas_(replicas),
        strategy_(devices(replicas)),
        world_(make_world(program,
                          [&](const std::string& name, const at::Tensor& value, bool is_trainable) {
                            return make_variable(name, value, is_trainable);
                          })),
        elements_(make_elements(program)) {}

  // For each replica.
  std::vector<StepArguments> step_arguments(const Call& call, std::size_t number) const {
    std::vector<StepArguments> all;
    for (const Nest& given : strategy_.local_results(arguments(call, number))) {
      all.push_back(step_arguments(given, call.integer, call.real,
                                   at::scalar_tensor(call.scale, at::kDouble)));
    }
    return all;
  }

  // The results of each replica, copied.
  std::vector<Tensors> call(const Call& call, std::size_t number, bool is_traced) {
    set_learning_rate(world_, call);
    {
      at::Generator generator = at::detail::getDefaultCPUGenerator();
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_current_seed(number + 1);
    }
    at::autocast::clear_cache();
    const function::TracingModeScope mode(mode_of(program_));
    const PerReplica<Nest> tensors = arguments(call, number);
    const at::Tensor scale = at::scalar_tensor(call.scale, at::kDouble);
    const PerReplica<Nest> results =
        is_traced ? function_(tensors, call.integer, call.real, scale)
                  : strategy_.run(body_, tensors, call.integer, call.real, scale);
    is_wrapped_ = results.is_wrapped();
    std::vector<Tensors> copies;
    for (const Nest& result : strategy_.local_results(results)) {
      Tensors& own = copies.emplace_back();
      for (const at::Tensor& tensor : result.flatten_tensors())
        own.push_back(tensor.detach().clone());
    }
    return copies;
  }

  bool is_wrapped() const { return is_wrapped_; }
  // The components of all variables, and then those of all buffers.
  Tensors values() const {
    Tensors values;
    for (const std::vector<Variable>* variables : {&world_.variables, &world_.buffers}) {
      for (const Variable& variable : *variables) {
        for (const Variable& component : strategy_.local_results(variable))
          values.push_back(component.read().detach());
      }
    }
    return values;
  }

 private:
  using Body = std::function<Nest(const Nest&, std::int64_t, double, const at::Tensor&)>;

  // Replicas may write into buffers in place, other values in each: in half of the programs they
  // are synchronized on read, so that this is no error.
  Variable make_variable(const std::string& name, const at::Tensor& value, bool is_trainable) {
    VariableOptions options{.is_trainable = is_trainable};
    if (!is_trainable && program_.seed % 2 == 0) {
      options.synchronization = VariableSynchronization::on_read;
      options.aggregation = VariableAggregation::only_first_replica;
    }
    return strategy_.variable(name, value, options);
  }

  static StepArguments step_arguments(const Nest& given, std::int64_t integer, double real,
                                      const at::Tensor& factor) {
    StepArguments arguments{.tensors = given.items().at(0).flatten_tensors(),
                            .integer = integer,
                            .real = real,
                            .scale = factor};
    const Tensors fields = given.items().at(1).flatten_tensors();
    arguments.draw = [fields] {
      Tensors copies;
      for (const at::Tensor& field : fields) copies.push_back(field.clone());
      return copies;
    };
    return arguments;
  }

  Nest run(const Nest& given, std::int64_t integer, double real, const at::Tensor& factor) const {
    Nest::Items outputs;
    StepArguments arguments = step_arguments(given, integer, real, factor);
    for (const at::Tensor& output : Step(program_, world_, std::move(arguments)).run())
      outputs.emplace_back(output);
    return Nest::list(std::move(outputs));
  }

  // Other values in each replica, and in some programs another size of the batch.
  PerReplica<Nest> arguments(const Call& call, std::size_t number) const {
    std::vector<Nest> all;
    for (int r = 0; r < replicas_; ++r) {
      Call own = call;
      own.value_seed += static_cast<std::uint64_t>(r);
      if (program_.seed % 3 == 0) own.batch += r % 2;
      Nest::Items tensors, fields;
      for (const at::Tensor& tensor : make_arguments(program_, own))
        tensors.emplace_back(tensor.clone(at::MemoryFormat::Contiguous));
      const auto row = static_cast<std::int64_t>(number + static_cast<std::size_t>(r)) % kElements;
      for (const at::Tensor& field : elements_) fields.emplace_back(field[row].clone());
      all.push_back(Nest::tuple({Nest::list(std::move(tensors)), Nest::list(std::move(fields))}));
    }
    return PerReplica<Nest>(std::move(all));
  }

  const Program& program_;
  const int replicas_;
  MirroredStrategy strategy_;
  const World world_;
  const Tensors elements_;
  const Body body_ = [this](const Nest& given, std::int64_t integer, double real,
                            const at::Tensor& factor) { return run(given, integer, real, factor); };
  const StrategyFunction<Body> function_ = strategy_.function(body_);
  bool is_wrapped_ = false;
};

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

// The results of a call, or its error.
struct Outcome {
  std::vector<Tensors> results;
  std::optional<Error> error;
};

Outcome outcome_of(Side& side, const Call& call, std::size_t number, bool is_traced) {
  try {
    return {side.call(call, number, is_traced), std::nullopt};
  } catch (const Error& error) {
    return {{}, error};
  } catch (const std::exception& error) {
    return {{}, Error(ErrorCode::unknown, error.what())};
  }
}

std::string first_difference(const Tensors& got, const Tensors& wanted, Tolerance tolerance) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::string text = difference(got.at(i), wanted[i], tolerance);
    if (!text.empty()) return "value " + std::to_string(i) + " of the variables: " + text;
  }
  return {};
}

std::string first_difference(const std::vector<Tensors>& got, const std::vector<Tensors>& wanted,
                             Tolerance tolerance) {
  if (got.size() != wanted.size()) return std::to_string(got.size()) + " results";
  for (std::size_t r = 0; r < got.size(); ++r) {
    if (got[r].size() != wanted[r].size()) return "another number of outputs";
    for (std::size_t i = 0; i < got[r].size(); ++i) {
      const std::string text = difference(got[r][i], wanted[r][i], tolerance);
      if (!text.empty())
        return "output " + std::to_string(i) + " of replica " + std::to_string(r) + ": " + text;
    }
  }
  return {};
}

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
  Side eager(program, replicas), traced(program, replicas);
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

// Removes instructions as long as the program goes wrong.
Program shrunk(Program program, int replicas, Verdict& verdict) {
  for (bool has_shrunk = true; has_shrunk;) {
    has_shrunk = false;
    for (std::size_t i = program.instructions.size(); i-- > 0;) {
      Program smaller = program;
      smaller.instructions.erase(smaller.instructions.begin() + static_cast<std::ptrdiff_t>(i));
      const Verdict now = compare(smaller, replicas);
      if (now.kind != Verdict::Kind::wrong) continue;
      verdict = now;
      program = std::move(smaller);
      has_shrunk = true;
    }
  }
  return program;
}

std::string reason_of(const std::string& error) {
  std::string reason;
  for (const char letter : error.substr(0, error.find("; op #"))) {
    if (letter == '\n' || reason.size() > 160) break;
    if (std::isdigit(static_cast<unsigned char>(letter)) == 0) reason += letter;
  }
  return reason;
}

TEST(FunctionFuzz, StepsEqualThoseOfRun) {
  at::set_num_threads(1);  // LibTorch 2's order of additions depends on it
  const auto only = number_in_environment("COHORT_FUZZ_SEED");
  const std::uint64_t first = only.value_or(1);
  const std::uint64_t count = number_in_environment("COHORT_FUZZ_PROGRAMS").value_or(only ? 1 : 60);
  std::map<Verdict::Kind, std::uint64_t> kinds;
  std::map<std::string, std::uint64_t> refusals;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const Program program = random_program(seed);
    if (only && count == 1) std::cout << to_string(program);
    for (const int replicas : {1, 2, 4}) {
      Verdict verdict = compare(program, replicas);
      ++kinds[verdict.kind];
      if (verdict.kind == Verdict::Kind::refused) ++refusals[reason_of(verdict.text)];
      if (verdict.kind != Verdict::Kind::wrong) continue;
      const Program smaller = shrunk(program, replicas, verdict);
      ADD_FAILURE() << "COHORT_FUZZ_SEED=" << seed << " with " << replicas
                    << " replicas: " << verdict.text << "\n"
                    << to_string(smaller);
    }
  }
  std::cout << kinds[Verdict::Kind::equal] << " equal, " << kinds[Verdict::Kind::refused]
            << " refused, " << kinds[Verdict::Kind::both_throw] << " throw in both ways\n";
  for (const auto& [reason, times] : refusals) std::cout << "  " << times << ": " << reason << '\n';
  if (count < 50) return;
  EXPECT_GE(kinds[Verdict::Kind::equal], count * 2);
}

}  // namespace
}  // namespace cohort::parity
