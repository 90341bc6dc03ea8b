// SPDX-License-Identifier: Apache-2.0
// Instructions that compute: elementwise operators, reductions and products.
#include <ATen/ATen.h>

#include <array>

#include "tests/parity/step_fuzz/ops.h"

namespace cohort::parity {
namespace {

using F = Feature;
using Unary = at::Tensor (*)(const at::Tensor& t);
using Binary = at::Tensor (*)(const at::Tensor& a, const at::Tensor& b);

// For any floating-point values.
constexpr Unary kUnary[] = {
    [](const at::Tensor& t) { return t.neg(); },
    [](const at::Tensor& t) { return t.abs(); },
    [](const at::Tensor& t) { return t.clamp(-3, 3).exp(); },
    [](const at::Tensor& t) { return t.abs().log1p(); },
    [](const at::Tensor& t) { return t.abs().add(0.01).sqrt(); },
    [](const at::Tensor& t) { return t.square().add(0.1).rsqrt(); },
    [](const at::Tensor& t) { return t.sin(); },
    [](const at::Tensor& t) { return t.cos(); },
    [](const at::Tensor& t) { return t.tanh(); },
    [](const at::Tensor& t) { return t.sigmoid(); },
    [](const at::Tensor& t) { return t.relu(); },
    [](const at::Tensor& t) { return at::gelu(t); },
    [](const at::Tensor& t) { return at::silu(t); },
    [](const at::Tensor& t) { return at::elu(t); },
    [](const at::Tensor& t) { return at::leaky_relu(t); },
    [](const at::Tensor& t) { return at::softplus(t); },
    [](const at::Tensor& t) { return at::hardtanh(t); },
    [](const at::Tensor& t) { return at::hardswish(t); },
    [](const at::Tensor& t) { return at::mish(t); },
    [](const at::Tensor& t) { return at::selu(t); },
    [](const at::Tensor& t) { return at::log_sigmoid(t); },
    [](const at::Tensor& t) { return t.floor(); },
    [](const at::Tensor& t) { return t.round(); },
    [](const at::Tensor& t) { return t.frac(); },
    [](const at::Tensor& t) { return t.sign(); },
    [](const at::Tensor& t) { return t.erf(); },
    [](const at::Tensor& t) { return t.abs().add(1).reciprocal(); },
    [](const at::Tensor& t) { return t.clamp(-2, 2).square(); },
    [](const at::Tensor& t) { return at::hardshrink(t); },
    [](const at::Tensor& t) { return at::nan_to_num(t); },
    [](const at::Tensor& t) { return t.clamp(-4, 4).exp2(); },
    [](const at::Tensor& t) { return t.clamp_min(0.2).pow(1.5); },
};

// For floating-point values of one dtype or two.
constexpr Binary kBinary[] = {
    [](const at::Tensor& a, const at::Tensor& b) { return a.add(b); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.sub(b, 2); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.mul(b); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.div(b.abs().add(0.5)); },
    [](const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); },
    [](const at::Tensor& a, const at::Tensor& b) { return at::minimum(a, b); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.atan2(b.abs().add(0.1)); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.abs().add(0.5).pow(b.clamp(-2, 2)); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.fmod(b.abs().add(0.5)); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.remainder(b.abs().add(0.5)); },
    [](const at::Tensor& a, const at::Tensor& b) { return at::hypot(a, b.add(0.1)); },
    [](const at::Tensor& a, const at::Tensor& b) { return at::logaddexp(a, b); },
    [](const at::Tensor& a, const at::Tensor& b) { return at::copysign(a, b); },
    [](const at::Tensor& a, const at::Tensor& b) { return at::xlogy(a, b.abs().add(0.1)); },
    [](const at::Tensor& a, const at::Tensor& b) {
      return a.div(b.abs().add(0.5), c10::string_view("floor"));
    },
};

constexpr Binary kComparisons[] = {
    [](const at::Tensor& a, const at::Tensor& b) { return a.lt(b); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.ge(b); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.eq(b); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.ne(b); },
    [](const at::Tensor& a, const at::Tensor& b) { return at::isclose(a, b.to(a.dtype())); },
};

constexpr Binary kIntegers[] = {
    [](const at::Tensor& a, const at::Tensor& b) { return a.add(b); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.sub(b); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.mul(b).remainder(101); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.bitwise_and(b); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.bitwise_xor(b); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.floor_divide(b.abs().add(1)); },
    [](const at::Tensor& a, const at::Tensor& b) { return a.div(b.abs().add(1)); },
    [](const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); },
};

template <std::size_t N>
at::Tensor binary_of(Operands& o, const Binary (&table)[N], const at::Tensor& a,
                     const at::Tensor& b) {
  return table[static_cast<std::size_t>(o.n(0, N))](a, b);
}

const StepOp kValues[] = {
    {"unary",
     5,
     {},
     [](Operands& o) -> Tensors {
       return {kUnary[static_cast<std::size_t>(o.n(0, std::size(kUnary)))](o.real(0))};
     }},
    {"binary",
     6,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.real(0);
       return {binary_of(o, kBinary, a, floating(o.alongside(1, a)))};
     }},
    {"comparison",
     0.8,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.real(0);
       return {binary_of(o, kComparisons, a, floating(o.alongside(1, a)))};
     }},
    {"integer binary",
     1.2,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.integer(0);
       return {binary_of(o, kIntegers, a, fit(o.integer(1), a.sizes()))};
     }},
    {"mixed dtypes",
     0.6,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o[0];
       return {a.to(c10::kDouble).mul(o.x()).add(fit(o[1], a.sizes()))};
     }},
    {"logical",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.boolean(0), b = fit(o.boolean(1), a.sizes());
       return {o.flag(0) ? a.logical_and(b) : a.logical_xor(b).logical_not()};
     }},
    {"add of a number", 0.8, {}, [](Operands& o) -> Tensors { return {o.real(0).add(o.x())}; }},
    {"product with a number",
     0.8,
     {},
     [](Operands& o) -> Tensors { return {o.real(0).mul(o.x())}; }},
    {"argument of the host added",
     0.8,
     {},
     [](Operands& o) -> Tensors { return {o[0].add(o.host_integer())}; }},
    {"argument of the host multiplied",
     0.8,
     {},
     [](Operands& o) -> Tensors { return {o.real(0).mul(o.host_real())}; }},
    {"number of a tensor parameter",
     0.8,
     {F::number_as_tensor},
     [](Operands& o) -> Tensors { return {o.real(0).mul(o.scale())}; }},
    {"rsub", 0.4, {}, [](Operands& o) -> Tensors { return {at::rsub(o.real(0), 1)}; }},
    {"clamp", 0.5, {}, [](Operands& o) -> Tensors { return {o.real(0).clamp(-1, o.x() + 1)}; }},
    {"clamp by tensors",
     0.3,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.real(0), b = fit(o.bounded(1), a.sizes()).to(a.scalar_type());
       return {a.clamp(b.sub(1), b)};
     }},
    {"addcmul",
     0.5,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.real(0);
       const auto like = [&](std::size_t i) {
         return fit(o.bounded(i), a.sizes()).to(a.scalar_type());
       };
       return {a.addcmul(like(1), like(2), o.x())};
     }},
    {"addcdiv",
     0.3,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.real(0);
       const at::Tensor b = fit(o.bounded(1), a.sizes()).to(a.scalar_type());
       return {a.addcdiv(b, b.abs().add(0.5), o.x())};
     }},
    {"lerp",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.real(0);
       return {a.lerp(fit(o.real(1), a.sizes()).to(a.scalar_type()), o.x())};
     }},
    {"linear combination of a batch",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = fit(o.bounded(0), {2, 3, 4});
       return {at::einsum("bij,bkj->bik", {a, fit(o.bounded(1), {2, 2, 4}).to(a.scalar_type())})};
     }},
    {"mm",
     1,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.matrix(0);
       const at::Tensor b = fit(o.bounded(1), {a.size(1), 1 + o.n(0, 4)});
       return {a.mm(b.to(a.scalar_type()))};
     }},
    {"matmul",
     0.8,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = fit(o.bounded(0), {2, 2, 3});
       const at::Tensor b = fit(o.bounded(1), {3, 2}).to(a.scalar_type());
       return {o.flag(0) ? a.matmul(b) : a.matmul(b.t().reshape({3, 2}))};
     }},
    {"bmm",
     0.5,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = fit(o.bounded(0), {2, 3, 2});
       return {a.bmm(fit(o.bounded(1), {2, 2, 3}).to(a.scalar_type()))};
     }},
    {"addmm",
     0.5,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.matrix(0);
       const at::Tensor b = fit(o.bounded(1), {a.size(1), 3}).to(a.scalar_type());
       return {at::addmm(fit(o.bounded(2), {3}).to(a.scalar_type()), a, b, 0.5, o.x())};
     }},
    {"outer",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = fit(o.bounded(0), {3});
       return {a.outer(fit(o.bounded(1), {4}).to(a.scalar_type()))};
     }},
    {"dot",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.bounded(0).flatten();
       return {a.dot(fit(o.bounded(1), a.sizes()).to(a.scalar_type()))};
     }},
    {"mv",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.matrix(0);
       return {a.mv(fit(o.bounded(1), {a.size(1)}).to(a.scalar_type()))};
     }},
    {"constants",
     1,
     {F::constant_in_step},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o.real(0);
       switch (o.n(0, 8)) {
         case 0:
           return {t.add(at::ones_like(t))};
         case 1:
           return {at::full({2, 3}, o.x()), at::zeros({3}, at::kLong)};
         case 2:
           return {at::arange(o.n(1, 6) + 1)};
         case 3:
           return {at::eye(3).mul(o.x())};
         case 4:
           return {at::tensor({1.F, 2.F, static_cast<float>(o.x())})};
         case 5:
           return {at::scalar_tensor(o.x()), at::linspace(0, 1, 4)};
         case 6:
           return {at::empty({2, 2}).fill_(o.x())};
         default:
           return {t.new_zeros({2, 2}), at::zeros({0, 3})};
       }
     }},
};

// `t` with at least one element and dimension.
at::Tensor reducible(const at::Tensor& t) {
  return t.numel() == 0 ? at::ones({2, 2}, t.options()) : t.dim() == 0 ? t.reshape({1}) : t;
}

const StepOp kReductions[] = {
    {"sum", 1.5, {}, [](Operands& o) -> Tensors { return {o[0].sum()}; }},
    {"mean", 0.8, {}, [](Operands& o) -> Tensors { return {reducible(o.real(0)).mean()}; }},
    {"sum of a dimension",
     1.2,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = reducible(o[0]);
       return {t.sum(o.dim(0, t), o.flag(1))};
     }},
    {"mean of a dimension",
     0.8,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = reducible(o.real(0));
       return {t.mean(o.dim(0, t), o.flag(1))};
     }},
    {"amax",
     0.5,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = reducible(o.real(0));
       return {o.flag(1) ? t.amax(o.dim(0, t)) : t.amin(o.dim(0, t))};
     }},
    {"max of a dimension",
     0.6,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = reducible(o.real(0));
       auto [values, indices] = o.flag(1) ? t.max(o.dim(0, t)) : t.min(o.dim(0, t));
       return {values, indices};
     }},
    {"argmax",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = reducible(o.real(0));
       return {o.flag(1) ? t.argmax(o.dim(0, t)) : t.argmin()};
     }},
    {"var",
     0.5,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = reducible(o.real(0));
       return {o.flag(1) ? t.var(false) : t.var(at::IntArrayRef{o.dim(0, t)}, false)};
     }},
    {"std",
     0.3,
     {},
     [](Operands& o) -> Tensors { return {reducible(o.real(0)).std(false).add(0.1)}; }},
    {"norm", 0.5, {}, [](Operands& o) -> Tensors { return {o.real(0).add(0.1).norm()}; }},
    {"logsumexp",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = reducible(o.real(0));
       return {t.logsumexp(o.dim(0, t))};
     }},
    {"cumsum",
     0.5,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = reducible(o.real(0));
       return {t.cumsum(o.dim(0, t))};
     }},
    {"any",
     0.3,
     {},
     [](Operands& o) -> Tensors {
       return {o.boolean(0).any(), o.boolean(1).all()};
     }},
    {"count_nonzero", 0.3, {}, [](Operands& o) -> Tensors { return {o[0].count_nonzero()}; }},
    {"sort",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = reducible(o.real(0));
       auto [values, indices] = t.sort(o.dim(0, t), o.flag(1));
       return {values, indices};
     }},
    {"topk",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = reducible(o.real(0));
       auto [values, indices] = t.topk(1, o.dim(0, t));
       return {values, indices};
     }},
    {"cummax",
     0.2,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = reducible(o.real(0));
       auto [values, indices] = t.cummax(o.dim(0, t));
       return {values, indices};
     }},
    {"max of all, without gradient",
     0.2,
     {F::detach},
     [](Operands& o) -> Tensors { return {reducible(o.real(0)).detach().max()}; }},
};

}  // namespace

std::span<const StepOp> value_ops() { return kValues; }
std::span<const StepOp> reduction_ops() { return kReductions; }

}  // namespace cohort::parity
