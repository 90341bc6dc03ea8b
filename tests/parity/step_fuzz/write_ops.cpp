// SPDX-License-Identifier: Apache-2.0
// Instructions that write: in place, through views, into buffers, by out=.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tests/parity/step_fuzz/ops.h"

namespace cohort::parity {
namespace {

using F = Feature;

// Operand i with the shape and the dtype of `target`.
at::Tensor source_for(Operands& o, std::size_t i, const at::Tensor& target) {
  const at::Tensor value = fit(o[i], target.sizes());
  if (target.is_floating_point()) return floating(value).to(target.scalar_type());
  return value.is_floating_point() ? value.tanh().mul(4).to(target.scalar_type())
                                   : value.to(target.scalar_type());
}

// A floating-point tensor that may be written.
at::Tensor real_target(Operands& o, std::size_t i) {
  const at::Tensor value = o[i];
  if (value.is_floating_point() && o.may_write(value)) return o.target(i);
  return floating(value).clone();
}

at::Tensor buffer_of(Operands& o, std::size_t i) {
  const Tensors buffers = o.buffers();
  if (buffers.empty()) return real_target(o, 0);
  const at::Tensor buffer =
      buffers[static_cast<std::size_t>(o.n(i, static_cast<std::int64_t>(buffers.size())))];
  o.note_write(buffer);
  return buffer;
}

// A view of a part of `t`.
at::Tensor part_of(Operands& o, const at::Tensor& t) {
  if (t.dim() == 0 || t.numel() == 0) return t.view(t.sizes());
  switch (o.n(3, 6)) {
    case 0:
      return t.select(0, o.n(2, t.size(0)));
    case 1:
      return t.slice(-1, 0, 1);
    case 2:
      return t.dim() >= 2 ? t.diagonal() : t.slice(0, 0, c10::nullopt, 2);
    case 3:
      return t.transpose(0, -1);
    case 4:
      return t.is_contiguous() ? t.view({t.numel()}).slice(0, t.numel() / 2) : t.unsqueeze(0);
    default:
      return t.slice(0, t.size(0) - 1);
  }
}

void write_once(Operands& o, at::Tensor t, std::size_t source) {
  const at::Tensor value = source_for(o, source, t);
  const bool is_real = t.is_floating_point();
  switch (o.n(0, is_real ? 14 : 5)) {
    case 0:
      t.copy_(value);
      return;
    case 1:
      t.zero_();
      return;
    case 2:
      t.fill_(o.n(1, 3));
      return;
    case 3:
      t.masked_fill_(fit(o.boolean(2), t.sizes()), 1);
      return;
    case 4:
      if (t.scalar_type() != c10::kBool) t.add_(value);
      return;
    case 5:
      t.mul_(value);
      return;
    case 6:
      t.sub_(value, o.x());
      return;
    case 7:
      t.div_(2);
      return;
    case 8:
      t.clamp_(-1, 1);
      return;
    case 9:
      t.neg_();
      return;
    case 10:
      t.sigmoid_();
      return;
    case 11:
      t.addcmul_(value, value, o.x());
      return;
    case 12:
      t.lerp_(value, 0.25);
      return;
    default:
      t.relu_();
      return;
  }
}

const StepOp kWrites[] = {
    {"write in place",
     4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o.target(0);
       write_once(o, t, 1);
       return {t};
     }},
    {"write through a view",
     3,
     {F::in_place_through_view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o.target(0);
       const at::Tensor part = part_of(o, t);
       write_once(o, part, 1);
       return {t, part};
     }},
    {"write into the base after the view",
     1.5,
     {F::in_place_through_view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o.target(0);
       const at::Tensor part = part_of(o, t);
       write_once(o, t, 1);
       return {part, t};
     }},
    {"copy and write",
     1,
     {F::in_place_on_result},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o.real(0).detach().clone();
       const at::Tensor before = t.mul(2);
       write_once(o, t, 1);
       return {t, before};
     }},
    {"index_put_",
     0.7,
     {F::in_place_on_result, F::indexing},
     [](Operands& o) -> Tensors {
       at::Tensor t = real_target(o, 0);
       if (t.dim() == 0 || t.numel() == 0) return {t};
       t.index_put_({o.labels(1, 2, t.size(0))}, at::full({}, o.x(), t.options()), o.flag(0));
       return {t};
     }},
    {"index_add_",
     0.5,
     {F::in_place_on_result, F::indexing},
     [](Operands& o) -> Tensors {
       at::Tensor t = real_target(o, 0);
       if (t.dim() != 2 || t.numel() == 0) return {t};
       t.index_add_(0, o.labels(1, 3, t.size(0)),
                    fit(o.real(2), {3, t.size(1)}).to(t.scalar_type()));
       return {t};
     }},
    {"scatter_",
     0.4,
     {F::in_place_on_result, F::indexing},
     [](Operands& o) -> Tensors {
       at::Tensor t = real_target(o, 0);
       if (t.dim() == 0 || t.numel() == 0) return {t};
       t.scatter_(0, fit(o.integer(1), t.sizes()).remainder(t.size(0)).to(c10::kLong), o.x());
       return {t};
     }},
    {"fill_diagonal_",
     0.3,
     {F::in_place_on_result},
     [](Operands& o) -> Tensors {
       at::Tensor t = real_target(o, 0);
       if (t.dim() == 2) t.fill_diagonal_(o.x());
       return {t};
     }},
    {"reshaped in place",
     0.8,
     {F::view},
     [](Operands& o) -> Tensors {
       at::Tensor t = o[0].detach();
       switch (o.n(0, 4)) {
         case 0:
           return {t.unsqueeze_(0)};
         case 1:
           return {t.squeeze_()};
         case 2:
           return {t.dim() <= 2 ? t.t_() : t.transpose_(0, 1)};
         default:
           return {t.unsqueeze_(-1)};
       }
     }},
    {"out= of add",
     0.8,
     {F::out_variant},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.real(0).detach();
       at::Tensor out = o.flag(0) ? at::empty_like(a) : at::zeros(a.sizes(), a.options());
       at::add_out(out, a, fit(o.real(1).detach(), a.sizes()).to(a.scalar_type()), 0.5);
       return {out};
     }},
    {"out= into a part",
     0.6,
     {F::out_variant, F::in_place_through_view},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.real(0).detach();
       const at::Tensor out = at::zeros({2}, a.options()).unsqueeze(0).repeat({3, 1});
       at::Tensor row = out.select(0, o.n(0, 3));
       at::mul_out(row, fit(a, {2}), fit(o.real(1).detach(), {2}).to(a.scalar_type()));
       return {out};
     }},
    {"_foreach_add_",
     0.3,
     {F::in_place_on_result},
     [](Operands& o) -> Tensors {
       const Tensors list = {o.real(0).detach().clone(), o.real(1).detach().clone()};
       at::_foreach_add_(list, o.x());
       return list;
     }},
    {"filled empty memory",
     0.6,
     {F::in_place_on_result},
     [](Operands& o) -> Tensors {
       const at::Tensor t = at::empty({3, 2});
       t.select(1, 0).copy_(fit(o.bounded(0).detach(), {3}));
       t.select(1, 1).fill_(o.x());
       return {t};
     }},
    // Writes a buffer as the forward pass of a module does.
    {"buffer written",
     2.5,
     {F::in_place_on_buffer},
     [](Operands& o) -> Tensors {
       const at::Tensor buffer = buffer_of(o, 1);
       const at::NoGradGuard no_grad;
       write_once(o, buffer, 0);
       return {buffer.clone()};
     }},
    {"part of a buffer written",
     1,
     {F::in_place_on_buffer, F::in_place_through_view},
     [](Operands& o) -> Tensors {
       const at::Tensor buffer = buffer_of(o, 1);
       const at::NoGradGuard no_grad;
       write_once(o, part_of(o, buffer), 0);
       return {buffer.clone()};
     }},
    {"moving average in a buffer",
     1.5,
     {F::in_place_on_buffer},
     [](Operands& o) -> Tensors {
       at::Tensor buffer = buffer_of(o, 1);
       if (!buffer.is_floating_point()) return {buffer.add_(1).clone()};
       buffer.mul_(0.9).add_(source_for(o, 0, buffer).detach(), 0.1);
       return {buffer};
     }},
    {"counter",
     2,
     {F::in_place_on_buffer, F::counter},
     [](Operands& o) -> Tensors {
       for (const at::Tensor& buffer : o.buffers()) {
         if (buffer.scalar_type() != c10::kLong) continue;
         o.note_write(buffer);
         buffer.add_(1 + o.n(0, 2));
         return {buffer.to(c10::kFloat)};
       }
       return {o[0].add(1)};
     }},
};

}  // namespace

std::span<const StepOp> write_ops() { return kWrites; }

}  // namespace cohort::parity
