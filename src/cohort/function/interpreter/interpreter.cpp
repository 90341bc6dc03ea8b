// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/interpreter/interpreter.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <new>

#include "cohort/core/computed.h"
#include "cohort/core/error.h"
#include "cohort/core/torch_error.h"
#include "cohort/function/interpreter/output_memory.h"
#include "cohort/function/interpreter/row_gather.h"
#include "cohort/function/interpreter/run_values.h"
#include "cohort/function/program/value_text.h"
#include "cohort/function/program/wire.h"
#include "cohort/function/step_scope.h"

namespace cohort::function {
namespace {

// One execution of a plan. Used only from the thread that called run().
class Run {
 public:
  Run(const Plan& plan, internal::EffectHandler& host, std::optional<std::uint64_t> seed)
      : plan_(plan), host_(host), registers_(static_cast<std::size_t>(plan.value_count)) {
    if (!plan.has_generator) return;
    generator_ =
        seed ? at::detail::createCPUGenerator(*seed) : at::detail::getDefaultCPUGenerator();
  }

  std::vector<at::Tensor> execute(std::span<const at::Tensor> inputs,
                                  std::span<const at::Tensor> variables) {
    bind(inputs, variables);
    for (number_ = 0; number_ < plan_.ops.size(); ++number_) {
      host_.check_cancelled();
      step(plan_.ops[number_]);
    }
    return own_outputs(inputs, variables);
  }

 private:
  at::Tensor& at(int id) { return registers_[static_cast<std::size_t>(id)]; }

  void bind(std::span<const at::Tensor> inputs, std::span<const at::Tensor> variables) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const PlannedInput& planned = plan_.inputs[i];
      const at::Tensor input = row_major(inputs[i]);
      at(planned.id) = planned.is_copied ? input.clone() : input;
    }
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const PlannedVariable& planned = plan_.variables[i];
      at(planned.id) = variables[i];
      if (planned.needs_stand_in && !variables[i].defined()) {
        const TensorSpec& spec = plan_.info.variables[i].spec;
        at(planned.id) = at::zeros({1}, spec.dtype).expand(*spec.sizes);
      }
    }
    for (const PlannedConstant& constant : plan_.constants) {
      at(constant.id) = constant.is_copied ? constant.value.clone() : constant.value;
    }
  }

  void step(const PlannedOp& op) {
    stack_.clear();
    for (const Source& source : op.sources) push(source);
    if (op.effect == nullptr) {
      call(op);
    } else {
      act(op);
    }
    for (const int id : op.dead) at(id).reset();
  }

  void push(const Source& source) {
    switch (source.kind) {
      case Source::Kind::constant:
        stack_.push_back(source.constant);
        break;
      case Source::Kind::value:
        if (source.is_moved) {
          stack_.emplace_back(std::move(at(source.id)));
        } else {
          stack_.emplace_back(at(source.id));
        }
        break;
      case Source::Kind::list: {
        c10::List<at::Tensor> values;
        values.reserve(source.ids.size());
        for (const int id : source.ids) values.push_back(at(id));
        stack_.emplace_back(std::move(values));
        break;
      }
      case Source::Kind::optional_list: {
        c10::List<c10::optional<at::Tensor>> values;
        values.reserve(source.ids.size());
        for (const int id : source.ids) {
          values.push_back(id == -1 ? c10::optional<at::Tensor>()
                                    : c10::optional<at::Tensor>(at(id)));
        }
        stack_.emplace_back(std::move(values));
        break;
      }
      case Source::Kind::generator:
        stack_.emplace_back(generator_);
        break;
    }
  }

  [[noreturn]] void fail(const PlannedOp& op, ErrorCode code, std::string_view reason) const {
    throw Error(code,
                "[function.run] op #" + std::to_string(number_) + " " + op.name +
                    " failed: " + std::string(reason),
                ErrorCause::application);
  }

  // For an exception of a kernel, which has usually left its arguments on the stack.
  [[noreturn]] void fail_with_inputs(const PlannedOp& op, ErrorCode code,
                                     std::string_view reason) const {
    const bool has_all = stack_.size() == op.sources.size();
    const std::span<const c10::IValue> arguments(stack_.data(), has_all ? stack_.size() : 0);
    fail(op, code,
         std::string(reason) + " (with " + tensors_among(op.kernel->schema(), arguments) + ")");
  }

  void call(const PlannedOp& op) {
    try {
      if (op.is_without_gradients) {
        const at::NoGradGuard no_grad;
        op.kernel->callBoxed(&stack_);
      } else {
        op.kernel->callBoxed(&stack_);
      }
    } catch (const Error&) {
      throw;
    } catch (const c10::Error& thrown) {
      const Error error = error_of_torch(thrown, ErrorCode::invalid_argument);
      fail_with_inputs(op, error.code(), error.message());
    } catch (const std::bad_alloc&) {
      fail_with_inputs(op, ErrorCode::resource_exhausted, current_error().message());
    } catch (const std::exception& error) {
      fail_with_inputs(op, ErrorCode::internal, error.what());
    }
    for (std::size_t i = 0; i < op.outs.size(); ++i) {
      const Out& out = op.outs[i];
      if (out.is_list) {
        store_list(op, out, stack_[i].toTensorVector());
      } else if (out.ids[0] != -1) {
        store(op, out.ids[0], std::move(stack_[i]).toTensor());
      }
    }
  }

  void store(const PlannedOp& op, int id, at::Tensor value) {
    if (!value.defined()) fail(op, ErrorCode::internal, "a result is undefined that the trace had");
    at(id) = op.copies_results ? value.clone() : std::move(value);
  }

  void store_list(const PlannedOp& op, const Out& out, std::vector<at::Tensor> values) {
    if (values.size() != out.ids.size()) {
      fail(op, ErrorCode::internal,
           "it gave " + std::to_string(values.size()) + " tensors, the trace had " +
               std::to_string(out.ids.size()));
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (out.ids[i] != -1) store(op, out.ids[i], std::move(values[i]));
    }
  }

  // The tensor argument `index` of an effect, for the host to keep. Gives memory to a tensor of
  // zeros without memory (aten::_efficientzerotensor).
  at::Tensor give(const PlannedOp& op, std::size_t index) {
    at::Tensor value = std::move(stack_[index]).toTensor();
    const bool is_copied = op.copies_arguments || (value.defined() && value._is_zerotensor());
    return is_copied ? value.clone() : value;
  }
  std::int64_t integer(std::size_t index) const { return stack_[index].toInt(); }

  void act(const PlannedOp& op) {
    switch (op.effect->kind) {
      case EffectOpKind::iterator_next:
        draw(op);
        break;
      case EffectOpKind::update:
        host_.update(update_of(op));
        break;
      case EffectOpKind::gather:
        gather(op);
        break;
      case EffectOpKind::next_segment:
        pull_again(stack_[0].toIntVector());
        break;
      case EffectOpKind::wait_until_positive:
        host_.wait_until_positive(integer(0));
        break;
      case EffectOpKind::call: {
        std::vector<at::Tensor> values = stack_[2].toTensorVector();
        for (at::Tensor& value : values)
          if (op.copies_arguments || value._is_zerotensor()) value = value.clone();
        const std::int64_t number = integer(1);
        // The host may overwrite what nobody else has.
        stack_.clear();
        for (const int id : op.dead) at(id).reset();
        std::vector<at::Tensor> results = host_.call(number, std::move(values));
        for (at::Tensor& result : results) result = computed(result);
        if (!op.outs.empty()) store_list(op, op.outs[0], std::move(results));
        break;
      }
      case EffectOpKind::print:
        print_now(stack_[1].toTensor(), stack_[0].toStringRef());
        break;
      case EffectOpKind::check_finite:
        check_finite_now(stack_[1].toTensor(), stack_[0].toStringRef());
        break;
    }
  }

  double hyper_number(const PlannedOp& op, const at::Tensor& value) const {
    const bool is_number = value.defined() && value.is_cpu() && value.numel() == 1 &&
                           value.scalar_type() == at::kDouble;
    if (!is_number) fail(op, ErrorCode::invalid_argument, "expected hyperparameters of float64");
    return *value.data_ptr<double>();
  }

  internal::Effect update_of(const PlannedOp& op) {
    internal::Effect effect{.kind = op.effect->update};
    AverageStep step;
    for (std::size_t i = 0; i < op.effect->roles.size(); ++i) {
      switch (op.effect->roles[i]) {
        case UpdateRole::rule:
          effect.rule = stack_[i].toStringRef();
          break;
        case UpdateRole::optimizer:
          effect.optimizer = stack_[i].toStringRef();
          break;
        case UpdateRole::variable:
          effect.variable = static_cast<std::uint64_t>(integer(i));
          break;
        case UpdateRole::tensor:
          effect.tensors.push_back(give(op, i));
          break;
        case UpdateRole::row_ids:
          effect.row_ids = give(op, i);
          break;
        case UpdateRole::hyper:
          for (const at::Tensor& value : stack_[i].toTensorVector())
            effect.hyper.push_back(hyper_number(op, value));
          break;
        case UpdateRole::lazy_rows:
          effect.lazy_rows = stack_[i].toBool();
          break;
        case UpdateRole::momentum:
          step.momentum = stack_[i].toDouble();
          effect.hyper.push_back(step.momentum);
          break;
        case UpdateRole::old:
          step.old = stack_[i].toTensor();
          break;
        case UpdateRole::is_variance:
          step.is_variance = stack_[i].toBool();
          break;
      }
    }
    if (effect.kind == internal::Effect::Kind::apply) {
      internal::separate_rows(effect);
      if (effect.row_ids.defined()) drop_unused(effect.row_ids, effect.tensors.at(0));
    }
    if (effect.kind == internal::Effect::Kind::merge_average) {
      step.value = effect.tensors.at(0);
      effect.tensors.push_back(statistic_of(step));
    }
    return effect;
  }

  void draw(const PlannedOp& op) {
    std::vector<at::Tensor> fields = host_.iterator_next(integer(0));
    const std::vector<TensorSpec>& expected = plan_.info.draws[draw_++].fields;
    COHORT_CHECK(fields.size() == expected.size(), ErrorCode::invalid_argument,
                 "[function.run] expected an element of ", expected.size(), " fields, got ",
                 fields.size(), " (op #", number_, ")");
    for (std::size_t i = 0; i < fields.size(); ++i) {
      check_spec(expected[i], fields[i], "field", i, "");
      fields[i] = row_major(fields[i]);
    }
    store_list(op, op.outs[0], std::move(fields));
  }

  // Reads the rows of all tables that their ids name, and other variables, at once.
  void gather(const PlannedOp& op) {
    RowGather gather(stack_, plan_.info);
    internal::EffectHandler::Read read = host_.read(gather.reads(), gather.variables());
    store_list(op, op.outs[0], gather.results(std::move(read.rows)));
    store_variables(gather.variables(), std::move(read.variables));
  }

  // Pulls the variables again, in place, so that the run's views of them see the new values.
  void pull_again(const std::vector<std::int64_t>& variables) {
    store_variables(variables, host_.next_segment(variables));
  }

  void store_variables(const std::vector<std::int64_t>& variables, std::vector<at::Tensor> values) {
    COHORT_CHECK(values.size() == variables.size(), ErrorCode::internal, "[function.run] expected ",
                 variables.size(), " variables, got ", values.size(), " (op #", number_, ")");
    for (std::size_t i = 0; i < variables.size(); ++i) {
      const auto index = static_cast<std::size_t>(variables[i]);
      const ProgramInfo::Variable& variable = plan_.info.variables[index];
      check_spec(variable.spec, values[i], "variable", index, " '" + variable.name + "'");
      at::Tensor& own = at(plan_.variables[index].id);
      if (own.defined()) {
        own.copy_(values[i]);
      } else {
        own = std::move(values[i]);
      }
    }
  }

  // The outputs in memory that belongs to no tensor of the caller, the host or the program.
  std::vector<at::Tensor> own_outputs(std::span<const at::Tensor> inputs,
                                      std::span<const at::Tensor> variables) {
    std::vector<at::Tensor> outputs;
    outputs.reserve(plan_.outputs.size());
    for (const PlannedOutput& output : plan_.outputs)
      outputs.push_back(output.id == -1 ? at::Tensor() : at(output.id));
    OutputMemory memory(outputs);
    for (const at::Tensor& input : inputs) memory.note_foreign(input);
    for (const at::Tensor& variable : variables) memory.note_foreign(variable);
    for (const PlannedConstant& constant : plan_.constants) memory.note_foreign(constant.value);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      at::Tensor& value = outputs[i];
      if (!value.defined()) continue;
      // A sparse tensor may hold an input as its values.
      const bool is_foreign = plan_.outputs[i].is_from_host || !value.has_storage() ||
                              value._is_zerotensor() || is_lazy(value) || memory.is_foreign(value);
      if (is_foreign) value = value.clone();
    }
    return outputs;
  }

  const Plan& plan_;
  internal::EffectHandler& host_;
  std::vector<at::Tensor> registers_;
  torch::jit::Stack stack_;
  at::Generator generator_;
  std::size_t number_ = 0;  // of the current op
  std::size_t draw_ = 0;
};

}  // namespace

std::vector<at::Tensor> Interpreter::run(std::span<const at::Tensor> inputs,
                                         std::span<const at::Tensor> variables,
                                         internal::EffectHandler& host,
                                         std::optional<std::uint64_t> seed) const {
  COHORT_CHECK(inputs.size() == plan_.inputs.size(), ErrorCode::invalid_argument,
               "[function.run] expected ", plan_.inputs.size(), " inputs, got ", inputs.size());
  COHORT_CHECK(variables.size() == plan_.variables.size(), ErrorCode::invalid_argument,
               "[function.run] expected ", plan_.variables.size(), " variables, got ",
               variables.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    check_spec(plan_.info.inputs[i], inputs[i], "input", i, "");
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const ProgramInfo::Variable& variable = plan_.info.variables[i];
    if (!variables[i].defined() && !plan_.variables[i].is_required) continue;
    check_spec(variable.spec, variables[i], "variable", i, " '" + variable.name + "'");
  }
  // No graph is recorded, but kernels that look at the grad mode see the one they were traced with:
  // on, or off where the operator says so.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // Autocast's casts are operators of the program, where its thread's mode had them.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::AutoGradMode grad_mode(true);
  return Run(plan_, host, seed).execute(inputs, variables);
}

std::shared_ptr<const PreparedProgram> prepare(Program program, std::string identity) {
  return std::make_shared<Interpreter>(make_plan(std::move(program), std::move(identity)));
}

std::shared_ptr<const PreparedProgram> PreparedProgram::decode(std::span<const std::byte> bytes) {
  return prepare(decode_program(bytes), identity_of(bytes));
}

}  // namespace cohort::function
