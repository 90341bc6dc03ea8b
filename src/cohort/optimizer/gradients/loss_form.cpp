// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/gradients/loss_form.h"

#include <ATen/core/Reduction.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohort::internal {
namespace {

namespace generated = torch::autograd::generated;
using torch::autograd::Node;
using Sizes = std::vector<std::int64_t>;

// The values that a node has reduced to one number.
struct Reduced {
  bool is_mean;
  Sizes sizes;  // empty: not known
};

// Nothing is known of an input that an earlier backward pass has released.
template <class Loss>
Sizes sizes_of_input(const Loss& loss) {
  try {
    return loss.self_.unpack().sizes().vec();
  } catch (const c10::Error&) {
    return {};
  }
}

template <class Loss>
void look_for(const Node& node, bool has_classes, std::optional<Reduced>& found) {
  const auto* const loss = dynamic_cast<const Loss*>(&node);
  if (loss == nullptr || loss->reduction == at::Reduction::None) return;
  found = {loss->reduction == at::Reduction::Mean, {}};
  if (found->is_mean) return;
  found->sizes = sizes_of_input(*loss);
  if (has_classes && found->sizes.size() > 1) found->sizes[1] = 1;
}

std::optional<Reduced> reduced_by(const Node& node) {
  if (node.name().starts_with("MeanBackward")) return Reduced{true, {}};
  if (node.name().starts_with("SumBackward")) {
    Reduced sum{false, {}};
    const auto take = [&](const auto* of) {
      if (of == nullptr) return;
      for (const c10::SymInt& size : of->self_sym_sizes)
        sum.sizes.push_back(size.is_symbolic() ? 0 : size.expect_int());
    };
    take(dynamic_cast<const generated::SumBackward0*>(&node));
    take(dynamic_cast<const generated::SumBackward1*>(&node));
    return sum;
  }
  std::optional<Reduced> found;
  look_for<generated::NllLossBackward0>(node, /*has_classes=*/true, found);
  look_for<generated::NllLoss2DBackward0>(node, /*has_classes=*/true, found);
  look_for<generated::MseLossBackward0>(node, /*has_classes=*/false, found);
  look_for<generated::BinaryCrossEntropyBackward0>(node, /*has_classes=*/false, found);
  look_for<generated::BinaryCrossEntropyWithLogitsBackward0>(node, /*has_classes=*/false, found);
  look_for<generated::SmoothL1LossBackward0>(node, /*has_classes=*/false, found);
  look_for<generated::HuberLossBackward0>(node, /*has_classes=*/false, found);
  look_for<generated::SoftMarginLossBackward0>(node, /*has_classes=*/false, found);
  return found;
}

// A node of the graph, and the numbers by which its value has been multiplied since.
struct Term {
  const Node* node;
  double factor = 1;
  bool is_plain = true;  // nothing but sums follow it
};

LossForm form_of(const Term& term, const Reduced& reduced) {
  const double factor = std::abs(term.factor);
  constexpr double kRounding = 1e-6;  // of a factor such as 1.0f / n
  if (reduced.is_mean) {
    if (term.is_plain) return LossForm::mean;
    // One below 1 may divide by the number of replicas, or weigh by the part of the rows.
    return factor > 1 - kRounding ? LossForm::computed_mean : LossForm::scaled;
  }
  // A sum of one element, or without a factor, is no mean.
  const bool is_divided = factor < 1 - kRounding && !reduced.sizes.empty();
  const auto is_number = [&](std::int64_t count) {
    return std::abs(factor * static_cast<double>(count) - 1) < kRounding;
  };
  // The number of elements of several for each row may be that of the global batch's rows.
  const bool is_mean = is_divided && is_number(reduced.sizes.front());
  return is_mean ? LossForm::computed_mean : LossForm::scaled;
}

// The steps whose value is the sum of these terms.
std::vector<Term> terms_of(const Term& term) {
  const Node& node = *term.node;
  const std::string name = node.name();
  const auto input = [&](std::size_t i) {
    return i < node.num_outputs() ? node.next_edge(i).function.get() : nullptr;
  };
  const auto times = [&](std::size_t i, double factor) {
    return Term{input(i), term.factor * factor, term.is_plain && factor == 1};
  };
  const auto number = [](const at::Scalar& scalar) {
    return scalar.isComplex() ? std::nan("") : scalar.toDouble();
  };
  if (const auto* const add = dynamic_cast<const generated::AddBackward0*>(&node))
    return {times(0, 1), times(1, number(add->alpha))};
  if (const auto* const sub = dynamic_cast<const generated::SubBackward0*>(&node))
    return {times(0, 1), times(1, -number(sub->alpha))};
  if (const auto* const mul = dynamic_cast<const generated::MulBackward1*>(&node))
    return {times(0, number(mul->other))};
  if (const auto* const div = dynamic_cast<const generated::DivBackward1*>(&node))
    return {times(0, 1 / number(div->other))};
  if (const auto* const rsub = dynamic_cast<const generated::RsubBackward1*>(&node))
    return {times(0, -number(rsub->alpha))};
  if (name == "NegBackward0") return {times(0, -1)};
  if (name == "AddBackward1" || name == "SubBackward1" || name == "ToCopyBackward0")
    return {times(0, 1)};
  return {};
}

}  // namespace

LossForm form_of(const at::Tensor& loss) {
  constexpr int kNodes = 32;
  LossForm form = LossForm::unknown;
  std::vector<Term> terms{{loss.grad_fn().get()}};
  for (int i = 0; i < kNodes && !terms.empty(); ++i) {
    const Term term = terms.back();
    terms.pop_back();
    if (term.node == nullptr) continue;
    if (const std::optional<Reduced> reduced = reduced_by(*term.node)) {
      form = std::max(form, form_of(term, *reduced));
      continue;
    }
    const std::vector<Term> next = terms_of(term);
    terms.insert(terms.end(), next.begin(), next.end());
  }
  return form;
}

}  // namespace cohort::internal
