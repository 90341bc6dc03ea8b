// SPDX-License-Identifier: Apache-2.0
// Instructions that update variables, and those that draw elements.
#include <ATen/ATen.h>

#include "cohort/core/effect_handler.h"
#include "cohort/core/error.h"
#include "cohort/optimizer/optimizer.h"
#include "tests/parity/step_fuzz/ops.h"
#include "tests/parity/step_fuzz/step.h"

namespace cohort::parity {
namespace {

using F = Feature;
using Gradients = GradientList;

const Optimizer& optimizer_of(Operands& o, std::size_t i) {
  const auto& all = o.step().world().optimizers;
  return all.at(static_cast<std::size_t>(o.n(i, static_cast<std::int64_t>(all.size()))));
}

// A scalar of operand 0 that depends on a variable of `optimizer`, by its tensor or its read().
at::Tensor loss_for(Operands& o, const Optimizer& optimizer) {
  at::Tensor loss = scalar_loss(o[0], o.n(1, 3)).to(c10::kFloat);
  if (loss.requires_grad() && o.flag(2)) return loss;
  for (const Variable& variable : optimizer.variables()) {
    const at::Tensor fitted = fit(o.bounded(1), variable.tensor().sizes()).to(c10::kFloat);
    const bool is_read = o.x() > 0;
    if (is_read) o.note(F::gradient_of_read);
    const at::Tensor value = is_read ? variable.read() : variable.tensor();
    loss = loss.add(value.mul(fitted.add(0.1)).square().mean());
  }
  return loss;
}

Updates& updates(Operands& o) { return *o.step().arguments().updates; }

void note_updates(Operands& o, const Optimizer& optimizer) {
  for (const Variable& variable : optimizer.variables()) o.step().note_update(variable);
}

// Operand 0 with the variable's sizes and dtype; shares its memory if possible.
at::Tensor value_for(Operands& o, const Variable& variable) {
  const at::Tensor value = fit(o[0], variable.tensor().sizes());
  const c10::ScalarType dtype = variable.tensor().scalar_type();
  if (c10::isFloatingType(dtype)) return floating(value).detach().clamp(-2, 2).to(dtype);
  return value.is_floating_point() ? value.detach().tanh().mul(4).to(dtype) : value.to(dtype);
}

Variable variable_of(Operands& o, std::size_t i) {
  const auto& all = o.step().world().variables;
  return all.at(static_cast<std::size_t>(o.n(i, static_cast<std::int64_t>(all.size()))));
}

// The index of a buffer, or -1.
int buffer_number(Operands& o, std::size_t i) {
  const auto count = static_cast<std::int64_t>(o.step().world().buffers.size());
  return count == 0 ? -1 : static_cast<int>(o.n(i, count));
}

Gradients changed(Operands& o, Gradients gradients) {
  for (auto& [gradient, variable] : gradients) {
    if (!gradient.defined()) continue;
    switch (o.n(3, 5)) {
      case 0:
        gradient = gradient.mul(0.5);
        break;
      case 1:
        gradient = gradient.clone().clamp_(-0.1, 0.1);
        break;
      case 2:
        gradient.mul_(2);
        break;
      case 3:
        gradient = gradient.add(variable.tensor().detach(), 0.01);
        break;
      default:
        gradient = gradient.sign();
        break;
    }
  }
  return gradients;
}

void zero(const Gradients& gradients) {
  for (const auto& [gradient, variable] : gradients) {
    if (gradient.defined()) gradient.zero_();
  }
}

Tensors assigned(Operands& o, internal::Effect::Kind kind) {
  Variable variable = variable_of(o, 0);
  const at::Tensor value = value_for(o, variable);
  o.step().note_update(variable);
  if (kind == internal::Effect::Kind::assign) variable.assign(value);
  if (kind == internal::Effect::Kind::assign_add) variable.assign_add(value);
  if (kind == internal::Effect::Kind::assign_sub) variable.assign_sub(value);
  return {value};
}

// Rows of the table, whose gradient reaches the optimizer of the table.
at::Tensor rows_looked_up(Operands& o) {
  const at::Tensor& table = o.step().world().variables.back().tensor();
  const at::Tensor ids = o.labels(0, 1 + o.n(0, 6), kTableRows);
  const bool has_padding = o.n(1, 4) == 0;
  return o.flag(2) ? table.index_select(0, ids) : at::embedding(table, ids, has_padding ? 3 : -1);
}

const StepOp kUpdates[] = {
    {"look rows up",
     1.5,
     {F::embedding},
     [](Operands& o) -> Tensors { return {rows_looked_up(o)}; }},
    {"train rows",
     2,
     {F::embedding, F::minimize, F::gradient},
     [](Operands& o) -> Tensors {
       const at::Tensor rows = rows_looked_up(o);
       const at::Tensor loss = rows.mul(fit(o.bounded(1).detach(), rows.sizes())).square().sum();
       const Optimizer& optimizer = o.step().world().optimizers.back();
       updates(o).minimize(optimizer, loss);
       note_updates(o, optimizer);
       return {rows.detach(), loss};
     }},
    {"minimize",
     5,
     {F::minimize, F::gradient},
     [](Operands& o) -> Tensors {
       const Optimizer& optimizer = optimizer_of(o, 0);
       const at::Tensor loss = loss_for(o, optimizer);
       updates(o).minimize(optimizer, loss);
       note_updates(o, optimizer);
       return {loss};
     }},
    {"apply of changed gradients",
     2,
     {F::apply_changed_gradients, F::gradient},
     [](Operands& o) -> Tensors {
       const Optimizer& optimizer = optimizer_of(o, 0);
       const Gradients gradients = changed(o, optimizer.compute_gradients(loss_for(o, optimizer)));
       updates(o).apply(optimizer, gradients);
       note_updates(o, optimizer);
       return {gradients[0].first.defined() ? gradients[0].first : o.real(0)};
     }},
    {"apply, then zero the gradients",
     1.2,
     {F::apply_changed_gradients, F::gradient, F::zero_gradient_after_apply},
     [](Operands& o) -> Tensors {
       const Optimizer& optimizer = optimizer_of(o, 0);
       const Gradients gradients = changed(o, optimizer.compute_gradients(loss_for(o, optimizer)));
       updates(o).apply(optimizer, gradients);
       note_updates(o, optimizer);
       zero(gradients);
       return {gradients[0].first.defined() ? gradients[0].first : o.real(0)};
     }},
    {"one tensor applied twice",
     1.2,
     {F::apply_changed_gradients, F::gradient, F::apply_one_buffer_twice},
     [](Operands& o) -> Tensors {
       const Optimizer& optimizer = optimizer_of(o, 0);
       const Gradients gradients = optimizer.compute_gradients(loss_for(o, optimizer));
       updates(o).apply(optimizer, gradients);
       note_updates(o, optimizer);
       for (const auto& [gradient, variable] : gradients) {
         if (gradient.defined()) gradient.mul_(o.x());
       }
       updates(o).apply(optimizer, gradients);
       note_updates(o, optimizer);
       return {o.real(0)};
     }},
    {"values of variables as gradients",
     1.2,
     {F::apply_changed_gradients},
     [](Operands& o) -> Tensors {
       const Optimizer& optimizer = optimizer_of(o, 0);
       Gradients gradients;
       for (const Variable& variable : optimizer.variables()) {
         at::Tensor gradient;
         for (const Variable& other : optimizer.variables()) {
           if (other.tensor().sizes() != variable.tensor().sizes()) continue;
           if (!gradient.defined() || o.x() > 0) gradient = other.tensor().detach();
         }
         gradients.emplace_back(gradient, variable);
       }
       updates(o).apply(optimizer, gradients);
       note_updates(o, optimizer);
       return {o.real(0)};
     }},
    {"clipped gradients",
     0.8,
     {F::apply_changed_gradients, F::gradient},
     [](Operands& o) -> Tensors {
       const Optimizer& optimizer = optimizer_of(o, 0);
       const at::Tensor loss = loss_for(o, optimizer);
       updates(o).apply(optimizer, updates(o).clip(optimizer.compute_gradients(loss), 0.1));
       note_updates(o, optimizer);
       return {loss};
     }},
    {"step by .grad",
     1.5,
     {F::backward, F::apply_changed_gradients},
     [](Operands& o) -> Tensors {
       const Optimizer& optimizer = optimizer_of(o, 0);
       loss_for(o, optimizer).backward();
       Gradients gradients;
       for (const Variable& variable : optimizer.variables())
         gradients.emplace_back(variable.tensor().grad(), variable);
       updates(o).apply(optimizer, gradients);
       note_updates(o, optimizer);
       at::Tensor gradient = gradients.front().first;
       if (!gradient.defined()) return {o[0]};
       if (o.flag(3)) return {gradient};
       o.note(F::zero_gradient_after_apply);
       return {o.n(3, 4) == 0 ? gradient.zero_() : gradient.mul_(0)};
     }},
    {"assign",
     2,
     {F::assign},
     [](Operands& o) -> Tensors { return assigned(o, internal::Effect::Kind::assign); }},
    {"assign_add",
     1.5,
     {F::assign_add},
     [](Operands& o) -> Tensors { return assigned(o, internal::Effect::Kind::assign_add); }},
    {"assign_sub",
     1.5,
     {F::assign_sub},
     [](Operands& o) -> Tensors { return assigned(o, internal::Effect::Kind::assign_sub); }},
    {"assign of a reused value",
     1.5,
     {F::assign, F::write_after_assign},
     [](Operands& o) -> Tensors {
       Variable variable = variable_of(o, 0);
       at::Tensor value = value_for(o, variable).clone();
       o.step().note_update(variable);
       variable.assign(value);
       return {o.flag(1) ? value.add_(100).mul_(0.01) : value.zero_()};
     }},
    {"weights clipped",
     1.2,
     {F::assign},
     [](Operands& o) -> Tensors {
       Variable variable = variable_of(o, 0);
       const at::Tensor clipped =
           o.step().value({Ref::From::variable, static_cast<int>(o.n(0, 64))});
       variable.assign(fit(clipped.detach(), variable.tensor().sizes()).clamp(-0.3, 0.3));
       o.step().note_update(variable);
       return {variable.tensor().mul(1)};
     }},
    {"weights decayed",
     1.2,
     {F::assign_sub},
     [](Operands& o) -> Tensors {
       Variable variable = variable_of(o, 0);
       variable.assign_sub(variable.tensor().detach() * 0.01);
       o.step().note_update(variable);
       return {o.real(0)};
     }},
    {"read",
     1.2,
     {},
     [](Operands& o) -> Tensors {
       const auto& all = o.step().world().variables;
       const auto index = static_cast<int>(o.n(0, static_cast<std::int64_t>(all.size())));
       o.step().value({Ref::From::variable, index});
       return {all[static_cast<std::size_t>(index)].read()};
     }},
    {"buffer assigned",
     2,
     {},
     [](Operands& o) -> Tensors {
       const int number = buffer_number(o, 0);
       if (number < 0) return {o[0]};
       Variable buffer = o.step().world().buffers[static_cast<std::size_t>(number)];
       const at::Tensor value = value_for(o, buffer);
       switch (o.n(1, 3)) {
         case 0:
           buffer.assign(value);
           break;
         case 1:
           buffer.assign_add(value);
           break;
         default:
           buffer.assign_sub(value);
           break;
       }
       o.step().note_assign_of_buffer(number);
       o.step().note_update(buffer);
       return {value};
     }},
    {"draw",
     4,
     {F::draw},
     [](Operands& o) -> Tensors {
       if (!o.step().arguments().draw) return {o[0]};
       return o.step().draw();
     }},
};

}  // namespace

std::span<const StepOp> update_ops() { return kUpdates; }

}  // namespace cohort::parity
