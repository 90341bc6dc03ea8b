// SPDX-License-Identifier: Apache-2.0
// Instructions that are layers, losses or random.
#include <ATen/ATen.h>

#include "tests/parity/step_fuzz/ops.h"

namespace cohort::parity {
namespace {

using F = Feature;

// A variable of the step, as a parameter of these sizes.
at::Tensor parameter(Operands& o, std::size_t i, at::IntArrayRef sizes) {
  return fit(o.weight(i), sizes);
}

at::Tensor as(const at::Tensor& like, const at::Tensor& value) {
  return value.to(like.scalar_type());
}

at::Tensor image(Operands& o, std::int64_t channels) {
  return o.fitted(0, {2, channels, 4, 4}).to(c10::kFloat);
}

at::Tensor batch_norm(Operands& o, const at::Tensor& x, bool is_training) {
  const Tensors buffers = o.buffers();
  const bool has_affine = o.flag(0);
  const at::Tensor weight = has_affine ? parameter(o, 1, {kChannels}) : at::Tensor();
  const at::Tensor bias = has_affine ? parameter(o, 2, {kChannels}) : at::Tensor();
  if (buffers.size() < 3) return at::batch_norm(x, weight, bias, {}, {}, true, 0.1, 1e-5, false);
  if (is_training) {
    for (std::size_t i = 0; i < 3; ++i) o.note_write(buffers[i]);
    buffers[2].add_(1);
    o.note(F::batch_norm_training);
    o.note(F::counter);
  }
  return at::batch_norm(x, weight, bias, buffers[0], buffers[1], is_training, o.flag(3) ? 0.1 : 0.5,
                        1e-5, false);
}

const StepOp kBlocks[] = {
    {"linear",
     2,
     {F::linear},
     [](Operands& o) -> Tensors {
       const at::Tensor x = o.matrix(0).to(c10::kFloat);
       const std::int64_t width = 1 + o.n(0, 4);
       return {at::linear(x, parameter(o, 1, {width, x.size(1)}), parameter(o, 2, {width}))};
     }},
    {"linear without bias",
     0.6,
     {F::linear},
     [](Operands& o) -> Tensors {
       const at::Tensor x = o.real(0).to(c10::kFloat);
       if (x.dim() == 0) return {x};
       return {at::linear(x, parameter(o, 1, {2, x.size(-1)}))};
     }},
    {"conv2d",
     1.2,
     {F::convolution},
     [](Operands& o) -> Tensors {
       return {at::conv2d(image(o, 2), parameter(o, 1, {3, 2, 3, 3}), parameter(o, 2, {3}),
                          1 + o.n(0, 2), o.n(3, 2))};
     }},
    {"conv2d, channels last",
     0.5,
     {F::convolution, F::strided_values},
     [](Operands& o) -> Tensors {
       const at::Tensor x = image(o, 2).contiguous(at::MemoryFormat::ChannelsLast);
       return {at::conv2d(x, parameter(o, 1, {3, 2, 2, 2}))};
     }},
    {"conv1d",
     0.6,
     {F::convolution},
     [](Operands& o) -> Tensors {
       return {at::conv1d(o.fitted(0, {2, 2, 5}).to(c10::kFloat), parameter(o, 1, {2, 2, 3}))};
     }},
    {"conv_transpose2d",
     0.4,
     {F::convolution},
     [](Operands& o) -> Tensors {
       return {at::conv_transpose2d(image(o, 2), parameter(o, 1, {2, 3, 2, 2}))};
     }},
    {"batch norm of rows",
     1.5,
     {F::batch_norm},
     [](Operands& o) -> Tensors {
       return {batch_norm(o, o.fitted(0, {4, kChannels}).to(c10::kFloat), true)};
     }},
    {"batch norm of images",
     1,
     {F::batch_norm},
     [](Operands& o) -> Tensors { return {batch_norm(o, image(o, kChannels), true)}; }},
    {"batch norm, evaluated",
     0.6,
     {F::batch_norm},
     [](Operands& o) -> Tensors {
       return {batch_norm(o, o.fitted(0, {4, kChannels}).to(c10::kFloat), false)};
     }},
    {"instance norm",
     0.3,
     {F::batch_norm},
     [](Operands& o) -> Tensors {
       return {at::instance_norm(image(o, 3), {}, {}, {}, {}, true, 0.1, 1e-5, false)};
     }},
    {"layer norm",
     0.8,
     {F::layer_norm},
     [](Operands& o) -> Tensors {
       const at::Tensor x = o.matrix(0, 4).to(c10::kFloat);
       return {at::layer_norm(x, {4}, parameter(o, 1, {4}), parameter(o, 2, {4}))};
     }},
    {"group norm",
     0.5,
     {F::layer_norm},
     [](Operands& o) -> Tensors {
       return {at::group_norm(image(o, 4), 2, parameter(o, 1, {4}), parameter(o, 2, {4}))};
     }},
    {"embedding",
     1.2,
     {F::embedding, F::indexing},
     [](Operands& o) -> Tensors {
       const at::Tensor ids = o.labels(0, 4, 5).reshape({2, 2});
       return {at::embedding(parameter(o, 1, {5, 3}), ids, o.flag(2) ? 1 : -1)};
     }},
    {"softmax",
     1,
     {F::softmax},
     [](Operands& o) -> Tensors {
       const at::Tensor x = o.real(0);
       return {o.flag(0) ? at::softmax(x, -1) : at::log_softmax(x, -1)};
     }},
    {"attention",
     0.5,
     {F::softmax},
     [](Operands& o) -> Tensors {
       const at::Tensor q = o.fitted(0, {2, 3, 4}).to(c10::kFloat).tanh();
       const at::Tensor k = o.fitted(1, {2, 3, 4}).to(c10::kFloat).tanh();
       const at::Tensor mask = at::ones({3, 3}, at::kBool).triu(1);
       const at::Tensor scores = q.bmm(k.transpose(1, 2)).masked_fill(mask, -1e9);
       return {at::softmax(scores, -1).bmm(k)};
     }},
    {"pool",
     0.8,
     {F::pooling},
     [](Operands& o) -> Tensors {
       const at::Tensor x = image(o, 2);
       switch (o.n(0, 4)) {
         case 0:
           return {at::max_pool2d(x, 2)};
         case 1:
           return {at::avg_pool2d(x, 2)};
         case 2:
           return {at::adaptive_avg_pool2d(x, {2, 2})};
         default:
           return {at::upsample_nearest2d(x, {8, 8})};
       }
     }},
    {"recurrent cells",
     0.8,
     {F::recurrent_cell},
     [](Operands& o) -> Tensors {
       const at::Tensor x = o.matrix(0, 3).to(c10::kFloat);
       const at::Tensor h = as(x, fit(o.bounded(1), {x.size(0), 2}));
       if (o.flag(0)) {
         return {at::gru_cell(x, h, parameter(o, 1, {6, 3}), parameter(o, 2, {6, 2}))};
       }
       auto [hidden, cell] =
           at::lstm_cell(x, {h, h}, parameter(o, 1, {8, 3}), parameter(o, 2, {8, 2}));
       return {hidden, cell};
     }},
    {"cross entropy",
     1.5,
     {F::loss},
     [](Operands& o) -> Tensors {
       const at::Tensor x = o.matrix(0, 4);
       return {at::cross_entropy_loss(x, o.labels(1, x.size(0), 4))};
     }},
    {"cross entropy with weights",
     0.5,
     {F::loss},
     [](Operands& o) -> Tensors {
       const at::Tensor x = o.matrix(0, 4);
       const at::Tensor weights = as(x, fit(o.positive(2), {4})).detach();
       return {
           at::cross_entropy_loss(x, o.labels(1, x.size(0), 4), weights, 1, o.flag(0) ? 2 : -100)};
     }},
    {"nll of probabilities",
     0.3,
     {F::loss},
     [](Operands& o) -> Tensors {
       const at::Tensor x = o.matrix(0, 4);
       return {at::nll_loss(at::log_softmax(x, 1), o.labels(1, x.size(0), 4), {}, 2)};
     }},
    {"loss of a difference",
     1.5,
     {F::loss},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.real(0), b = as(a, fit(o.real(1), a.sizes()));
       switch (o.n(0, 5)) {
         case 0:
           return {at::mse_loss(a, b, 2)};
         case 1:
           return {at::smooth_l1_loss(a, b, 2)};
         case 2:
           return {at::huber_loss(a, b, 2)};
         case 3:
           return {at::l1_loss(a, b, 2)};
         default:
           return {at::binary_cross_entropy_with_logits(a, b.sigmoid().detach(), {}, {}, 2)};
       }
     }},
    {"cosine similarity",
     0.3,
     {F::loss},
     [](Operands& o) -> Tensors {
       const at::Tensor a = o.matrix(0, 3);
       return {at::cosine_similarity(a.add(0.5), as(a, fit(o.real(1), a.sizes())))};
     }},
};

const StepOp kRandom[] = {
    {"dropout",
     1.5,
     {F::random},
     [](Operands& o) -> Tensors {
       return {at::dropout(o.real(0), 0.25 + 0.5 * static_cast<double>(o.n(0, 2)), true)};
     }},
    {"feature_dropout",
     0.3,
     {F::random},
     [](Operands& o) -> Tensors { return {at::feature_dropout(image(o, 3), 0.5, true)}; }},
    {"alpha_dropout",
     0.2,
     {F::random},
     [](Operands& o) -> Tensors { return {at::alpha_dropout(o.real(0), 0.5, true)}; }},
    {"rand",
     0.8,
     {F::random},
     [](Operands& o) -> Tensors {
       return {o.flag(0) ? at::rand({2, 3}) : at::randn({3})};
     }},
    {"randn_like",
     0.6,
     {F::random},
     [](Operands& o) -> Tensors {
       return {o.flag(0) ? at::randn_like(o.real(0)) : at::rand_like(o.real(0))};
     }},
    {"normal_",
     0.5,
     {F::random, F::in_place_on_result},
     [](Operands& o) -> Tensors {
       at::Tensor t = o.real(0).detach().clone();
       return {o.flag(0) ? t.normal_(o.x(), 0.5) : t.uniform_(-1, 1)};
     }},
    {"normal_ through a view",
     0.4,
     {F::random, F::in_place_through_view},
     [](Operands& o) -> Tensors {
       at::Tensor t = at::zeros({3, 4});
       t.slice(1, 0, 1 + o.n(0, 3)).normal_();
       return {t};
     }},
    {"bernoulli",
     0.6,
     {F::random},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o.real(0).detach().sigmoid();
       return {o.flag(0) ? at::bernoulli(t) : t.clone().bernoulli_(0.4)};
     }},
    {"randint",
     0.5,
     {F::random},
     [](Operands& o) -> Tensors {
       return {at::randint(2 + o.n(0, 6), {2, 3}), at::randperm(4)};
     }},
    {"multinomial",
     0.2,
     {F::random},
     [](Operands& o) -> Tensors {
       return {at::multinomial(o.matrix(0, 4).detach().softmax(1), 2)};
     }},
    {"exponential_",
     0.2,
     {F::random},
     [](Operands& o) -> Tensors { return {o.real(0).detach().clone().exponential_(1.5)}; }},
    {"rrelu",
     0.2,
     {F::random},
     [](Operands& o) -> Tensors { return {at::rrelu(o.real(0), 0.1, 0.3, true)}; }},
    {"noise on a gradient path",
     0.6,
     {F::random},
     [](Operands& o) -> Tensors {
       const at::Tensor t = o.real(0);
       return {t.add(at::randn_like(t).mul(0.1))};
     }},
};

}  // namespace

std::span<const StepOp> block_ops() { return kBlocks; }
std::span<const StepOp> random_ops() { return kRandom; }

}  // namespace cohort::parity
