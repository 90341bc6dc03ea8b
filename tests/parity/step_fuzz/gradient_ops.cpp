// SPDX-License-Identifier: Apache-2.0
// Instructions that differentiate, and those that the trace replaces by other operators.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/parity/step_fuzz/ops.h"

namespace cohort::parity {
namespace {

using F = Feature;
using torch::autograd::grad;

// A scalar of operand 0 that depends on `weight`.
at::Tensor loss_of(Operands& o, const at::Tensor& weight) {
  const at::Tensor loss = scalar_loss(o[0], o.n(1, 3)).to(c10::kFloat);
  const at::Tensor factor = fit(o.bounded(1).detach(), weight.sizes()).to(weight.scalar_type());
  return loss.add(weight.mul(factor).tanh().square().sum());
}

at::Tensor or_zeros(const at::Tensor& gradient, const at::Tensor& like) {
  return gradient.defined() ? gradient : at::zeros_like(like);
}

const StepOp kGradients[] = {
    {"gradient of a weight",
     1.5,
     {F::gradient},
     [](Operands& o) -> Tensors {
       const at::Tensor weight = o.weight(0);
       return grad({loss_of(o, weight)}, {weight}, {}, o.flag(2));
     }},
    {"gradient of a weight that was read",
     1.2,
     {F::gradient, F::gradient_of_read},
     [](Operands& o) -> Tensors {
       const at::Tensor weight = o.weight(0);
       at::Tensor copy = o.read_weight(0);
       if (o.flag(3)) copy.mul_(o.x());
       const at::Tensor loss = loss_of(o, copy).add(weight.sum());
       return {grad({loss}, {weight}, {}, o.flag(2))[0], copy};
     }},
    {"gradients of two weights",
     1,
     {F::gradient},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.weight(0), b = o.weight(1);
       const Tensors both = grad({loss_of(o, a)}, {a, b}, {}, o.flag(2), false, true);
       if (!both[1].defined()) o.note(F::undefined_gradient);
       return {or_zeros(both[0], a), or_zeros(both[1], b)};
     }},
    {"gradient without a path",
     0.7,
     {F::gradient, F::undefined_gradient},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.weight(0);
       const at::Tensor leaf = at::ones({2}).requires_grad_();
       const Tensors both = grad({loss_of(o, a)}, {a, leaf}, {}, o.flag(2), false, true);
       return {or_zeros(both[0], a), or_zeros(both[1], leaf)};
     }},
    {"gradient of a value",
     1,
     {F::gradient},
     [](Operands& o) -> Tensors {
       const at::Tensor leaf = o.real(0).detach().clone().requires_grad_();
       const at::Tensor other = fit(o.bounded(1), leaf.sizes());
       return grad({leaf.mul(other).sin().square().sum()}, {leaf});
     }},
    {"gradient with given gradients",
     0.5,
     {F::gradient},
     [](Operands& o) -> Tensors {
       const at::Tensor leaf = o.real(0).detach().clone().requires_grad_();
       const at::Tensor out = leaf.tanh().mul(leaf);
       return grad({out}, {leaf}, {fit(o.bounded(1).detach(), out.sizes()).to(out.scalar_type())});
     }},
    {"gradient of a gradient",
     1,
     {F::gradient, F::double_backward},
     [](Operands& o) -> Tensors {
       const at::Tensor weight = o.weight(0);
       const Tensors first = grad({loss_of(o, weight)}, {weight}, {}, true, true);
       return {first[0].square().sum(), grad({first[0].square().sum()}, {weight}, {}, true)[0]};
     }},
    {"leaf",
     1,
     {F::detach},
     [](Operands& o) -> Tensors { return {o.real(0).detach().clone().requires_grad_()}; }},
    {"backward",
     1.5,
     {F::backward},
     [](Operands& o) -> Tensors {
       const at::Tensor weight = o.weight(0);
       if (weight.grad().defined()) o.note(F::gradient_accumulated_twice);
       const at::Tensor loss = loss_of(o, weight);
       loss.backward({}, o.flag(2));
       return {weight.grad(), loss};
     }},
    {"backward of a value",
     1,
     {F::backward},
     [](Operands& o) -> Tensors {
       at::Tensor leaf = o[0];
       if (!leaf.is_leaf() || !leaf.requires_grad())
         leaf = floating(leaf).detach().clone().requires_grad_();
       if (leaf.grad().defined()) o.note(F::gradient_accumulated_twice);
       leaf.mul(fit(o.bounded(1), leaf.sizes()).detach()).sin().sum().backward();
       return {leaf.grad(), leaf};
     }},
    {"backward twice",
     1,
     {F::backward, F::gradient_accumulated_twice},
     [](Operands& o) -> Tensors {
       const at::Tensor weight = o.weight(0);
       loss_of(o, weight).backward();
       const at::Tensor loss = loss_of(o, weight).mul(0.5);
       loss.backward({}, true);
       loss.backward();
       return {weight.grad()};
     }},
    {"penalty of no gradient",
     0.6,
     {F::no_grad},
     [](Operands& o) -> Tensors {
       const at::NoGradGuard no_grad;
       const at::Tensor weight = o.weight(0);
       return {weight.square().sum(), o.real(0).mul(weight.mean())};
     }},
};

const StepOp kRewritten[] = {
    {"prod",
     0.25,
     {},
     [](Operands& o) -> Tensors { return {fit(o.real(0), {3}).add(0.5).prod()}; },
     true},
    {"cumprod",
     0.15,
     {},
     [](Operands& o) -> Tensors {
       return {fit(o.real(0), {2, 3}).cumprod(1)};
     },
     true},
    {"max of all",
     0.3,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o.real(0);
       return {t.numel() == 0 ? t.sum() : o.flag(0) ? t.max() : t.min()};
     },
     true},
    {"median",
     0.15,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o.real(0);
       return {t.numel() == 0 ? t.sum() : t.median()};
     },
     true},
    {"quantile",
     0.1,
     {},
     [](Operands& o) -> Tensors { return {fit(o.real(0), {5}).quantile(0.4)}; },
     true},
    {"cov",
     0.1,
     {},
     [](Operands& o) -> Tensors {
       return {o.fitted(0, {2, 4}).cov()};
     },
     true},
    {"masked_scatter",
     0.15,
     {F::mask},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o.real(0);
       const at::Tensor source = fit(o.real(2), t.sizes()).to(t.scalar_type());
       return {t.masked_scatter(fit(o.boolean(1), t.sizes()), source)};
     },
     true},
    {"index_put with a mask",
     0.2,
     {F::mask},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o.real(0);
       return {t.index_put({fit(o.boolean(1), t.sizes())}, at::full({}, o.x(), t.options()))};
     },
     true},
    {"label smoothing",
     0.2,
     {F::loss},
     [](Operands& o) -> Tensors {
       const at::Tensor x = o.matrix(0, 4);
       return {at::cross_entropy_loss(x, o.labels(1, x.size(0), 4), {}, 1, -100, 0.1)};
     },
     true},
    {"embedding_bag",
     0.25,
     {F::embedding},
     [](Operands& o) -> Tensors {
       const at::Tensor table = fit(o.weight(0), {5, 3});
       return {std::get<0>(at::embedding_bag(table, o.labels(0, 4, 5), o.labels(1, 1, 1)))};
     },
     true},
};

}  // namespace

std::span<const StepOp> gradient_ops() { return kGradients; }
std::span<const StepOp> rewritten_ops() { return kRewritten; }

}  // namespace cohort::parity
