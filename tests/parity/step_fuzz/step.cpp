// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/step_fuzz/step.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/optimizer/optimizers.h"
#include "tests/parity/step_fuzz/ops.h"

namespace cohort::parity {
namespace {

Optimizer make_optimizer(const OptimizerKind& kind, const World& world, double learning_rate) {
  std::vector<Variable> variables;
  for (const int index : kind.variables)
    variables.push_back(world.variables.at(static_cast<std::size_t>(index)));
  if (kind.rule == "sgd") return SGD(variables, {.learning_rate = learning_rate});
  if (kind.rule == "momentum")
    return SGD(variables, {.learning_rate = learning_rate, .momentum = 0.9});
  if (kind.rule == "nesterov")
    return SGD(variables, {.learning_rate = learning_rate, .momentum = 0.9, .nesterov = true});
  if (kind.rule == "adagrad") return Adagrad(variables, {.learning_rate = learning_rate});
  if (kind.rule == "rmsprop") return RMSprop(variables, {.learning_rate = learning_rate});
  COHORT_ASSERT(kind.rule == "adam");
  return Adam(variables, {.learning_rate = learning_rate});
}

const void* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

// Whether elements of the tensor share memory.
bool overlaps_itself(const at::Tensor& tensor) {
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) == 0) return true;
  }
  return false;
}

}  // namespace

World make_world(const Program& program, const MakeVariable& make) {
  World world;
  const auto value = [&](const TensorKind& kind, const std::string& name) {
    return make_tensor(kind, 0, mix_seed(program.seed, name));
  };
  for (std::size_t i = 0; i < program.variables.size(); ++i) {
    const std::string name = "variable" + std::to_string(i);
    world.variables.push_back(make(name, value(program.variables[i], name), true));
  }
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    const std::string name = "buffer" + std::to_string(i);
    world.buffers.push_back(make(name, value(program.buffers[i], name).abs(), false));
  }
  for (const TensorKind& kind : program.constants) {
    world.constants.push_back(value(kind, "constant" + std::to_string(world.constants.size())));
  }
  for (const OptimizerKind& kind : program.optimizers)
    world.optimizers.push_back(make_optimizer(kind, world, program.calls.at(0).learning_rate));
  const TensorKind rows{.sizes = {kTableRows, 3}};
  world.variables.push_back(make("table", value(rows, "table"), true));
  const OptimizerKind rule{.rule = program.seed % 2 == 0 ? "adagrad" : "momentum",
                           .variables = {static_cast<int>(world.variables.size()) - 1}};
  world.optimizers.push_back(make_optimizer(rule, world, program.calls.at(0).learning_rate));
  return world;
}

Step::Step(const Program& program, const World& world, StepArguments arguments)
    : program_(program),
      world_(world),
      arguments_(std::move(arguments)),
      is_buffer_assigned_(world.buffers.size()),
      is_buffer_written_(world.buffers.size()) {}

Tensors Step::run(const SeeResults& see) {
  clear_gradients();
  for (const Instruction& instruction : program_.instructions) {
    position_ = instruction.id;
    const StepOp& op = step_ops().at(static_cast<std::size_t>(instruction.op));
    Operands operands(*this, instruction);
    Tensors results;
    {
      const at::AutoGradMode mode(!instruction.is_without_grad && at::GradMode::is_enabled());
      results = op.run(operands);
    }
    COHORT_ASSERT(!results.empty());
    if (see) see(instruction, results);
    for (const Feature feature : op.features) note(feature);
    if (instruction.is_without_grad) note(Feature::no_grad);
    note_results(results);
    results_[instruction.id] = std::move(results);
  }
  position_ = -1;
  note_outputs();
  Tensors outputs;
  for (const Ref& output : program_.outputs) outputs.push_back(value(output));
  return outputs;
}

at::Tensor Step::value(const Ref& ref) {
  const auto index = static_cast<std::size_t>(ref.index);
  switch (ref.from) {
    case Ref::From::argument:
      break;
    case Ref::From::constant:
      if (index >= world_.constants.size()) break;
      note(Feature::captured_constant);
      return world_.constants[index];
    case Ref::From::variable:
      if (index >= world_.variables.size()) break;
      note_read(world_.variables[index]);
      return world_.variables[index].tensor();
    case Ref::From::buffer:
      if (index >= world_.buffers.size()) break;
      note_read(world_.buffers[index]);
      return world_.buffers[index].tensor();
    case Ref::From::result: {
      const auto found = results_.find(ref.index);
      if (found == results_.end()) break;
      return found->second[static_cast<std::size_t>(ref.part) % found->second.size()];
    }
  }
  // Also used if the referenced instruction was removed.
  return arguments_.tensors[index % arguments_.tensors.size()];
}

bool Step::shares_memory(const at::Tensor& tensor, const Tensors& others) const {
  const void* storage = storage_of(tensor);
  return std::any_of(others.begin(), others.end(),
                     [&](const at::Tensor& other) { return storage_of(other) == storage; });
}

bool Step::may_write(const at::Tensor& tensor) const {
  if (shares_memory(tensor, arguments_.tensors) || shares_memory(tensor, world_.constants))
    return false;
  for (const Variable& variable : world_.variables) {
    if (storage_of(variable.tensor()) == storage_of(tensor)) return false;
  }
  return !overlaps_itself(tensor) && !(tensor.is_leaf() && tensor.requires_grad());
}

void Step::note_write(const at::Tensor& tensor) {
  note(tensor.is_view() ? Feature::in_place_through_view : Feature::in_place_on_result);
  if (shares_memory(tensor, drawn_)) note(Feature::in_place_on_draw);
  for (std::size_t i = 0; i < world_.buffers.size(); ++i) {
    if (storage_of(world_.buffers[i].tensor()) != storage_of(tensor)) continue;
    note(Feature::in_place_on_buffer);
    is_buffer_written_[i] = true;
    if (is_buffer_assigned_[i]) note(Feature::buffer_assigned_and_written);
    note_update(world_.buffers[i]);
  }
}

void Step::note_assign_of_buffer(int buffer) {
  const auto index = static_cast<std::size_t>(buffer);
  is_buffer_assigned_.at(index) = true;
  if (is_buffer_written_[index]) note(Feature::buffer_assigned_and_written);
}

void Step::note_update(const Variable& variable) {
  const VariableImpl* impl = variable.impl().get();
  if (++updates_[impl] > 1) note(Feature::several_updates);
  if (reads_[impl] > 0) note(Feature::read_before_update);
}

void Step::note_read(const Variable& variable) {
  const VariableImpl* impl = variable.impl().get();
  ++reads_[impl];
  if (updates_[impl] > 0) note(Feature::read_after_update);
}

Tensors Step::draw() {
  Tensors fields = arguments_.draw();
  drawn_.insert(drawn_.end(), fields.begin(), fields.end());
  return fields;
}

void Step::clear_gradients() {
  for (const Variable& variable : world_.variables) {
    at::Tensor tensor = variable.tensor();
    at::Tensor& gradient = tensor.mutable_grad();
    if (program_.old_gradients == OldGradients::dropped) gradient = at::Tensor();
    if (program_.old_gradients == OldGradients::zeroed && gradient.defined())
      gradient.detach_().zero_();
  }
}

void Step::note_results(const Tensors& results) {
  for (const at::Tensor& result : results) {
    if (result.dim() == 0) note(Feature::zero_dim);
    if (result.numel() == 0) note(Feature::empty);
    if (result.dim() > 0 && result.size(0) == 1) note(Feature::one_row);
    if (result.scalar_type() == c10::kDouble) note(Feature::float64);
    if (c10::isIntegralType(result.scalar_type(), false)) note(Feature::integers);
    if (result.scalar_type() == c10::kBool) note(Feature::booleans);
    if (!result.is_contiguous()) note(Feature::strided_values);
  }
}

void Step::note_outputs() {
  for (const Ref& output : program_.outputs) {
    const at::Tensor returned = value(output);
    if (shares_memory(returned, arguments_.tensors)) note(Feature::returns_argument);
    for (const Variable& variable : world_.variables) {
      if (storage_of(variable.tensor()) == storage_of(returned)) note(Feature::returns_variable);
    }
    for (const Variable& buffer : world_.buffers) {
      if (storage_of(buffer.tensor()) == storage_of(returned)) note(Feature::returns_buffer);
    }
  }
}

}  // namespace cohort::parity
