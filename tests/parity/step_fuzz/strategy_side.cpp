// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/step_fuzz/strategy_side.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include <cctype>
#include <mutex>
#include <utility>

#include "tests/parity/step_fuzz/generator.h"
#include "tests/parity/step_fuzz/ops.h"

namespace cohort::parity {
namespace {

StepArguments arguments_of_replica(const Nest& given, std::int64_t integer, double real,
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

}  // namespace

StrategySide::StrategySide(const Program& program, SynchronousStrategy& strategy)
    : program_(program),
      strategy_(strategy),
      world_(make_world(program,
                        [&](const std::string& name, const at::Tensor& value, bool is_trainable) {
                          return make_variable(name, value, is_trainable);
                        })),
      elements_(make_elements(program)) {}

std::vector<StepArguments> StrategySide::step_arguments(const Call& call,
                                                        std::size_t number) const {
  std::vector<StepArguments> all;
  for (const Nest& given : strategy_.local_results(arguments(call, number))) {
    all.push_back(arguments_of_replica(given, call.integer, call.real,
                                       at::scalar_tensor(call.scale, at::kDouble)));
  }
  return all;
}

std::vector<Tensors> StrategySide::call(const Call& call, std::size_t number, bool is_traced) {
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

Tensors StrategySide::values() const {
  Tensors values;
  for (const std::vector<Variable>* variables : {&world_.variables, &world_.buffers}) {
    for (const Variable& variable : *variables) {
      for (const Variable& component : strategy_.local_results(variable))
        values.push_back(component.read().detach());
    }
  }
  return values;
}

// Replicas may write into buffers in place, other values in each: in half of the programs they are
// synchronized on read, so that this is no error.
Variable StrategySide::make_variable(const std::string& name, const at::Tensor& value,
                                     bool is_trainable) {
  VariableOptions options{.is_trainable = is_trainable};
  if (!is_trainable && program_.seed % 2 == 0) {
    options.synchronization = VariableSynchronization::on_read;
    options.aggregation = VariableAggregation::only_first_replica;
  }
  return strategy_.variable(name, value, options);
}

Nest StrategySide::run(const Nest& given, std::int64_t integer, double real,
                       const at::Tensor& factor) const {
  Nest::Items outputs;
  StepArguments arguments = arguments_of_replica(given, integer, real, factor);
  for (const at::Tensor& output : Step(program_, world_, std::move(arguments)).run())
    outputs.emplace_back(output);
  return Nest::list(std::move(outputs));
}

// Other values in each replica, and in some programs another size of the batch.
PerReplica<Nest> StrategySide::arguments(const Call& call, std::size_t number) const {
  std::vector<Nest> all;
  for (int r = 0; r < strategy_.num_replicas_in_sync(); ++r) {
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

Outcome outcome_of(StrategySide& side, const Call& call, std::size_t number, bool is_traced) {
  try {
    return {side.call(call, number, is_traced), std::nullopt};
  } catch (const Error& error) {
    return {{}, error};
  } catch (const std::exception& error) {
    return {{}, Error(ErrorCode::unknown, error.what())};
  }
}

std::string first_difference(const Tensors& got, const Tensors& wanted, Tolerance tolerance) {
  if (got.size() != wanted.size()) return std::to_string(got.size()) + " variables";
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::string text = difference(got[i], wanted[i], tolerance);
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

Tolerance tolerance_for(const Program& program) {
  Tolerance tolerance{.ignores_sign_of_zero = program.old_gradients != OldGradients::dropped};
  for (const Instruction& instruction : program.instructions) {
    if (step_ops().at(static_cast<std::size_t>(instruction.op)).is_rewritten)
      tolerance.relative = 1e-6;
  }
  return tolerance;
}

Program shrunk(Program program, const std::function<bool(const Program&)>& goes_wrong) {
  for (bool has_shrunk = true; has_shrunk;) {
    has_shrunk = false;
    for (std::size_t i = program.instructions.size(); i-- > 0;) {
      Program smaller = program;
      smaller.instructions.erase(smaller.instructions.begin() + static_cast<std::ptrdiff_t>(i));
      if (!goes_wrong(smaller)) continue;
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

}  // namespace cohort::parity
