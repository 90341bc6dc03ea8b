// SPDX-License-Identifier: Apache-2.0
// Programs against eager execution, bit for bit: operators, random numbers, autograd.
#include <torch/torch.h>

#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

using torch::indexing::None;
using torch::indexing::Slice;

struct OpCase {
  const char* name;
  std::vector<std::int64_t> sizes;
  std::function<at::Tensor(at::Tensor)> body;
};

void PrintTo(const OpCase& one, std::ostream* out) { *out << one.name; }

class TraceOps : public TraceCase, public ::testing::WithParamInterface<OpCase> {};

TEST_P(TraceOps, EqualEager) { expect_equal_to_eager(GetParam().sizes, GetParam().body); }

at::Tensor gradient_of(const at::Tensor& of, const at::Tensor& loss,
                       bool is_differentiable = false) {
  return torch::autograd::grad({loss}, {of}, {}, true, is_differentiable)[0];
}

const std::vector<OpCase> kForward = {
    {"Arithmetic", {4, 3}, [](at::Tensor x) { return (x * 2.5 + 1) / (x.abs() + 1) - x.exp(); }},
    {"TransposeInPlace",
     {4, 3},
     [](at::Tensor x) {
       auto y = x.clone();
       y.t_();
       return y.mul(2).matmul(x);
     }},
    {"TransposeInPlaceKeepsShallowCopies",
     {4, 3},
     [](at::Tensor x) {
       auto y = x.clone();
       auto before = y.data();
       auto seen = before + 1;
       y.t_();
       return y.matmul(before) + seen.sum();
     }},
    {"SqueezeInPlace",
     {4, 1, 3},
     [](at::Tensor x) {
       auto y = x.clone();
       y.squeeze_(1);
       return y.unsqueeze_(0) * x.sum();
     }},
    {"WriteThroughView",
     {4, 3},
     [](at::Tensor x) {
       auto y = x.clone();
       y.select(0, 1).fill_(7);
       y.slice(1, 0, 2).mul_(3);
       return y;
     }},
    {"WriteThroughViewOfView",
     {4, 4},
     [](at::Tensor x) {
       auto y = x.clone();
       y.t().view({2, 2, 4})[1].add_(y.sum());
       return y;
     }},
    {"AccessThroughDataOfView",
     {4, 3},
     [](at::Tensor x) {
       auto y = x.clone();
       y.data().slice(0, 0, 2).sub_(1);
       return y * 2;
     }},
    {"ReshapeOfTransposed",
     {4, 3},
     [](at::Tensor x) {
       return x.t().reshape({2, 6}).flatten() * 2;
     }},
    {"ReshapeAliasIsView",
     {4, 3},
     [](at::Tensor x) {
       return x.reshape({6, 2}) + x.reshape({12}).sum();
     }},
    {"ExpandAndPermute",
     {4, 3},
     [](at::Tensor x) {
       return x.unsqueeze(0).expand({2, 4, 3}).permute({2, 0, 1}).contiguous();
     }},
    {"IndexGet",
     {4, 3},
     [](at::Tensor x) {
       return x.index({Slice(1, None), Slice(None, None, 2)}) + x.index({2, 1});
     }},
    {"IndexGetByTensor",
     {4, 3},
     [](at::Tensor x) {
       return x.index({torch::tensor({0, 2, 2})});
     }},
    {"IndexPut",
     {4, 3},
     [](at::Tensor x) {
       auto y = x.clone();
       y.index_put_({1, Slice()}, 7.0);
       y.index_put_({torch::tensor({0, 3})}, x.index({2}));
       return y;
     }},
    {"IndexPutMask",
     {4, 3},
     [](at::Tensor x) {
       auto y = x.clone();
       y.index_put_({x > 0}, 0.5);
       return y;
     }},
    {"MaskedFill",
     {4, 3},
     [](at::Tensor x) { return x.masked_fill(x > 0, 2.0) + torch::where(x > 0.5, x, -x); }},
    {"CatSplitStack",
     {6, 3},
     [](at::Tensor x) {
       auto parts = x.split(2);
       return torch::stack(
           {torch::cat({parts[2], parts[0]}), torch::cat(x.chunk(3)).slice(0, 0, 4)});
     }},
    {"Unbind",
     {4, 3},
     [](at::Tensor x) {
       auto rows = x.unbind(0);
       return rows[0] * rows[3] + rows[1];
     }},
    {"UnbindOfClone",
     {4, 3},
     [](at::Tensor x) {
       auto y = x.clone();
       for (auto& row : y.unbind(0)) row.add_(1);
       return y;
     }},
    {"TopkAndSort",
     {4, 3},
     [](at::Tensor x) {
       auto [values, indices] = x.topk(2, 1);
       return values + std::get<1>(x.sort(0)).sum() + indices;
     }},
    {"MaxAlongDimension",
     {4, 3},
     [](at::Tensor x) {
       auto [values, at] = x.max(1);
       return values * at;
     }},
    {"Factories",
     {4, 3},
     [](at::Tensor x) {
       return x + torch::arange(3) + torch::ones({4, 1}) + torch::full({3}, 0.25) +
              torch::eye(4).slice(1, 0, 3) + torch::zeros_like(x) + torch::linspace(0, 1, 3);
     }},
    {"TensorLiteral",
     {4, 3},
     [](at::Tensor x) {
       return x * torch::tensor({1.0, 2.0, 3.0}) + torch::tensor(4.0);
     }},
    {"TensorLiteralWritten",
     {3},
     [](at::Tensor x) {
       auto t = torch::tensor({1.0f, 2.0f, 3.0f});
       t.add_(x);
       t[0] = 9;
       return t;
     }},
    {"TensorLiteralOfBooleans",
     {3},
     [](at::Tensor x) {
       return x * torch::tensor({true, false, true});
     }},
    {"HostFilledMemory",
     {3},
     [](at::Tensor x) {
       auto t = torch::empty({3});
       for (int i = 0; i < 3; ++i) t.data_ptr<float>()[i] = static_cast<float>(i);
       return x + t.view({3, 1});
     }},
    {"HostFilledZeros",
     {3},
     [](at::Tensor x) {
       auto t = torch::zeros({3});
       t.accessor<float, 1>()[1] = 5;
       auto y = x + t;
       t.accessor<float, 1>()[2] = 6;
       return y * t;
     }},
    {"HostFilledThenWritten",
     {3},
     [](at::Tensor x) {
       auto t = torch::ones({3});
       t.accessor<float, 1>()[1] = 5;
       t.mul_(x);
       t.slice(0, 0, 1).add_(1);
       return t;
     }},
    {"FilledPieceByPiece",
     {4, 3},
     [](at::Tensor x) {
       auto y = torch::empty({4, 3});
       for (int i = 0; i < 4; ++i) y[i].copy_(x[3 - i]);
       return y;
     }},
    {"FilledWhole",
     {4, 3},
     [](at::Tensor x) {
       auto y = torch::empty_like(x);
       y.copy_(x);
       return torch::empty({4, 3}).fill_(2) + y;
     }},
    {"OutVariant",
     {4, 3},
     [](at::Tensor x) {
       auto y = torch::empty({0});
       torch::add_out(y, x, x);
       auto z = torch::empty({4, 3});
       torch::mul_out(z, x, y);
       return z;
     }},
    {"FromBlob",
     {3},
     [](at::Tensor x) {
       static float values[] = {1, 2, 3};
       return x * torch::from_blob(values, {3}).clone() + torch::from_blob(values, {3});
     }},
    {"ToDtype",
     {4, 3},
     [](at::Tensor x) {
       return x.to(torch::kDouble).mul(2).to(x.options()) + x.to(torch::kInt64).to(torch::kFloat);
     }},
    {"WrappedNumbersPromote",
     {3},
     [](at::Tensor x) {
       return (x > 0).to(torch::kInt32) * 2 + torch::ones({3}, torch::kInt32) * 3.5;
     }},
    {"Complex",
     {4, 4},
     [](at::Tensor x) {
       auto c = torch::complex(x, x.t().contiguous());
       return torch::view_as_real(c.conj() * c + c.mul(c10::complex<double>(0, 1)));
     }},
    {"Fourier", {8}, [](at::Tensor x) { return torch::fft::irfft(torch::fft::rfft(x) * 2); }},
    {"Einsum",
     {4, 3},
     [](at::Tensor x) {
       return torch::einsum("ij,kj->ik", {x, x * 2});
     }},
    {"Norms",
     {4, 3},
     [](at::Tensor x) {
       return x.norm() + x.std(0) + torch::linalg_norm(x, 2, at::IntArrayRef{1}).sum() + x.var();
     }},
    {"Softmax",
     {4, 3},
     [](at::Tensor x) { return x.softmax(1) + x.log_softmax(0) + x.logsumexp(1, true); }},
    {"Convolution",
     {1, 2, 8, 8},
     [](at::Tensor x) {
       return torch::max_pool2d(torch::conv2d(x, torch::ones({3, 2, 3, 3}), {}, 1, 1), 2);
     }},
    {"Interpolate",
     {1, 2, 4, 4},
     [](at::Tensor x) {
       return torch::upsample_nearest2d(x, at::IntArrayRef{8, 8}) +
              torch::upsample_bilinear2d(x, at::IntArrayRef{8, 8}, false);
     }},
    {"Cumulative",
     {4, 3},
     [](at::Tensor x) { return x.cumsum(0) + x.abs().cumprod(1) + x.flip(0).roll(1, 0); }},
    {"ScatterGather",
     {4, 3},
     [](at::Tensor x) {
       auto i = x.argsort(0, false);
       return torch::zeros_like(x).scatter_add(0, i, x) + x.gather(0, i);
     }},
    {"OneHot", {4, 3}, [](at::Tensor x) { return torch::one_hot(x.argmax(1), 3); }},
    {"Foreach",
     {4, 3},
     [](at::Tensor x) {
       std::vector<at::Tensor> all = {x.clone(), x * 2};
       at::_foreach_mul_(all, 3);
       auto sums = at::_foreach_add(all, {x, x});
       return sums[0] + sums[1] + all[0];
     }},
    {"FusedUpdates",
     {4, 3},
     [](at::Tensor x) {
       auto y = x.clone();
       y.addcmul_(x, x, 0.5).addcdiv_(x, x.abs() + 1, -0.1).lerp_(x, 0.25);
       return y;
     }},
    {"UndefinedOutput", {3}, [](at::Tensor) { return at::Tensor(); }},
    {"ArgumentReturned", {3}, [](at::Tensor x) { return x; }},
};

const std::vector<OpCase> kRandom = {
    {"Dropout", {8, 8}, [](at::Tensor x) { return torch::dropout(x, 0.3, true); }},
    {"DropoutBackward",
     {8, 8},
     [](at::Tensor x) {
       auto y = x.clone().requires_grad_();
       return gradient_of(y, torch::dropout(y, 0.3, true).pow(2).sum());
     }},
    {"NativeDropout",
     {8, 8},
     [](at::Tensor x) { return std::get<0>(at::native_dropout(x, 0.3, true)); }},
    {"Randperm", {8}, [](at::Tensor x) { return x.index({torch::randperm(8)}); }},
    {"Rand",
     {8},
     [](at::Tensor x) {
       return x + torch::rand({8}) + torch::randn({8}) + torch::rand_like(x) + torch::randn_like(x);
     }},
    {"Randint",
     {8},
     [](at::Tensor x) {
       return x + torch::randint(10, {8}) + torch::randint(2, 10, {8}) + torch::randint_like(x, 5);
     }},
    {"Bernoulli",
     {8},
     [](at::Tensor x) {
       return torch::bernoulli(x.sigmoid()) + x.clone().uniform_(-1, 1).normal_(0, 2);
     }},
    {"Multinomial", {8}, [](at::Tensor x) { return torch::multinomial(x.softmax(0), 3); }},
    {"Normal", {8}, [](at::Tensor x) { return at::normal(x, 0.5) + at::normal(0.0, 1.0, {8}); }},
    {"RreluNoise",
     {8, 8},
     [](at::Tensor x) {
       auto noise = torch::ones_like(x);
       return torch::rrelu_with_noise(x, noise, 0.1, 0.3, true) + noise;
     }},
    {"RreluBackward",
     {8, 8},
     [](at::Tensor x) {
       auto y = x.clone().requires_grad_();
       return gradient_of(y, torch::rrelu(y, 0.1, 0.3, true).pow(2).sum());
     }},
    {"FeatureAlphaDropout",
     {4, 3, 2},
     [](at::Tensor x) {
       return torch::feature_alpha_dropout(x, 0.5, true) + torch::alpha_dropout(x, 0.5, true);
     }},
};

// x -> x^2 with a hand-written gradient that keeps its input and its output.
struct Square : torch::autograd::Function<Square> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x) {
    auto y = x * x;
    context->save_for_backward({x, y});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    auto saved = context->get_saved_variables();
    return {2 * saved[0] * grads[0] + 0 * saved[1]};
  }
};

// One of the two results may get no gradient.
struct Halves : torch::autograd::Function<Halves> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext*, at::Tensor x) {
    return {x * 1, x * 2};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {(grads[0].defined() ? grads[0] : torch::zeros({4, 3})) +
            (grads[1].defined() ? 2 * grads[1] : torch::zeros({4, 3}))};
  }
};

at::Tensor leaf(const at::Tensor& x) { return x.clone().requires_grad_(); }

const std::vector<OpCase> kBackward = {
    {"Elementwise",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       return gradient_of(y, (y.sigmoid() * y.tanh() + y.relu() * y.pow(3)).sum());
     }},
    {"BackwardInto",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       (y * y).sum().backward();
       return y.grad();
     }},
    {"AccumulatedTwice",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       (y * y).sum().backward();
       y.exp().sum().backward();
       return y.grad();
     }},
    {"AccumulatedInGraph",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto z = y * 2;
       return gradient_of(y,
                          (z * y + z.sin() + z.matmul(y.t()).sum() + y.log1p().nan_to_num()).sum());
     }},
    {"RetainedGraph",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto loss = y.pow(3).sum();
       loss.backward({}, true);
       loss.backward();
       return y.grad();
     }},
    {"Double",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto first = gradient_of(y, y.pow(3).sum(), true);
       return gradient_of(y, (first * first).sum());
     }},
    {"DoubleOfMatmul",
     {3, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto first = gradient_of(y, y.matmul(y).tanh().sum(), true);
       return gradient_of(y, first.norm());
     }},
    {"CustomFunction",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       return gradient_of(y, (Square::apply(y) * 3).sum());
     }},
    {"CustomFunctionUndefinedGradient",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       return gradient_of(y, (Halves::apply(y)[1] * y).sum());
     }},
    {"UndefinedGradient",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto [values, mean] = torch::var_mean(y, 1);
       return gradient_of(y, mean.pow(2).sum());
     }},
    {"UnusedInput",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto z = leaf(x);
       return torch::autograd::grad({y.sum()}, {z}, {}, {}, false, true)[0];
     }},
    {"OfViewsAndInPlace",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto z = y * 1;
       z.select(0, 1).mul_(3);
       z.t().slice(0, 1, 3).add_(y.t().slice(0, 0, 2));
       return gradient_of(y, z.pow(2).sum());
     }},
    {"OfOverwrittenFactor",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto z = y * 1;
       z.mul_(y.sin());
       z.select(0, 1).mul_(y.sum());
       return gradient_of(y, z.pow(2).sum());
     }},
    {"OfActivationsInPlace",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto z = y * 2;
       torch::relu_(z);
       auto w = y + 1;
       w.tanh_();
       auto v = w.mul(1);  // tanh's backward needs its result as it was
       v.clamp_(-1, 0.5);
       return gradient_of(y, (z * v).sum());
     }},
    {"OfPowerInPlace",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto z = y.abs() + 1;
       z.pow_(3).div_(y.exp()).sigmoid_();
       return gradient_of(y, z.sum());
     }},
    {"OfIndexing",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       return gradient_of(y, (y.index({torch::tensor({0, 0, 2})}) * y.index({1})).sum() +
                                 y.index({Slice(), 1}).sum());
     }},
    {"OfIndexPut",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto z = y * 2;
       z = z.index_put({torch::tensor({1, 3})}, y.slice(0, 0, 2));
       return gradient_of(y, z.pow(2).sum());
     }},
    {"OfSelection",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       return gradient_of(y, (std::get<0>(y.max(1)) * std::get<0>(y.sort(0)).sum() +
                              std::get<0>(y.topk(2, 1)).sum())
                                 .sum());
     }},
    {"OfCatAndSplit",
     {4, 4},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto p = y.split(2, 1);
       return gradient_of(y,
                          (torch::cat({p[1], p[0]}, 1) * torch::stack({p[0], p[1]}).sum()).sum());
     }},
    {"OfPooling",
     {1, 2, 8, 8},
     [](at::Tensor x) {
       auto y = leaf(x);
       return gradient_of(y, (torch::max_pool2d(y, 2) + torch::avg_pool2d(y, 2)).pow(2).sum() +
                                 torch::adaptive_avg_pool2d(y, {2, 2}).pow(2).sum());
     }},
    {"OfConvolution",
     {1, 2, 8, 8},
     [](at::Tensor x) {
       auto w = leaf(torch::full({3, 2, 3, 3}, 0.1));
       auto b = leaf(torch::zeros({3}));
       auto loss = torch::conv2d(x, w, b, 1, 1).pow(2).sum();
       auto g = torch::autograd::grad({loss}, {w, b});
       return g[0] + g[1].view({3, 1, 1, 1});
     }},
    {"OfNormalisations",
     {4, 6},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto w = leaf(torch::ones({6}));
       return gradient_of(
           y, (torch::layer_norm(y, {6}, w, {}) * torch::group_norm(y, 2)).pow(3).sum());
     }},
    {"OfEinsum",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       return gradient_of(y, torch::einsum("ij,kj,k->i", {y, y, y.sum(1)}).pow(2).sum());
     }},
    {"OfHooks",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto z = y * 2;
       z.register_hook([](at::Tensor g) { return g * 5; });
       return gradient_of(y, z.pow(2).sum());
     }},
    {"OfCheckpointedMask",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       return gradient_of(y, torch::where(y > 0, y * 2, y.exp()).clamp(-1, 3).sum());
     }},
    {"OfNorm",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       auto g = gradient_of(y, y.pow(2).sum());
       return g * (0.5 / (g.norm() + 1e-6)).clamp_max(1);
     }},
    {"OfSum",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       return gradient_of(y, y.expand({2, 4, 3}).sum(0).mean(1, true).mul(y).sum());
     }},
    {"InNoGrad",
     {4, 3},
     [](at::Tensor x) {
       auto y = leaf(x);
       {
         torch::NoGradGuard off;
         y.mul_(2);
         y.data().sub_(1);
       }
       return gradient_of(y, y.pow(3).sum());
     }},
};

std::string case_name(const ::testing::TestParamInfo<OpCase>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Forward, TraceOps, ::testing::ValuesIn(kForward), case_name);
INSTANTIATE_TEST_SUITE_P(Random, TraceOps, ::testing::ValuesIn(kRandom), case_name);
INSTANTIATE_TEST_SUITE_P(Backward, TraceOps, ::testing::ValuesIn(kBackward), case_name);

}  // namespace
}  // namespace cohort::function
