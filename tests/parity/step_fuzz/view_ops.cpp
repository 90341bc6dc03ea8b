// SPDX-License-Identifier: Apache-2.0
// Instructions that return views, and those that move elements.
#include <ATen/ATen.h>

#include "tests/parity/step_fuzz/ops.h"

namespace cohort::parity {
namespace {

using F = Feature;

at::Tensor at_least_2d(const at::Tensor& t) { return t.dim() >= 2 ? t : t.reshape({t.numel(), 1}); }

at::Tensor at_least_1d(const at::Tensor& t) { return t.dim() >= 1 ? t : t.reshape({1}); }

// The first and the last part of a list.
Tensors ends_of(const Tensors& parts, const at::Tensor& otherwise) {
  return parts.empty() ? Tensors{otherwise} : Tensors{parts.front(), parts.back()};
}

const StepOp kViews[] = {
    {"reshape",
     1,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o[0];
       const std::int64_t rows = o.n(0, 4) + 1;
       if (t.numel() % rows != 0) return {t.reshape({t.numel()})};
       return {t.reshape({rows, t.numel() / rows})};
     }},
    {"view",
     1,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o[0].contiguous();
       return {o.flag(0) ? t.view({t.numel()}) : t.view({1, t.numel(), 1})};
     }},
    {"t",
     1,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o[0];
       return {t.dim() <= 2 ? t.t() : t.transpose(0, 1)};
     }},
    {"transpose",
     1,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = at_least_2d(o[0]);
       return {t.transpose(o.dim(0, t), o.dim(1, t))};
     }},
    {"permute",
     0.7,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o[0];
       std::vector<std::int64_t> order;
       for (std::int64_t i = 0; i < t.dim(); ++i) order.push_back((i + o.n(0, 5)) % t.dim());
       return {t.permute(order)};
     }},
    {"slice",
     1.5,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = at_least_1d(o[0]);
       const std::int64_t d = o.dim(0, t), begin = o.n(1, t.size(d) + 1);
       return {t.slice(d, begin, begin + 1 + o.n(2, 4), 1 + o.n(3, 2))};
     }},
    {"narrow",
     0.7,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = at_least_1d(o[0]);
       const std::int64_t d = o.dim(0, t), begin = o.n(1, t.size(d));
       return {t.narrow(d, begin, t.size(d) - begin)};
     }},
    {"select",
     1,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o[0];
       if (t.numel() == 0 || t.dim() == 0) return {t};
       const std::int64_t d = o.dim(0, t);
       return {t.select(d, o.n(1, t.size(d)))};
     }},
    {"as_strided",
     1.5,
     {F::view, F::view_as_strided},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o[0];
       if (!t.is_contiguous() || t.numel() < 2) return {t.as_strided(t.sizes(), t.strides())};
       if (o.flag(0)) return {t.as_strided({(t.numel() + 1) / 2}, {2})};
       return {t.as_strided({2, t.numel() / 2}, {1, 2}, t.storage_offset())};
     }},
    {"overlapping as_strided",
     0.3,
     {F::view, F::view_as_strided},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o[0].contiguous();
       if (t.numel() < 4) return {t};
       return {t.as_strided({t.numel() - 2, 3}, {1, 1})};
     }},
    {"expand",
     1,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o[0].unsqueeze(0);
       std::vector<std::int64_t> sizes = t.sizes().vec();
       sizes[0] = 2 + o.n(0, 2);
       return {t.expand(sizes)};
     }},
    {"unsqueeze",
     0.7,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o[0];
       return {t.unsqueeze(o.n(0, t.dim() + 1))};
     }},
    {"squeeze", 0.7, {F::view}, [](Operands& o) -> Tensors { return {o[0].squeeze()}; }},
    {"unbind",
     0.8,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = at_least_1d(o[0]);
       return ends_of(t.unbind(o.dim(0, t)), t);
     }},
    {"split",
     0.8,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = at_least_1d(o[0]);
       return ends_of(t.split(1 + o.n(1, 3), o.dim(0, t)), t);
     }},
    {"chunk",
     0.5,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = at_least_1d(o[0]);
       return ends_of(t.chunk(2, o.dim(0, t)), t);
     }},
    {"tensor_split",
     0.3,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = at_least_1d(o[0]);
       return ends_of(t.tensor_split(3, o.dim(0, t)), t);
     }},
    {"diagonal",
     0.8,
     {F::view},
     [](Operands& o) -> Tensors { return {at_least_2d(o[0]).diagonal(o.n(0, 3) - 1)}; }},
    {"flatten", 0.5, {F::view}, [](Operands& o) -> Tensors { return {o[0].flatten()}; }},
    {"unfold",
     0.4,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = at_least_1d(o[0]);
       const std::int64_t d = o.dim(0, t);
       if (t.size(d) < 2) return {t};
       return {t.unfold(d, 2, 1 + o.n(1, 2))};
     }},
    {"movedim",
     0.4,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = at_least_1d(o[0]);
       return {t.movedim(o.dim(0, t), o.dim(1, t))};
     }},
    {"view of another dtype",
     0.2,
     {F::view},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o[0];
       if (t.scalar_type() != c10::kFloat) return {t};
       return {t.detach().view(c10::kInt).remainder(17)};
     }},
    {"detach", 1.2, {F::view, F::detach}, [](Operands& o) -> Tensors { return {o[0].detach()}; }},
    {"contiguous", 0.4, {}, [](Operands& o) -> Tensors { return {o[0].contiguous()}; }},
    {"clone", 0.6, {}, [](Operands& o) -> Tensors { return {o[0].clone()}; }},
    {"clone of its layout",
     0.3,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor t = fit(o.real(0), {2, kChannels, 2, 2});
       return {t.contiguous(at::MemoryFormat::ChannelsLast)};
     }},
};

const StepOp kShapes[] = {
    {"cat",
     1,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_1d(o[0]);
       return {at::cat({a, fit(o[1], a.sizes()), a}, o.dim(0, a))};
     }},
    {"stack",
     0.7,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o[0];
       return {at::stack({a, fit(o[1], a.sizes())}, o.n(0, a.dim() + 1))};
     }},
    {"constant_pad_nd",
     0.5,
     {},
     [](Operands& o) -> Tensors {
       return {at::constant_pad_nd(at_least_1d(o[0]), {o.n(0, 2), 1}, o.x())};
     }},
    {"roll",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_1d(o[0]);
       return {a.roll(1 + o.n(0, 2), o.dim(1, a))};
     }},
    {"flip",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_1d(o[0]);
       return {a.flip(o.dim(0, a))};
     }},
    {"tril",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_2d(o[0]);
       return {o.flag(0) ? a.tril(o.n(1, 2)) : a.triu(o.n(1, 2))};
     }},
    {"repeat",
     0.4,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o[0];
       std::vector<std::int64_t> times(static_cast<std::size_t>(a.dim()) + 1, 1);
       times[0] = 2;
       return {a.repeat(times)};
     }},
    {"repeat_interleave",
     0.3,
     {},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_1d(o[0]);
       return {a.repeat_interleave(2, o.dim(0, a))};
     }},
    {"to double", 0.6, {}, [](Operands& o) -> Tensors { return {o[0].to(c10::kDouble)}; }},
    {"to float", 0.6, {}, [](Operands& o) -> Tensors { return {o[0].to(c10::kFloat)}; }},
    {"to bfloat16 and back",
     0.3,
     {},
     [](Operands& o) -> Tensors { return {o[0].to(c10::kBFloat16).to(c10::kFloat)}; }},
    {"to int", 0.4, {}, [](Operands& o) -> Tensors { return {o.integer(0).to(c10::kInt)}; }},
    {"diag_embed",
     0.3,
     {},
     [](Operands& o) -> Tensors { return {at::diag_embed(at_least_1d(o[0]))}; }},
    {"gather",
     0.8,
     {F::indexing},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_1d(o[0]);
       const std::int64_t d = o.dim(0, a);
       if (a.numel() == 0) return {a};
       return {a.gather(d, fit(o.integer(1), a.sizes()).remainder(a.size(d)).to(c10::kLong))};
     }},
    {"index_select",
     0.8,
     {F::indexing},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_1d(o[0]);
       const std::int64_t d = o.dim(0, a);
       if (a.size(d) == 0) return {a};
       return {a.index_select(d, o.labels(1, 2 + o.n(1, 3), a.size(d)))};
     }},
    {"index",
     0.8,
     {F::indexing},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_1d(o[0]);
       if (a.size(0) == 0) return {a};
       return {a.index({o.labels(1, 3, a.size(0))})};
     }},
    {"index with two",
     0.4,
     {F::indexing},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_2d(o[0]);
       if (a.numel() == 0) return {a};
       return {a.index({o.labels(1, 3, a.size(0)), o.labels(2, 3, a.size(1))})};
     }},
    {"take",
     0.3,
     {F::indexing},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o[0];
       if (a.numel() == 0) return {a};
       return {a.take(o.labels(1, 3, a.numel()))};
     }},
    {"take_along_dim",
     0.3,
     {F::indexing},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_1d(o[0]);
       const std::int64_t d = o.dim(0, a);
       if (a.numel() == 0) return {a};
       return {a.take_along_dim(a.argsort(d), d)};
     }},
    {"one_hot",
     0.5,
     {F::indexing},
     [](Operands& o) -> Tensors { return {at::one_hot(o.labels(0, 3, 4), 4)}; }},
    {"scatter_add",
     0.5,
     {F::indexing},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_1d(o.real(0));
       if (a.numel() == 0) return {a};
       const at::Tensor index = fit(o.integer(1), a.sizes()).remainder(a.size(0)).to(c10::kLong);
       return {a.scatter_add(0, index, fit(o.real(2), a.sizes()).to(a.scalar_type()))};
     }},
    {"index_add",
     0.5,
     {F::indexing},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_2d(o.real(0));
       if (a.numel() == 0) return {a};
       const at::Tensor rows = fit(o.real(2), {3, a.size(1)}).to(a.scalar_type());
       return {a.index_add(0, o.labels(1, 3, a.size(0)), rows)};
     }},
    {"index_put",
     0.4,
     {F::indexing},
     [](Operands& o) -> Tensors {
       const at::Tensor a = at_least_1d(o.real(0));
       if (a.size(0) == 0) return {a};
       return {a.index_put({o.labels(1, 2, a.size(0))}, at::full({}, o.x(), a.options()), true)};
     }},
    {"masked_fill",
     0.8,
     {F::mask},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o[0];
       return {a.masked_fill(fit(o.boolean(1), a.sizes()), o.n(0, 3))};
     }},
    {"where",
     0.8,
     {F::mask},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.real(0);
       const at::Tensor b = fit(o.real(2), a.sizes()).to(a.scalar_type());
       return {at::where(fit(o.boolean(1), a.sizes()), a, b)};
     }},
    {"product with a mask",
     0.6,
     {F::mask},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.real(0);
       return {a.mul(a.gt(o.x()))};
     }},
};

}  // namespace

std::span<const StepOp> view_ops() { return kViews; }
std::span<const StepOp> shape_ops() { return kShapes; }

}  // namespace cohort::parity
