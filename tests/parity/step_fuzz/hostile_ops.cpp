// SPDX-License-Identifier: Apache-2.0
// Instructions that a trace cannot see or cannot record: it must refuse them, never drop them.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include "tests/parity/step_fuzz/ops.h"

namespace cohort::parity {
namespace {

using F = Feature;

// Operand 0 as float32 without gradient, with at least one element.
at::Tensor plain_values(Operands& o) {
  const at::Tensor t = o.real(0).detach().to(c10::kFloat);
  return t.numel() == 0 ? at::ones({2}) : t;
}

const StepOp kHostile[] = {
    {"branch on a value",
     0.02,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = plain_values(o);
       return {t.sum().item<float>() > o.x() ? t : t.neg()};
     }},
    {"value read on the host",
     0.02,
     {},
     [](Operands& o) -> Tensors { return {at::full({2}, plain_values(o).sum().item<double>())}; }},
    {"value read through data_ptr",
     0.02,
     {},
     [](Operands& o) -> Tensors {
       return {at::full({2}, *plain_values(o).contiguous().data_ptr<float>())};
     }},
    {"copy written through data_ptr",
     0.02,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = plain_values(o).clone(at::MemoryFormat::Contiguous);
       *t.data_ptr<float>() = static_cast<float>(o.x());
       return {t};
     }},
    {"result written through data_ptr",
     0.02,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = plain_values(o).reshape({-1}).mul(2);
       *t.data_ptr<float>() *= 3;
       return {t.add(1)};
     }},
    {"zeros written through data_ptr",
     0.05,
     {F::constant_in_step},
     [](Operands& o) -> Tensors {
       const at::Tensor t = at::zeros({3});
       *t.data_ptr<float>() = static_cast<float>(o.x());
       return {t};
     }},
    {"argument written",
     0.02,
     {},
     [](Operands& o) -> Tensors {
       at::Tensor t = o.argument();
       return {t.is_floating_point() ? t.mul_(2) : t.zero_()};
     }},
    {"weight written in place",
     0.02,
     {},
     [](Operands& o) -> Tensors {
       const at::NoGradGuard no_grad;
       return {o.weight(0).detach().mul_(0.5)};
     }},
    {"generator seeded",
     0.02,
     {F::random},
     [](Operands& o) -> Tensors {
       at::manual_seed(static_cast<std::uint64_t>(o.n(0, 100)));
       return {at::rand({2})};
     }},
    {"generator of one's own",
     0.02,
     {F::random},
     [](Operands& o) -> Tensors {
       return {
           at::rand({2}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(o.n(0, 9))))};
     }},
    {"nonzero",
     0.02,
     {},
     [](Operands& o) -> Tensors { return {plain_values(o).gt(0).nonzero().sum()}; }},
    {"masked_select",
     0.02,
     {F::mask},
     [](Operands& o) -> Tensors {
       const at::Tensor t = plain_values(o);
       return {t.masked_select(t.gt(0)).sum()};
     }},
};

}  // namespace

std::span<const StepOp> hostile_ops() { return kHostile; }

}  // namespace cohort::parity
