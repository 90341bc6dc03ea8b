// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/rewrites/rewrites.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/max.h>
#include <ATen/ops/max_pool1d_with_indices.h>
#include <ATen/ops/median.h>
#include <ATen/ops/min.h>
#include <ATen/ops/nanmedian.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "cohort/function/tracer/call_site.h"
#include "cohort/function/tracer/key.h"
#include "cohort/function/tracer/ops.h"
#include "cohort/function/tracer/rewrites/rewritten_gradients.h"

namespace cohort::function {
namespace {

struct Call {
  std::string_view overload;
  std::span<const c10::IValue> arguments;
  std::string_view inside;

  const at::Tensor& tensor(std::size_t index) const { return arguments[index].toTensor(); }
};
// Returns the operator's result; None: it is not rewritten.
using Rewrite = c10::IValue (*)(const Call& call);

bool is_differentiated(const at::Tensor& tensor) {
  return c10::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
}

// The composite reads the labels to check their range; scatter_ checks it too.
c10::IValue one_hot(const Call& call) {
  const at::Tensor& labels = call.tensor(0);
  const std::int64_t classes = call.arguments[1].toInt();
  if (classes <= 0) return {};
  std::vector<std::int64_t> sizes = labels.sizes().vec();
  sizes.push_back(classes);
  at::Tensor result = at::zeros(sizes, labels.options());
  result.scatter_(-1, labels.unsqueeze(-1), 1);
  return result;
}

// Some composites read tensor data only to check it. The result of the check in the trace is
// recorded as an assertion, which fails if a run's data would give another result.
bool is_check(std::string_view composite) { return composite == "aten::cov"; }

bool as_asserted(const at::Tensor& condition) {
  const at::Tensor value = condition.detach();
  const bool is_true = [&] {
    const Untraced untraced;
    return *static_cast<const bool*>(value.data_ptr());
  }();
  at::_assert_async(is_true ? value : value.logical_not());
  return is_true;
}

// torch::nn's attention checks whether query, key and value are equal, to save products. If they
// are not one tensor, its general code is valid too.
c10::IValue equal(const Call& call) {
  const at::Tensor& first = call.tensor(0);
  const at::Tensor& second = call.tensor(1);
  if (first.sizes() != second.sizes()) return false;
  const bool is_same = first.is_same(second);
  // A NaN does not equal itself.
  if (is_same && !first.is_floating_point() && !first.is_complex()) return true;
  for (const std::string_view caller :
       {"_ZN5torch2nn22MultiheadAttentionImpl7forward",
        "_ZN5torch2nn10functional6detail28multi_head_attention_forward"}) {
    if (is_called_by("equal", caller)) return is_same;
  }
  if (is_check(call.inside) && first.dim() == 0) return as_asserted(first.eq(second));
  return {};
}

c10::IValue item(const Call& call) {
  const at::Tensor& self = call.tensor(0);
  if (self.scalar_type() == c10::kBool && is_check(call.inside))
    return c10::Scalar(as_asserted(self));
  const bool is_index = self.scalar_type() == c10::kLong || self.scalar_type() == c10::kInt;
  if (!is_index || !call.inside.empty()) return {};
  // The caller checks the first and the last offset against 0 and the number of ids, and so does
  // the kernel.
  for (const std::string_view caller : {"_ZN5torch2nn16EmbeddingBagImpl7forward",
                                        "_ZN5torch2nn10functional6detail13embedding_bag"}) {
    if (is_called_by("item", caller)) return c10::Scalar(0);
  }
  if (self.scalar_type() != c10::kLong) return {};
  // The number of sequences in a batch, which equals the number of lengths.
  const auto is_of_packed = [](std::string_view caller) { return is_called_by("item", caller); };
  constexpr std::array<std::string_view, 3> kPacked = {
      "_ZN5torch2nn7RNNImpl25forward_with_packed_input",
      "_ZN5torch2nn8LSTMImpl25forward_with_packed_input",
      "_ZN5torch2nn7GRUImpl25forward_with_packed_input"};
  if (std::any_of(kPacked.begin(), kPacked.end(), is_of_packed)) {
    const std::int64_t count = [&] {
      const Untraced untraced;
      return *static_cast<const std::int64_t*>(self.data_ptr());
    }();
    as_asserted(self.eq(count));
    return c10::Scalar(count);
  }
  return {};
}

template <FullReduction reduce>
c10::IValue full_reduction(const Call& call) {
  if (!call.overload.empty() || !is_differentiated(call.tensor(0))) return {};
  return reduce_to_one(call.tensor(0), reduce);
}

at::Tensor full_max(const at::Tensor& self) { return at::max(self); }
at::Tensor full_min(const at::Tensor& self) { return at::min(self); }
at::Tensor full_median(const at::Tensor& self) { return at::median(self); }
at::Tensor full_nanmedian(const at::Tensor& self) { return at::nanmedian(self); }

c10::IValue prod(const Call& call) {
  at::Tensor self = call.tensor(0);
  const bool is_full = call.overload.empty();
  if (!is_differentiated(self) || (!is_full && call.overload != "dim_int")) return {};
  const c10::IValue& dtype = call.arguments[is_full ? 1 : 3];
  if (!dtype.isNone()) self = self.to(dtype.toScalarType());
  if (is_full) return product(self);
  return product(self, call.arguments[1].toInt(), call.arguments[2].toBool());
}

c10::IValue masked_scatter(const Call& call) {
  if (!is_differentiated(call.tensor(2))) return {};
  return scatter_by_mask(call.tensor(0), call.tensor(1), call.tensor(2));
}

// The one mask among the indices, which must be the first; else undefined.
at::Tensor only_mask(const c10::IValue& indices) {
  const auto list = indices.toListRef();
  if (list.empty() || !is_mask(list[0])) return {};
  const bool has_others = std::any_of(list.begin() + 1, list.end(), [](const c10::IValue& index) {
    return index.isTensor() && index.toTensor().defined();
  });
  return has_others ? at::Tensor() : list[0].toTensor();
}

c10::IValue index_put(const Call& call) {
  if (!is_differentiated(call.tensor(2))) return {};
  const at::Tensor mask = only_mask(call.arguments[1]);
  if (!mask.defined()) return {};
  return put_by_mask(call.tensor(0), mask, call.tensor(2), call.arguments[3].toBool());
}

// The backward pass of the fill value selects by the mask.
c10::IValue masked_fill(const Call& call) {
  if (call.overload != "Tensor" || !is_differentiated(call.tensor(2))) return {};
  const at::Tensor& self = call.tensor(0);
  if (call.tensor(2).dim() != 0 || !c10::canCast(call.tensor(2).scalar_type(), self.scalar_type()))
    return {};
  return at::where(call.tensor(1).to(c10::kBool), call.tensor(2).to(self.scalar_type()), self);
}

// x.op_(…) as x.copy_(op(x, …)).
template <Rewrite out_of_place>
c10::IValue in_place(const Call& call) {
  const c10::IValue result = out_of_place(call);
  if (result.isNone()) return {};
  at::Tensor self = call.tensor(0);
  return self.copy_(result.toTensor());
}

// With label smoothing, the mean is taken over the labels that are not ignored, which are selected
// by a mask.
c10::IValue cross_entropy_loss(const Call& call) {
  const at::Tensor& self = call.tensor(0);
  const at::Tensor& target = call.tensor(1);
  const c10::IValue& given = call.arguments[2];
  const std::int64_t reduction = call.arguments[3].toInt();
  const std::int64_t ignored = call.arguments[4].toInt();
  const double smoothing = call.arguments[5].toDouble();
  constexpr std::int64_t kMean = 1;
  const bool has_classes = self.dim() > 0 && self.sizes() != target.sizes();
  if (!has_classes || !(smoothing > 0.0 && smoothing <= 1.0) || reduction != kMean) return {};
  const at::Tensor weight = given.isTensor() ? given.toTensor() : at::Tensor();
  const std::int64_t class_dim = self.dim() == 1 ? 0 : 1;
  const at::Tensor input = at::log_softmax(self, class_dim, self.scalar_type());
  const at::Tensor sharp = at::nll_loss_nd(input, target, weight, reduction, ignored);
  const at::Tensor is_ignored = target == ignored;
  at::Tensor scale;
  at::Tensor smooth;
  if (weight.defined()) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
    sizes[static_cast<std::size_t>(class_dim)] = weight.size(0);
    smooth = -(input * weight.view(sizes)).sum(class_dim);
    const at::Tensor labels = target.masked_fill(is_ignored, 0).flatten();
    scale = weight.gather(0, labels).masked_fill_(is_ignored.flatten(), 0).sum();
  } else {
    smooth = -input.sum(class_dim);
    scale = is_ignored.logical_not().sum();
  }
  smooth.masked_fill_(is_ignored, 0.0);
  const auto classes = static_cast<double>(input.size(class_dim));
  return (1 - smoothing) * sharp + smooth.sum() / scale * (smoothing / classes);
}

// Where each quantile lies among the sorted values of the last dimension.
at::Tensor ranks_of(const at::Tensor& q, const at::Tensor& sorted, bool ignores_nan) {
  if (ignores_nan) {
    const at::Tensor last = sorted.isnan().logical_not().sum(-1, true) - 1;
    at::Tensor ranks = q * last;
    return ranks.masked_fill_(ranks < 0, 0);
  }
  const std::int64_t last = sorted.size(-1) - 1;
  const at::Tensor is_nan = sorted.isnan().any(-1, true);
  return at::where(is_nan, at::scalar_tensor(last, q.options()), q * last);
}

at::Tensor interpolated(const at::Tensor& sorted, const at::Tensor& ranks, std::string_view how) {
  if (how == "lower") return sorted.gather(-1, ranks.floor().to(at::kLong));
  if (how == "higher") return sorted.gather(-1, ranks.ceil().to(at::kLong));
  if (how == "nearest") return sorted.gather(-1, ranks.round().to(at::kLong));
  const at::Tensor below = ranks.to(at::kLong);
  const at::Tensor weights = how == "midpoint" ? at::full_like(ranks, 0.5) : ranks - below;
  return sorted.gather(-1, below).lerp(sorted.gather(-1, ranks.ceil().to(at::kLong)), weights);
}

// LibTorch checks q on the host; newer versions also select the values there.
template <bool ignores_nan>
c10::IValue quantile(const Call& call) {
  const at::Tensor& self = call.tensor(0);
  const bool is_number = call.arguments[1].isDouble();
  const at::Tensor q =
      is_number ? at::scalar_tensor(call.arguments[1].toDouble(), self.options()) : call.tensor(1);
  const bool has_dtype =
      self.scalar_type() == at::ScalarType::Float || self.scalar_type() == at::ScalarType::Double;
  const bool is_usual = has_dtype && self.numel() > 0 && q.dim() <= 1 && q.numel() > 0 &&
                        q.scalar_type() == self.scalar_type();
  if (!is_usual || call.overload.find("Dimname") != std::string_view::npos) return {};
  const std::string_view how = call.arguments[4].toStringRef();
  constexpr std::array<std::string_view, 5> kKinds = {"linear", "lower", "higher", "midpoint",
                                                      "nearest"};
  if (std::find(kKinds.begin(), kKinds.end(), how) == kKinds.end()) return {};
  const bool is_in_range =
      is_number ? call.arguments[1].toDouble() >= 0 && call.arguments[1].toDouble() <= 1
                : as_asserted(q.ge(0).logical_and(q.le(1)).all());
  if (!is_in_range) return {};
  const bool is_whole = call.arguments[2].isNone() || self.dim() == 0;
  const std::int64_t given = is_whole ? 0 : call.arguments[2].toInt();
  const std::int64_t dim = given < 0 ? given + self.dim() : given;
  // The reduced dimension last, and one of a single element in its place.
  const at::Tensor lined_up = is_whole ? self.flatten() : self.unsqueeze(-1).transpose(dim, -1);
  const at::Tensor sorted = std::get<0>(at::sort(lined_up));
  at::Tensor values = interpolated(sorted, ranks_of(q.reshape({-1}), sorted, ignores_nan), how);
  if (!is_whole && !call.arguments[3].toBool()) values = values.squeeze(dim);
  if (is_whole && call.arguments[3].toBool()) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(self.dim()), 1);
    sizes.push_back(-1);
    values = values.view(sizes);
  }
  return q.dim() == 0 ? values.squeeze(-1) : values.movedim(-1, 0);
}

// Without gradients the composite accesses the memory itself.
c10::IValue max_pool1d(const Call& call) {
  const auto& arguments = call.arguments;
  return std::get<0>(at::max_pool1d_with_indices(
      call.tensor(0), arguments[1].toIntVector(), arguments[2].toIntVector(),
      arguments[3].toIntVector(), arguments[4].toIntVector(), arguments[5].toBool()));
}

c10::IValue resized(at::Tensor self, at::IntArrayRef sizes) {
  if (self.requires_grad() || !self.device().is_cpu() || self.layout() != c10::kStrided) return {};
  if (self.sizes() == sizes) return self;
  std::int64_t count = 1;
  std::vector<std::int64_t> strides(sizes.size());
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = count;
    count *= std::max<std::int64_t>(sizes[i], 1);
  }
  const bool is_empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  const auto elements = static_cast<std::size_t>(self.storage_offset() + count);
  if (is_empty || elements * self.element_size() <= self.storage().nbytes())
    return self.as_strided_(sizes, strides);
  // Views of replaced memory would still show the old memory.
  if (self.storage().nbytes() != 0) return {};
  const at::Tensor fresh = at::empty(sizes, self.options());
  const Untraced untraced;
  self.set_data(fresh);
  return self;
}

bool is_row_major(const c10::IValue& format) {
  return format.isNone() || format.toMemoryFormat() == c10::MemoryFormat::Contiguous;
}

c10::IValue resize(const Call& call) {
  if (!is_row_major(call.arguments[2])) return {};
  return resized(call.tensor(0), call.arguments[1].toIntVector());
}

c10::IValue resize_as(const Call& call) {
  const at::Tensor& pattern = call.tensor(1);
  if (!is_row_major(call.arguments[2])) return {};
  return resized(call.tensor(0), pattern.sizes());
}

struct RewrittenOp {
  std::string_view name;
  Rewrite rewrite;
};
constexpr auto kRewrites = std::to_array<RewrittenOp>({
    {"aten::cross_entropy_loss", &cross_entropy_loss},
    {"aten::equal", &equal},
    {"aten::index_put", &index_put},
    {"aten::index_put_", &in_place<&index_put>},
    {"aten::item", &item},
    {"aten::masked_fill", &masked_fill},
    {"aten::masked_fill_", &in_place<&masked_fill>},
    {"aten::masked_scatter", &masked_scatter},
    {"aten::masked_scatter_", &in_place<&masked_scatter>},
    {"aten::max", &full_reduction<&full_max>},
    {"aten::max_pool1d", &max_pool1d},
    {"aten::median", &full_reduction<&full_median>},
    {"aten::min", &full_reduction<&full_min>},
    {"aten::nanmedian", &full_reduction<&full_nanmedian>},
    {"aten::nanquantile", &quantile<true>},
    {"aten::one_hot", &one_hot},
    {"aten::prod", &prod},
    {"aten::quantile", &quantile<false>},
    {"aten::resize_", &resize},
    {"aten::resize_as_", &resize_as},
});

constexpr bool is_before(const RewrittenOp& a, const RewrittenOp& b) { return a.name < b.name; }
static_assert(std::is_sorted(kRewrites.begin(), kRewrites.end(), &is_before));

}  // namespace

bool resizes_argument(std::string_view name) {
  return name == "aten::resize_" || name == "aten::resize_as_";
}

bool rewrite(const c10::OperatorHandle& op, std::string_view inside, torch::jit::Stack& stack) {
  const std::string_view name = op.operator_name().name;
  const auto* row =
      std::lower_bound(kRewrites.begin(), kRewrites.end(), RewrittenOp{name, nullptr}, &is_before);
  if (row == kRewrites.end() || row->name != name) return false;
  const std::size_t count = op.schema().arguments().size();
  // The rewritten form uses other stacks, so the span of arguments stays valid.
  c10::IValue result = row->rewrite({.overload = op.operator_name().overload_name,
                                     .arguments = {stack.data() + stack.size() - count, count},
                                     .inside = inside});
  if (result.isNone()) return false;
  torch::jit::drop(stack, count);
  torch::jit::push(stack, std::move(result));
  return true;
}

bool is_recorded_whole(const c10::OperatorHandle& op) {
  return !c10::GradMode::is_enabled() && op.operator_name().name == "aten::cumprod_backward";
}

}  // namespace cohort::function
