// SPDX-License-Identifier: Apache-2.0
// Builds every module of torch::nn, for the test that checks the table of docs/modules.md.
#include <torch/torch.h>
#include <torch/version.h>

#include "cohort/function/tracer/cases_for_tests.h"
#include "cohort/function/tracer/module_rows_for_tests.h"

namespace cohort::function {
namespace {

namespace nn = torch::nn;
using Sizes = std::vector<std::int64_t>;
using Inputs = std::function<Tensors(std::uint64_t)>;
using Row = ModuleRow;

struct Step : ModuleStep {
  Step(const std::shared_ptr<nn::Module>& module, Inputs makes_inputs,
       std::function<at::Tensor(const Tensors&)> gives) {
    for (const auto& item : module->named_parameters())
      parameters.emplace_back(item.key(), item.value());
    for (const auto& item : module->named_buffers()) buffers.emplace_back(item.key(), item.value());
    inputs = std::move(makes_inputs);
    value = std::move(gives);
    eval = [module] { module->eval(); };
  }
};

Inputs normals(std::vector<Sizes> all) {
  return [all](std::uint64_t seed) {
    Tensors inputs;
    for (const Sizes& sizes : all) inputs.push_back(normal(sizes, seed + 1000 * inputs.size()));
    return inputs;
  };
}

at::Tensor labels(const Sizes& sizes, std::uint64_t seed, std::int64_t classes) {
  return normal(sizes, seed + 7000).abs().mul(1000).to(torch::kLong).remainder(classes);
}

Inputs with_labels(Sizes sizes, Sizes label_sizes, std::int64_t classes) {
  return [=](std::uint64_t seed) {
    return Tensors{normal(sizes, seed), labels(label_sizes, seed, classes)};
  };
}

// A module of one input.
template <class Holder>
Step layer(Holder module, const Sizes& sizes) {
  return {module.ptr(), normals({sizes}),
          [module](const Tensors& in) mutable { return module->forward(in[0]); }};
}

template <class Holder, class... Arguments>
Row plain(const char* name, const Sizes& sizes, Arguments... arguments) {
  return {name, "", [=] { return layer(Holder(arguments...), sizes); }};
}

// A module without parameters of two inputs: a loss, a distance.
template <class Holder>
Step pair(Holder module, Inputs inputs) {
  return {module.ptr(), std::move(inputs),
          [module](const Tensors& in) mutable { return module->forward(in[0], in[1]); }};
}
template <class Holder>
Step pair(Holder module, const Sizes& sizes = {4, 5}) {
  return pair(module, normals({sizes, sizes}));
}

// A loss against a target that is made from the second input and has no gradient.
template <class Holder>
Step against(Holder module, std::function<at::Tensor(at::Tensor)> target, const Sizes& sizes) {
  return {module.ptr(), normals({sizes, sizes}), [module, target](const Tensors& in) mutable {
            return module->forward(in[0], target(in[1].detach()));
          }};
}
at::Tensor signs(const at::Tensor& x) { return (x > 0).to(torch::kFloat) * 2 - 1; }
at::Tensor zeros_and_ones(const at::Tensor& x) { return (x > 0).to(torch::kFloat); }

template <class Holder, class Value>
Step attention(Holder module, Inputs inputs, Value value) {
  return {module.ptr(), std::move(inputs),
          [module, value](const Tensors& in) mutable { return value(module, in); }};
}

template <class Pool, class Unpool>
Step unpool(Pool pool, Unpool module, const Sizes& sizes) {
  return {module.ptr(), normals({sizes}), [=](const Tensors& in) mutable {
            auto [values, indices] = pool->forward_with_indices(in[0]);
            return module->forward(values, indices);
          }};
}

template <class Holder>
Step cell(Holder module) {
  return {module.ptr(), normals({{3, 4}, {3, 5}}),
          [module](const Tensors& in) mutable { return module->forward(in[0], in[1]); }};
}

template <class Holder>
Step recurrent(Holder module) {
  return {module.ptr(), normals({{3, 2, 4}}),
          [module](const Tensors& in) mutable { return std::get<0>(module->forward(in[0])); }};
}

std::vector<Row> containers() {
  return {
      plain<nn::Sequential>("Sequential", {2, 4}, nn::Linear(4, 3), nn::Tanh()),
      {"ModuleList", "",
       [] {
         nn::ModuleList module(nn::Linear(4, 4), nn::Linear(4, 4));
         return Step{module.ptr(), normals({{2, 4}}), [module](const Tensors& in) mutable {
                       at::Tensor x = in[0];
                       for (auto& one : *module) x = one->as<nn::Linear>()->forward(x).tanh();
                       return x;
                     }};
       }},
      {"ModuleDict", "",
       [] {
         nn::ModuleDict module;
         torch::OrderedDict<std::string, std::shared_ptr<nn::Module>> parts;
         parts.insert("one", nn::Linear(4, 4).ptr());
         module->update(parts);
         return Step{module.ptr(), normals({{2, 4}}), [module](const Tensors& in) mutable {
                       return module["one"]->as<nn::Linear>()->forward(in[0]);
                     }};
       }},
      {"ParameterList", "",
       [] {
         nn::ParameterList module;
         module->append(normal({4}, 77).requires_grad_());
         return Step{module.ptr(), normals({{2, 4}}),
                     [module](const Tensors& in) mutable { return in[0] * (*module)[0]; }};
       }},
      {"ParameterDict", "",
       [] {
         nn::ParameterDict module;
         module->insert("scale", normal({4}, 77).requires_grad_());
         return Step{module.ptr(), normals({{2, 4}}),
                     [module](const Tensors& in) mutable { return in[0] * module["scale"]; }};
       }},
      plain<nn::Functional>("Functional", {2, 4}, [](at::Tensor x) { return x.exp(); }),
      plain<nn::Identity>("Identity", {2, 4}),
      plain<nn::Flatten>("Flatten", {2, 3, 4}),
      plain<nn::Unflatten>("Unflatten", {2, 6}, 1, std::vector<std::int64_t>{2, 3}),
  };
}

std::vector<Row> linear_and_convolution() {
  return {
      plain<nn::Linear>("Linear", {2, 4}, 4, 3),
      {"Bilinear", "",
       [] {
         return pair(nn::Bilinear(4, 5, 3), normals({{2, 4}, {2, 5}}));
       }},
      plain<nn::Conv1d>("Conv1d", {2, 3, 8}, nn::Conv1dOptions(3, 4, 3).padding(1).stride(2)),
      plain<nn::Conv2d>("Conv2d", {2, 4, 6, 6}, nn::Conv2dOptions(4, 4, 3).groups(2).dilation(2)),
      {"Conv2d", "reflected or circular padding",
       [] {
         auto options = nn::Conv2dOptions(2, 2, 3).padding(1).padding_mode(torch::kReflect);
         return layer(nn::Sequential(nn::Conv2d(options),
                                     nn::Conv2d(options.padding_mode(torch::kCircular))),
                      {2, 2, 6, 6});
       }},
      plain<nn::Conv3d>("Conv3d", {1, 2, 4, 4, 4}, 2, 3, 3),
      plain<nn::ConvTranspose1d>("ConvTranspose1d", {2, 3, 8},
                                 nn::ConvTranspose1dOptions(3, 4, 3).stride(2)),
      plain<nn::ConvTranspose2d>("ConvTranspose2d", {2, 3, 5, 5}, 3, 2, 3),
      plain<nn::ConvTranspose3d>("ConvTranspose3d", {1, 2, 3, 3, 3}, 2, 2, 2),
      plain<nn::Fold>("Fold", {1, 8, 9}, nn::FoldOptions({4, 4}, {2, 2})),
      plain<nn::Unfold>("Unfold", {1, 2, 5, 5}, nn::UnfoldOptions(3)),
      plain<nn::PixelShuffle>("PixelShuffle", {1, 4, 3, 3}, 2),
      plain<nn::PixelUnshuffle>("PixelUnshuffle", {1, 1, 4, 4}, 2),
  };
}

std::vector<Row> pooling() {
  return {
      plain<nn::AdaptiveAvgPool1d>("AdaptiveAvgPool1d", {2, 3, 7}, 3),
      plain<nn::AdaptiveAvgPool2d>("AdaptiveAvgPool2d", {2, 3, 7, 7}, 3),
      plain<nn::AdaptiveAvgPool3d>("AdaptiveAvgPool3d", {1, 2, 5, 5, 5}, 2),
      plain<nn::AdaptiveMaxPool1d>("AdaptiveMaxPool1d", {2, 3, 7}, 3),
      plain<nn::AdaptiveMaxPool2d>("AdaptiveMaxPool2d", {2, 3, 7, 7}, 3),
      plain<nn::AdaptiveMaxPool3d>("AdaptiveMaxPool3d", {1, 2, 5, 5, 5}, 2),
      plain<nn::AvgPool1d>("AvgPool1d", {2, 3, 8}, 2),
      plain<nn::AvgPool2d>("AvgPool2d", {2, 3, 6, 6}, 2),
      plain<nn::AvgPool3d>("AvgPool3d", {1, 2, 4, 4, 4}, 2),
      plain<nn::FractionalMaxPool2d>("FractionalMaxPool2d", {1, 2, 8, 8},
                                     nn::FractionalMaxPool2dOptions(2).output_size(3)),
      plain<nn::FractionalMaxPool3d>("FractionalMaxPool3d", {1, 2, 5, 5, 5},
                                     nn::FractionalMaxPool3dOptions(2).output_size(2)),
      plain<nn::LPPool1d>("LPPool1d", {1, 2, 8}, 2, 2),
      plain<nn::LPPool2d>("LPPool2d", {1, 2, 8, 8}, 2, 2),
      plain<nn::MaxPool1d>("MaxPool1d", {2, 3, 8}, 2),
      plain<nn::MaxPool2d>("MaxPool2d", {2, 3, 6, 6}, 2),
      plain<nn::MaxPool3d>("MaxPool3d", {1, 2, 4, 4, 4}, 2),
      {"MaxUnpool1d", "",
       [] {
         return unpool(nn::MaxPool1d(2), nn::MaxUnpool1d(2), {1, 2, 8});
       }},
      {"MaxUnpool2d", "",
       [] {
         return unpool(nn::MaxPool2d(2), nn::MaxUnpool2d(2), {1, 2, 6, 6});
       }},
      {"MaxUnpool3d", "",
       [] {
         return unpool(nn::MaxPool3d(2), nn::MaxUnpool3d(2), {1, 2, 4, 4, 4});
       }},
  };
}

std::vector<Row> padding_and_resampling() {
  auto upsampled = [](auto mode, const Sizes& sizes, const Sizes& size) {
    return [=] {
      auto options = nn::UpsampleOptions().size(size).mode(mode);
      if (!std::is_same_v<decltype(mode), torch::enumtype::kNearest>) options.align_corners(false);
      return layer(nn::Upsample(options), sizes);
    };
  };
  return {
      plain<nn::ConstantPad1d>("ConstantPad1d", {1, 2, 4}, 1, 3.5),
      plain<nn::ConstantPad2d>("ConstantPad2d", {1, 2, 4, 4}, 1, 3.5),
      plain<nn::ConstantPad3d>("ConstantPad3d", {1, 2, 4, 4, 4}, 1, 3.5),
      plain<nn::ReflectionPad1d>("ReflectionPad1d", {1, 2, 4}, 1),
      plain<nn::ReflectionPad2d>("ReflectionPad2d", {1, 2, 4, 4}, 1),
      plain<nn::ReflectionPad3d>("ReflectionPad3d", {1, 2, 4, 4, 4}, 1),
      plain<nn::ReplicationPad1d>("ReplicationPad1d", {1, 2, 4}, 1),
      plain<nn::ReplicationPad2d>("ReplicationPad2d", {1, 2, 4, 4}, 1),
      plain<nn::ReplicationPad3d>("ReplicationPad3d", {1, 2, 4, 4, 4}, 1),
      plain<nn::ZeroPad2d>("ZeroPad2d", {1, 2, 4, 4}, 1),
      {"Upsample", "nearest", upsampled(torch::kNearest, {1, 2, 4, 4}, {7, 7})},
      {"Upsample", "linear", upsampled(torch::kLinear, {1, 2, 4}, {7})},
      {"Upsample", "bilinear", upsampled(torch::kBilinear, {1, 2, 4, 4}, {7, 7})},
      {"Upsample", "bicubic", upsampled(torch::kBicubic, {1, 2, 4, 4}, {7, 7})},
      {"Upsample", "trilinear", upsampled(torch::kTrilinear, {1, 2, 3, 3, 3}, {4, 4, 4})},
  };
}

std::vector<Row> newer() {
#if TORCH_VERSION_MAJOR >= 2
  return {
      plain<nn::ZeroPad1d>("ZeroPad1d", {1, 2, 4}, 1),
      plain<nn::ZeroPad3d>("ZeroPad3d", {1, 2, 4, 4, 4}, 1),
      plain<nn::LPPool3d>("LPPool3d", {1, 2, 4, 4, 4}, 2, 2),
  };
#else
  return {};
#endif
}

std::vector<Row> activations() {
  const Sizes sizes{4, 6};
  return {
      plain<nn::CELU>("CELU", sizes),
      plain<nn::ELU>("ELU", sizes),
      plain<nn::GELU>("GELU", sizes),
      plain<nn::GLU>("GLU", sizes),
      plain<nn::Hardshrink>("Hardshrink", sizes),
      plain<nn::Hardtanh>("Hardtanh", sizes),
      plain<nn::LeakyReLU>("LeakyReLU", sizes),
      plain<nn::LogSigmoid>("LogSigmoid", sizes),
      plain<nn::LogSoftmax>("LogSoftmax", sizes, 1),
      plain<nn::Mish>("Mish", sizes),
      plain<nn::PReLU>("PReLU", sizes, nn::PReLUOptions().num_parameters(6)),
      plain<nn::ReLU>("ReLU", sizes),
      plain<nn::ReLU6>("ReLU6", sizes),
      plain<nn::RReLU>("RReLU", sizes),
      plain<nn::SELU>("SELU", sizes),
      plain<nn::SiLU>("SiLU", sizes),
      plain<nn::Sigmoid>("Sigmoid", sizes),
      plain<nn::Softmax>("Softmax", sizes, 1),
      plain<nn::Softmax2d>("Softmax2d", {2, 3, 2, 2}),
      plain<nn::Softmin>("Softmin", sizes, 1),
      plain<nn::Softplus>("Softplus", sizes),
      plain<nn::Softshrink>("Softshrink", sizes),
      plain<nn::Softsign>("Softsign", sizes),
      plain<nn::Tanh>("Tanh", sizes),
      plain<nn::Tanhshrink>("Tanhshrink", sizes),
      plain<nn::Threshold>("Threshold", sizes, 0.1, 2),
      plain<nn::AlphaDropout>("AlphaDropout", sizes, 0.3),
      plain<nn::Dropout>("Dropout", sizes, 0.3),
      plain<nn::Dropout2d>("Dropout2d", {4, 3, 2, 2}, 0.3),
      plain<nn::Dropout3d>("Dropout3d", {4, 3, 2, 2, 2}, 0.3),
      plain<nn::FeatureAlphaDropout>("FeatureAlphaDropout", {4, 3, 2, 2}, 0.3),
  };
}

std::vector<Row> normalization() {
  auto tracked = [](auto options) { return options.affine(true).track_running_stats(true); };
  return {
      plain<nn::BatchNorm1d>("BatchNorm1d", {4, 3}, 3),
      plain<nn::BatchNorm2d>("BatchNorm2d", {4, 3, 2, 2}, 3),
      plain<nn::BatchNorm3d>("BatchNorm3d", {2, 3, 2, 2, 2}, 3),
      plain<nn::BatchNorm1d>("BatchNorm1d", {4, 3},
                             nn::BatchNorm1dOptions(3).momentum(torch::nullopt))
          .in_use("momentum(torch::nullopt)"),
      plain<nn::BatchNorm1d>("BatchNorm1d", {4, 3},
                             nn::BatchNorm1dOptions(3).track_running_stats(false))
          .in_use("track_running_stats(false)"),
      plain<nn::InstanceNorm1d>("InstanceNorm1d", {2, 3, 4}, tracked(nn::InstanceNorm1dOptions(3))),
      plain<nn::InstanceNorm2d>("InstanceNorm2d", {2, 3, 4, 4},
                                tracked(nn::InstanceNorm2dOptions(3))),
      plain<nn::InstanceNorm3d>("InstanceNorm3d", {2, 3, 2, 2, 2},
                                tracked(nn::InstanceNorm3dOptions(3))),
      plain<nn::GroupNorm>("GroupNorm", {2, 4, 3, 3}, 2, 4),
      plain<nn::LayerNorm>("LayerNorm", {4, 6}, nn::LayerNormOptions({6})),
      plain<nn::LocalResponseNorm>("LocalResponseNorm", {2, 4, 3, 3}, 2),
      plain<nn::CrossMapLRN2d>("CrossMapLRN2d", {2, 4, 3, 3}, 3),
  };
}

std::vector<Row> recurrent_layers() {
  auto packed = [](const Tensors& in, const at::Tensor& lengths) {
    return nn::utils::rnn::pack_padded_sequence(in[0], lengths, false, false);
  };
  return {
      {"RNN", "", [] { return recurrent(nn::RNN(4, 5)); }},
      {"LSTM", "",
       [] { return recurrent(nn::LSTM(nn::LSTMOptions(4, 5).num_layers(2).dropout(0.2))); }},
      {"GRU", "", [] { return recurrent(nn::GRU(nn::GRUOptions(4, 5).bidirectional(true))); }},
      {"GRU", "packed, constant lengths",
       [=] {
         nn::GRU module(4, 5);
         return Step{module.ptr(), normals({{3, 2, 4}}), [=](const Tensors& in) mutable {
                       auto sequence = packed(in, torch::tensor({3, 2}));
                       return std::get<0>(module->forward_with_packed_input(sequence)).data();
                     }};
       }},
      {"GRU", "packed, lengths as an argument",
       [=] {
         nn::GRU module(4, 5);
         Inputs inputs = [](std::uint64_t seed) {
           return Tensors{normal({3, 2, 4}, seed), torch::tensor({3, seed % 2 == 0 ? 2 : 1})};
         };
         return Step(module.ptr(), inputs, [=](const Tensors& in) mutable {
           return std::get<0>(module->forward_with_packed_input(packed(in, in[1]))).data();
         });
       }},
      {"RNNCell", "", [] { return cell(nn::RNNCell(4, 5)); }},
      {"GRUCell", "", [] { return cell(nn::GRUCell(4, 5)); }},
      {"LSTMCell", "",
       [] {
         nn::LSTMCell module(4, 5);
         return Step{module.ptr(), normals({{3, 4}}), [module](const Tensors& in) mutable {
                       return std::get<1>(module->forward(in[0]));
                     }};
       }},
  };
}

Inputs queries_and_keys(std::int64_t keys) { return normals({{3, 2, 8}, {keys, 2, 8}}); }

std::vector<Row> attention_layers() {
  using Decoder = nn::TransformerDecoderLayer;
  auto attend = [](nn::MultiheadAttention& module, const Tensors& in) {
    return std::get<0>(module->forward(in[0], in[1], in[1]));
  };
  auto transform = [](auto& module, const Tensors& in) { return module->forward(in[1], in[0]); };
  return {
      {"MultiheadAttention", "self attention",
       [] {
         nn::MultiheadAttention module(8, 2);
         return Step{module.ptr(), normals({{3, 2, 8}}), [module](const Tensors& in) mutable {
                       return std::get<0>(module->forward(in[0], in[0], in[0]));
                     }};
       }},
      {"MultiheadAttention", "cross attention",
       [=] { return attention(nn::MultiheadAttention(8, 2), queries_and_keys(4), attend); }},
      {"MultiheadAttention", "cross attention of equal lengths",
       [=] { return attention(nn::MultiheadAttention(8, 2), queries_and_keys(3), attend); }},
      plain<nn::TransformerEncoderLayer>(
          "TransformerEncoderLayer", {3, 2, 8},
          nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16)),
      {"TransformerEncoder", "",
       [] {
         nn::TransformerEncoderLayer one(
             nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16));
         return layer(nn::TransformerEncoder(one, 2), {3, 2, 8});
       }},
      {"TransformerDecoderLayer", "",
       [=] {
         return attention(Decoder(nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(16)),
                          queries_and_keys(3), transform);
       }},
      {"TransformerDecoder", "",
       [=] {
         Decoder one(nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(16));
         return attention(nn::TransformerDecoder(one, 2), queries_and_keys(3), transform);
       }},
      {"Transformer", "",
       [=] {
         auto options = nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(16);
         return attention(nn::Transformer(options), queries_and_keys(3), transform);
       }},
  };
}

Step bag(nn::EmbeddingBagOptions options, bool has_offsets) {
  nn::EmbeddingBag module(options);
  Inputs inputs = [=](std::uint64_t seed) {
    at::Tensor ids = labels({5, 2}, seed, 7);
    if (!has_offsets) return Tensors{ids};
    at::Tensor second = labels({}, seed + 1, 9);
    return Tensors{ids.flatten(), torch::stack({torch::zeros({}, torch::kLong), second})};
  };
  return {module.ptr(), inputs, [=](const Tensors& in) mutable {
            return has_offsets ? module->forward(in[0], in[1]) : module->forward(in[0]);
          }};
}

std::vector<Row> embeddings() {
  const nn::EmbeddingBagOptions options(7, 3);
  auto by = [=](auto mode, bool has_offsets) {
    return [=] { return bag(nn::EmbeddingBagOptions(options).mode(mode), has_offsets); };
  };
  auto ids = [](std::uint64_t seed) { return Tensors{labels({5, 2}, seed, 7)}; };
  auto embedding = [=](nn::EmbeddingOptions with) {
    return [=] {
      nn::Embedding module(with);
      return Step{module.ptr(), ids,
                  [module](const Tensors& in) mutable { return module->forward(in[0]); }};
    };
  };
  return {
      {"Embedding", "", embedding({7, 3})},
      {"Embedding", "padding_idx", embedding(nn::EmbeddingOptions(7, 3).padding_idx(2))},
      {"Embedding", "max_norm", embedding(nn::EmbeddingOptions(7, 3).max_norm(1.0))},
      {"EmbeddingBag", "mean", by(torch::kMean, false)},
      {"EmbeddingBag", "sum", by(torch::kSum, false)},
      {"EmbeddingBag", "max", by(torch::kMax, false)},
      {"EmbeddingBag", "mean, offsets", by(torch::kMean, true)},
      {"EmbeddingBag", "sum, offsets", by(torch::kSum, true)},
      {"EmbeddingBag", "max, offsets", by(torch::kMax, true)},
      {"EmbeddingBag", "sum, padding_idx",
       [=] {
         return bag(nn::EmbeddingBagOptions(options).mode(torch::kSum).padding_idx(2), false);
       }},
      {"EmbeddingBag", "max_norm",
       [=] { return bag(nn::EmbeddingBagOptions(options).max_norm(1.0), false); }},
      {"EmbeddingBag", "sum, per_sample_weights",
       [=] {
         nn::EmbeddingBag module(nn::EmbeddingBagOptions(options).mode(torch::kSum));
         Inputs inputs = [=](std::uint64_t seed) {
           return Tensors{labels({5, 2}, seed, 7), normal({5, 2}, seed)};
         };
         return Step{module.ptr(), inputs,
                     [=](const Tensors& in) mutable { return module->forward(in[0], {}, in[1]); }};
       }},
  };
}

Step adaptive_softmax(bool is_by_log_prob) {
  nn::AdaptiveLogSoftmaxWithLoss module(nn::AdaptiveLogSoftmaxWithLossOptions(16, 6, {2, 4}));
  return {module.ptr(), with_labels({5, 16}, {5}, 6), [=](const Tensors& in) mutable -> at::Tensor {
            if (is_by_log_prob) return torch::nll_loss(module->log_prob(in[0]), in[1]);
            return torch::Tensor(module->forward(in[0], in[1]).output.mean());
          }};
}

std::vector<Row> losses_of_values() {
  const Sizes sizes{4, 5};
  return {
      {"L1Loss", "", [=] { return pair(nn::L1Loss()); }},
      {"MSELoss", "", [=] { return pair(nn::MSELoss()); }},
      {"SmoothL1Loss", "", [=] { return pair(nn::SmoothL1Loss()); }},
      {"HuberLoss", "", [=] { return pair(nn::HuberLoss()); }},
      {"KLDivLoss", "",
       [=] {
         return against(
             nn::KLDivLoss(), [](at::Tensor x) { return x.softmax(1); }, sizes);
       }},
      {"BCELoss", "",
       [=] {
         nn::BCELoss module;
         return Step{module.ptr(), normals({sizes, sizes}), [module](const Tensors& in) mutable {
                       return module->forward(in[0].sigmoid(), zeros_and_ones(in[1]));
                     }};
       }},
      {"BCEWithLogitsLoss", "",
       [=] { return against(nn::BCEWithLogitsLoss(), zeros_and_ones, sizes); }},
      {"HingeEmbeddingLoss", "", [=] { return against(nn::HingeEmbeddingLoss(), signs, sizes); }},
      {"SoftMarginLoss", "", [=] { return against(nn::SoftMarginLoss(), signs, sizes); }},
      {"MultiLabelSoftMarginLoss", "",
       [=] { return against(nn::MultiLabelSoftMarginLoss(), zeros_and_ones, sizes); }},
      {"PoissonNLLLoss", "",
       [=] {
         return against(
             nn::PoissonNLLLoss(), [](at::Tensor x) { return x.abs(); }, sizes);
       }},
  };
}

std::vector<Row> losses_of_classes() {
  const Sizes sizes{4, 5};
  const Inputs classes = with_labels(sizes, {4}, 5);
  auto cross_entropy = [=](nn::CrossEntropyLossOptions options) {
    return pair(nn::CrossEntropyLoss(options), classes);
  };
  auto weights = [] { return torch::linspace(0.5, 1.5, 5); };
  auto smoothing = [] { return nn::CrossEntropyLossOptions().label_smoothing(0.1); };
  return {
      {"MultiMarginLoss", "", [=] { return pair(nn::MultiMarginLoss(), classes); }},
      {"MultiLabelMarginLoss", "",
       [=] {
         return pair(nn::MultiLabelMarginLoss(), [=](std::uint64_t seed) {
           return Tensors{normal(sizes, seed), normal(sizes, seed + 9).argsort(-1, false).sub(1)};
         });
       }},
      {"NLLLoss", "", [=] { return pair(nn::NLLLoss(), classes); }},
      {"CrossEntropyLoss", "", [=] { return cross_entropy({}); }},
      {"CrossEntropyLoss", "label_smoothing", [=] { return cross_entropy(smoothing()); }},
      {"CrossEntropyLoss", "label_smoothing, weight",
       [=] { return cross_entropy(smoothing().weight(weights())); }},
      {"CrossEntropyLoss", "label_smoothing, ignore_index",
       [=] { return cross_entropy(smoothing().ignore_index(2)); }},
      {"CTCLoss", "lengths known when the step is traced",
       [=] {
         nn::CTCLoss module;
         return Step{
             module.ptr(), normals({{6, 1, 5}}), [module](const Tensors& in) mutable {
               return torch::ctc_loss(in[0].log_softmax(2), torch::tensor({{1, 2}}), {6}, {2});
             }};
       }},
      {"CTCLoss", "lengths as arguments",
       [=] {
         nn::CTCLoss module;
         Inputs inputs = [](std::uint64_t seed) {
           return Tensors{normal({6, 1, 5}, seed), torch::tensor({6}), torch::tensor({2})};
         };
         return Step(module.ptr(), inputs, [=](const Tensors& in) mutable {
           return module->forward(in[0].log_softmax(2), torch::tensor({{1, 2}}), in[1], in[2]);
         });
       }},
  };
}

std::vector<Row> losses_of_pairs() {
  const Sizes sizes{4, 5};
  return {
      {"CosineEmbeddingLoss", "",
       [=] {
         nn::CosineEmbeddingLoss module;
         return Step{module.ptr(), normals({sizes, sizes, {4}}), [=](const Tensors& in) mutable {
                       return module->forward(in[0], in[1], signs(in[2].detach()));
                     }};
       }},
      {"MarginRankingLoss", "",
       [=] {
         nn::MarginRankingLoss module;
         return Step{module.ptr(), normals({{4}, {4}, {4}}), [=](const Tensors& in) mutable {
                       return module->forward(in[0], in[1], signs(in[2].detach()));
                     }};
       }},
      {"TripletMarginLoss", "",
       [=] {
         nn::TripletMarginLoss module;
         return Step{module.ptr(), normals({sizes, sizes, sizes}), [=](const Tensors& in) mutable {
                       return module->forward(in[0], in[1], in[2]);
                     }};
       }},
      {"TripletMarginWithDistanceLoss", "",
       [=] {
         nn::TripletMarginWithDistanceLoss module;
         return Step{module.ptr(), normals({sizes, sizes, sizes}), [=](const Tensors& in) mutable {
                       return module->forward(in[0], in[1], in[2]);
                     }};
       }},
      {"CosineSimilarity", "", [=] { return pair(nn::CosineSimilarity()); }},
      {"PairwiseDistance", "", [=] { return pair(nn::PairwiseDistance()); }},
      {"AdaptiveLogSoftmaxWithLoss", "", [] { return adaptive_softmax(false); }},
      {"AdaptiveLogSoftmaxWithLoss", "log_prob", [] { return adaptive_softmax(true); }},
  };
}

}  // namespace

std::vector<ModuleRow> module_rows() {
  std::vector<Row> rows;
  for (const auto& some :
       {containers(), linear_and_convolution(), pooling(), padding_and_resampling(), newer(),
        activations(), normalization(), recurrent_layers(), attention_layers(), embeddings(),
        losses_of_values(), losses_of_classes(), losses_of_pairs()}) {
    rows.insert(rows.end(), some.begin(), some.end());
  }
  return rows;
}

}  // namespace cohort::function
