// SPDX-License-Identifier: Apache-2.0
// Instructions on aliases: tensors that have the memory of another one and were made without an
// operator, by data() or variable_data(). A change of the shape of an alias must not change the
// other tensor; a write to one of them is in both.
#include <ATen/ATen.h>

#include "tests/parity/step_fuzz/ops.h"

namespace cohort::parity {
namespace {

using F = Feature;

// A weight, a buffer, or operand 0.
at::Tensor original_of(Operands& o) {
  const std::int64_t kind = o.n(3, 4);
  const Tensors buffers = o.buffers();
  if (kind == 0) return o.weight(2);
  if (kind == 1 && !buffers.empty())
    return buffers[static_cast<std::size_t>(o.n(2, static_cast<std::int64_t>(buffers.size())))];
  return o[0];
}

at::Tensor alias_of(Operands& o, const at::Tensor& tensor) {
  return o.flag(2) ? tensor.data() : tensor.variable_data();
}

// An original that the step may write.
at::Tensor writable_original(Operands& o) {
  at::Tensor tensor = original_of(o);
  if (!o.may_write(tensor)) tensor = tensor.detach().clone();
  o.note_write(tensor);
  return tensor;
}

void reshape(Operands& o, at::Tensor alias) {
  const std::int64_t last = alias.dim() - 1;
  switch (o.n(0, 9)) {
    case 0:
      alias.unsqueeze_(o.n(1, alias.dim() + 1));
      return;
    case 1:
      alias.squeeze_();
      return;
    case 2:
      if (alias.dim() <= 2) alias.t_();
      return;
    case 3:
      if (alias.dim() > 0) alias.transpose_(0, last);
      return;
    case 4:
      if (alias.dim() > 0) alias.swapaxes_(0, last);
      return;
    case 5:
      if (alias.dim() > 0) alias.swapdims_(last, 0);
      return;
    case 6:
      if (alias.is_contiguous()) alias.as_strided_({alias.numel() / 2}, {2});
      return;
    case 7:
      if (alias.is_contiguous()) alias.resize_({(alias.numel() + 1) / 2});
      return;
    default:
      if (alias.is_contiguous()) alias.resize_as_(at::empty({alias.numel()}, alias.options()));
      return;
  }
}

void write(Operands& o, const at::Tensor& alias) {
  if (alias.scalar_type() == c10::kBool) {
    alias.logical_not_();
  } else if (!alias.is_floating_point()) {
    alias.add_(1);
  } else if (o.flag(1)) {
    alias.mul_(0.5);
  } else {
    alias.copy_(fit(o.real(1), alias.sizes()).detach().tanh());
  }
}

const StepOp kAliases[] = {
    {"alias reshaped",
     2,
     {F::alias, F::alias_reshaped},
     [](Operands& o) -> Tensors {
       const at::Tensor original = original_of(o), alias = alias_of(o, original);
       reshape(o, alias);
       return {alias, original};
     }},
    {"alias used and reshaped",
     1,
     {F::alias, F::alias_reshaped},
     [](Operands& o) -> Tensors {
       const at::Tensor original = original_of(o), alias = alias_of(o, original);
       const at::Tensor before = alias.add(1), other = alias_of(o, alias);
       reshape(o, alias);
       reshape(o, alias);
       return {alias, at::cat({before.flatten(), original.flatten(), other.flatten()})};
     }},
    {"alias written",
     1.5,
     {F::alias, F::alias_written},
     [](Operands& o) -> Tensors {
       const at::Tensor original = writable_original(o), alias = alias_of(o, original);
       write(o, alias);
       return {original.clone(), alias};
     }},
    {"alias reshaped and written",
     1.5,
     {F::alias, F::alias_reshaped, F::alias_written},
     [](Operands& o) -> Tensors {
       const at::Tensor original = writable_original(o), alias = alias_of(o, original);
       reshape(o, alias);
       write(o, alias);
       return {original.clone(), alias};
     }},
    {"alias of a part reshaped and written",
     0.7,
     {F::alias, F::alias_reshaped, F::alias_written},
     [](Operands& o) -> Tensors {
       const at::Tensor original = writable_original(o);
       const at::Tensor part = original.dim() > 0 && original.size(0) > 1
                                   ? original.slice(0, 1)
                                   : original.view(original.sizes());
       const at::Tensor alias = alias_of(o, part);
       if (alias.dim() > 0) alias.transpose_(0, -1);
       write(o, alias);
       return {part, original, alias};
     }},
    {"alias written by out=",
     0.5,
     {F::alias, F::alias_written, F::out_variant},
     [](Operands& o) -> Tensors {
       const at::Tensor original = writable_original(o);
       at::Tensor alias = alias_of(o, original);
       if (!alias.is_floating_point()) return {alias};
       at::mul_out(alias, alias.tanh(), at::full({}, o.x(), alias.options()));
       return {original, alias};
     }},
    {"alias with other memory",
     0.4,
     {F::alias},
     [](Operands& o) -> Tensors {
       const at::Tensor original = original_of(o);
       at::Tensor alias = alias_of(o, original);
       const at::Tensor before = alias.mul(1);
       alias.set_data(o[1].detach().clone());
       return {alias, before, original};
     }},
    {"weight moved through its alias",
     0.1,
     {F::alias, F::alias_written},
     [](Operands& o) -> Tensors {
       const at::Tensor weight = o.weight(2);
       alias_of(o, weight).mul_(0.75);
       return {weight.detach().clone()};
     }},
    {"alias set to another tensor",
     0.02,
     {F::alias},
     [](Operands& o) -> Tensors {
       at::Tensor alias = alias_of(o, o.weight(2));
       alias.set_(fit(o.real(1).detach(), {2}).to(alias.scalar_type()).clone());
       return {alias};
     }},
};

}  // namespace

std::span<const StepOp> alias_ops() { return kAliases; }

}  // namespace cohort::parity
