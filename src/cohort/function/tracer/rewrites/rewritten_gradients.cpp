// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/rewrites/rewritten_gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/masked_scatter.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace cohort::function {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// LibTorch's evenly_distribute_backward checks on the host whether the value is NaN.
struct ReduceToOne : torch::autograd::Function<ReduceToOne> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self,
                            FullReduction reduce) {
    context->set_materialize_grads(false);
    at::Tensor value = reduce(self);
    context->save_for_backward({self, value});
    return value;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return {at::Tensor(), at::Tensor()};
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& self = saved[0];
    const at::Tensor& value = saved[1];
    at::Tensor mask = at::where(value.isnan(), self.isnan(), self == value);
    at::Tensor share = gradient / mask.sum();
    return {at::zeros(self.sizes(), self.options()).masked_fill_(mask, share), at::Tensor()};
  }
};

// The products of all other elements along `dim`, times the gradient: valid with zeros too.
at::Tensor gradient_with_zeros(const at::Tensor& gradient, const at::Tensor& input,
                               std::int64_t dim) {
  if (input.numel() == 0) return gradient.expand_as(input);
  const std::int64_t count = input.size(dim);
  if (count == 1) return gradient;
  std::vector<std::int64_t> sizes = input.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = 1;
  const at::Tensor ones = at::ones(sizes, gradient.options());
  const at::Tensor before = at::cat({ones, input.narrow(dim, 0, count - 1)}, dim).cumprod(dim);
  const at::Tensor reversed = input.narrow(dim, 1, count - 1).flip(dim);
  const at::Tensor after = at::cat({ones, reversed}, dim).cumprod(dim).flip(dim);
  return gradient * (before * after).conj();
}

// LibTorch's prod_backward counts the zeros on the host and then uses one of these formulas.
struct Product : torch::autograd::Function<Product> {
  static constexpr std::int64_t kAll = -1;

  // `dim` is kAll, or not negative.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self, std::int64_t dim,
                            bool keeps_dim) {
    context->set_materialize_grads(false);
    at::Tensor result = dim == kAll ? at::prod(self) : at::prod(self, dim, keeps_dim);
    context->save_for_backward({self, result});
    context->saved_data["dim"] = dim;
    context->saved_data["keeps_dim"] = keeps_dim;
    return result;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    const variable_list saved = context->get_saved_variables();
    const std::int64_t dim = context->saved_data["dim"].toInt();
    at::Tensor gradient;
    if (saved[0].dim() == 0) {
      gradient = gradients[0].clone();
    } else if (dim == kAll) {
      gradient = of_all(gradients[0], saved[0], saved[1]);
    } else {
      const bool was_kept = context->saved_data["keeps_dim"].toBool();
      gradient = was_kept
                     ? along(gradients[0], saved[0], saved[1], dim)
                     : along(gradients[0].unsqueeze(dim), saved[0], saved[1].unsqueeze(dim), dim);
    }
    return {gradient, at::Tensor(), at::Tensor()};
  }

 private:
  static at::Tensor of_all(const at::Tensor& gradient, const at::Tensor& input,
                           const at::Tensor& result) {
    const at::Tensor zeros = (input == 0).sum();
    const at::Tensor without = gradient * (result / input).conj();
    const at::Tensor with =
        gradient_with_zeros(gradient, input.contiguous().view({-1}), 0).view_as(input);
    return at::where(zeros == 0, without, at::where(zeros == 1, with, at::zeros_like(input)));
  }
  static at::Tensor along(const at::Tensor& gradient, const at::Tensor& input,
                          const at::Tensor& result, std::int64_t dim) {
    const at::Tensor zeros = (input == 0).sum();
    const at::Tensor without = gradient * (result / input).conj();
    return at::where(zeros == 0, without, gradient_with_zeros(gradient, input, dim));
  }
};

// The flat positions where `mask` is true, in order; those where it is false follow.
at::Tensor positions_of(const at::Tensor& mask) {
  const at::Tensor is_last = mask.to(at::kBool).logical_not().reshape({-1}).to(at::kByte);
  return std::get<1>(at::sort(is_last, /*stable=*/true, /*dim=*/0, /*descending=*/false));
}

struct MaskedScatter : torch::autograd::Function<MaskedScatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self,
                            const at::Tensor& mask, const at::Tensor& source) {
    context->set_materialize_grads(false);
    context->save_for_backward({mask});
    context->saved_data["sizes"] = source.sizes();
    return at::masked_scatter(self, mask, source);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    const at::Tensor mask = context->get_saved_variables()[0].to(at::kBool);
    const std::vector<std::int64_t> sizes = context->saved_data["sizes"].toIntVector();
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    const at::Tensor whole_mask = mask.expand_as(gradient);
    const std::int64_t used = std::min(count, gradient.numel());
    at::Tensor taken =
        gradient.reshape({-1}).index_select(0, positions_of(whole_mask).narrow(0, 0, used));
    const at::Tensor is_used = at::arange(used, at::kLong) < whole_mask.sum();
    taken = at::where(is_used, taken, at::zeros({}, gradient.options()));
    if (used < count) taken = at::cat({taken, at::zeros({count - used}, gradient.options())});
    return {gradient.masked_fill(mask, 0), at::Tensor(), taken.view(sizes)};
  }
};

struct MaskedPut : torch::autograd::Function<MaskedPut> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self,
                            const at::Tensor& mask, const at::Tensor& values, bool accumulates) {
    context->set_materialize_grads(false);
    context->save_for_backward({mask});
    context->saved_data["sizes"] = values.sizes();
    context->saved_data["accumulates"] = accumulates;
    return at::index_put(self, c10::List<c10::optional<at::Tensor>>({mask}), values, accumulates);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return {at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
    at::Tensor mask = context->get_saved_variables()[0].to(at::kBool);
    const std::vector<std::int64_t> sizes = context->saved_data["sizes"].toIntVector();
    const at::Tensor of_values = values_gradient(gradient, mask, sizes);
    while (mask.dim() < gradient.dim()) mask = mask.unsqueeze(-1);
    const bool accumulates = context->saved_data["accumulates"].toBool();
    return {accumulates ? gradient : gradient.masked_fill(mask, 0), at::Tensor(), of_values,
            at::Tensor()};
  }

 private:
  // A row is the part of the gradient that one element of the mask selects.
  static at::Tensor values_gradient(const at::Tensor& gradient, const at::Tensor& mask,
                                    const std::vector<std::int64_t>& sizes) {
    std::vector<std::int64_t> rows = gradient.sizes().slice(mask.dim()).vec();
    const bool has_all_rows = sizes.size() == rows.size() + 1 && sizes[0] != 1;
    rows.insert(rows.begin(), mask.numel());
    const at::Tensor flat = gradient.reshape(rows);
    if (has_all_rows) {
      // The forward pass has checked that the mask selects sizes[0] rows.
      return flat.index_select(0, positions_of(mask).narrow(0, 0, sizes[0])).sum_to_size(sizes);
    }
    std::vector<std::int64_t> one_a_row(rows.size(), 1);
    one_a_row[0] = mask.numel();
    return at::where(mask.reshape(one_a_row), flat, at::zeros({}, gradient.options()))
        .sum_to_size(sizes);
  }
};

}  // namespace

at::Tensor reduce_to_one(const at::Tensor& self, FullReduction reduce) {
  return ReduceToOne::apply(self, reduce);
}

at::Tensor product(const at::Tensor& self) { return Product::apply(self, Product::kAll, false); }

at::Tensor product(const at::Tensor& self, std::int64_t dim, bool keeps_dim) {
  return Product::apply(self, dim < 0 ? dim + std::max<std::int64_t>(self.dim(), 1) : dim,
                        keeps_dim);
}

at::Tensor scatter_by_mask(const at::Tensor& self, const at::Tensor& mask,
                           const at::Tensor& source) {
  return MaskedScatter::apply(self, mask, source);
}

at::Tensor put_by_mask(const at::Tensor& self, const at::Tensor& mask, const at::Tensor& values,
                       bool accumulates) {
  return MaskedPut::apply(self, mask, values, accumulates);
}

}  // namespace cohort::function
