// SPDX-License-Identifier: Apache-2.0
// Ordinary modules of many kinds on several replicas give the numbers of the same parts that run
// one after the other in plain LibTorch, with the random numbers of the replicas.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cohort/core/random.h"
#include "cohort/data/dataset.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/cpu_devices.h"

namespace cohort {
namespace {

namespace nn = torch::nn;
using Sizes = std::vector<std::int64_t>;

constexpr int kSteps = 200;
constexpr double kRate = 0.05;
constexpr std::int64_t kRows = 12, kWords = 10, kLength = 6, kClasses = 3;

// Rows of words, and a class for each row.
struct Batch {
  explicit Batch(int step) {
    torch::manual_seed(static_cast<std::uint64_t>(step) * 2 + 1);
    words = torch::randint(kWords, {kRows, kLength});
    classes = words.sum(1).remainder(kClasses);
  }
  at::Tensor words, classes;
};

// The last layer of each module, and the sum of the losses of its rows.
struct Classifier : nn::Module {
  virtual at::Tensor features(const at::Tensor& words) = 0;
  at::Tensor losses(const at::Tensor& words, const at::Tensor& classes) {
    return torch::cross_entropy_loss(last->forward(features(words)), classes, {},
                                     at::Reduction::None);
  }
  void end_with(std::int64_t size) { last = register_module("last", nn::Linear(size, kClasses)); }
  static at::Tensor one_hot(const at::Tensor& words) {
    return torch::one_hot(words, kWords).to(torch::kDouble);
  }
  nn::Linear last{nullptr};
};

struct Mlp : Classifier {
  Mlp() { end_with(16); }
  at::Tensor features(const at::Tensor& words) override {
    return first->forward(one_hot(words).flatten(1)).tanh();
  }
  nn::Linear first{register_module("first", nn::Linear(kLength* kWords, 16))};
};

struct Conv : Classifier {
  Conv() { end_with(32); }
  at::Tensor features(const at::Tensor& words) override {
    return torch::max_pool2d(conv->forward(one_hot(words).unsqueeze(1)).relu(), 2).flatten(1);
  }
  nn::Conv2d conv{register_module("conv", nn::Conv2d(nn::Conv2dOptions(1, 4, 3)))};
};

struct Norm : Classifier {
  Norm() { end_with(16); }
  at::Tensor features(const at::Tensor& words) override {
    return norm->forward(first->forward(one_hot(words).flatten(1))).relu();
  }
  nn::Linear first{register_module("first", nn::Linear(kLength* kWords, 16))};
  nn::BatchNorm1d norm{register_module("norm", nn::BatchNorm1d(16))};
};

struct Drop : Classifier {
  Drop() { end_with(16); }
  at::Tensor features(const at::Tensor& words) override {
    const at::Tensor hidden = first->forward(one_hot(words).flatten(1)).tanh();
    return drop->forward(hidden) + 0.01 * torch::randn_like(hidden);
  }
  nn::Linear first{register_module("first", nn::Linear(kLength* kWords, 16))};
  nn::Dropout drop{register_module("drop", nn::Dropout(0.3))};
};

template <bool is_sparse>
struct Words : Classifier {
  Words() { end_with(8); }
  at::Tensor features(const at::Tensor& words) override {
    return embedding->forward(words).mean(1);
  }
  nn::Embedding embedding{register_module(
      "embedding", nn::Embedding(nn::EmbeddingOptions(kWords, 8).sparse(is_sparse)))};
};

struct Lstm : Classifier {
  Lstm() { end_with(8); }
  at::Tensor features(const at::Tensor& words) override {
    return std::get<0>(lstm->forward(embedding->forward(words))).select(1, kLength - 1);
  }
  nn::Embedding embedding{register_module("embedding", nn::Embedding(kWords, 8))};
  nn::LSTM lstm{register_module("lstm", nn::LSTM(nn::LSTMOptions(8, 8).batch_first(true)))};
};

struct Transformer : Classifier {
  Transformer() { end_with(8); }
  at::Tensor features(const at::Tensor& words) override {
    return layer->forward(embedding->forward(words).transpose(0, 1)).mean(0);
  }
  nn::Embedding embedding{register_module("embedding", nn::Embedding(kWords, 8))};
  nn::TransformerEncoderLayer layer{register_module(
      "layer", nn::TransformerEncoderLayer(
                   nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.1)))};
};

template <class Module>
std::shared_ptr<Module> make() {
  auto module = std::make_shared<Module>();
  module->to(torch::kDouble);
  return module;
}

using Values = std::vector<at::Tensor>;

Values parameters_of(const nn::Module& module) {
  Values values;
  for (const at::Tensor& parameter : module.parameters())
    values.push_back(parameter.detach().clone());
  return values;
}

// The parts of each batch, one after the other, in a module for each. Returns the parameters, and
// at last the mean of the floating-point buffers.
template <class Module>
Values trained_in_sequence(const Sizes& sizes) {
  std::vector<std::shared_ptr<Module>> modules;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    torch::manual_seed(0);  // as replicate() does
    modules.push_back(make<Module>());
  }
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch(step);
    const auto words = batch.words.split_with_sizes(sizes);
    const auto classes = batch.classes.split_with_sizes(sizes);
    torch::manual_seed(static_cast<std::uint64_t>(step));
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::uint64_t base = at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
    for (std::size_t r = 0; r < sizes.size(); ++r) {
      torch::manual_seed(mix_seed(base, r));
      (modules[r]->losses(words[r], classes[r]).sum() / kRows).backward();
    }
    const torch::NoGradGuard no_grad;
    const std::size_t count = modules[0]->parameters().size();
    for (std::size_t i = 0; i < count; ++i) {
      at::Tensor sum;
      for (const auto& module : modules) {
        at::Tensor& gradient = module->parameters()[i].mutable_grad();
        sum = sum.defined() ? sum + gradient : gradient.clone();
      }
      for (const auto& module : modules) {
        module->parameters()[i].sub_(sum.to_dense() * kRate);
        module->parameters()[i].mutable_grad().reset();
      }
    }
  }
  Values values = parameters_of(*modules[0]);
  for (std::size_t i = 0; i < modules[0]->buffers().size(); ++i) {
    at::Tensor sum = torch::zeros({}, torch::kDouble);
    for (const auto& module : modules) sum = sum + module->buffers()[i];
    if (modules[0]->buffers()[i].is_floating_point())
      values.push_back(sum / static_cast<double>(modules.size()));
  }
  return values;
}

template <class Module>
Values trained_on_replicas(const Sizes& sizes) {
  MirroredStrategy strategy(testing::cpu_devices(static_cast<int>(sizes.size())));
  torch::manual_seed(0);
  const auto model = strategy.replicate([] { return make<Module>(); });
  const SGD sgd(model.parameters(), {.learning_rate = kRate});
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch(step);
    torch::manual_seed(static_cast<std::uint64_t>(step));
    strategy.run(
        [&](const at::Tensor& words, const at::Tensor& classes) {
          sgd.minimize(average_loss(model->losses(words, classes)));
        },
        PerReplica<at::Tensor>(batch.words.split_with_sizes(sizes)),
        PerReplica<at::Tensor>(batch.classes.split_with_sizes(sizes)));
  }
  const auto snapshot = model.snapshot();
  Values values = parameters_of(*snapshot);
  for (const at::Tensor& buffer : snapshot->buffers())
    if (buffer.is_floating_point()) values.push_back(buffer.detach());
  return values;
}

template <class Module>
struct ReplicaTraining : ::testing::Test {};
using Modules =
    ::testing::Types<Mlp, Conv, Norm, Drop, Words<false>, Words<true>, Lstm, Transformer>;
TYPED_TEST_SUITE(ReplicaTraining, Modules);

TYPED_TEST(ReplicaTraining, HasTheNumbersOfItsPartsInSequence) {
  for (const Sizes& sizes : {Sizes{6, 6}, Sizes{2, 7, 3}}) {
    const Values expected = trained_in_sequence<TypeParam>(sizes);
    const Values got = trained_on_replicas<TypeParam>(sizes);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-9, 1e-9))
          << sizes.size() << " replicas, tensor " << i << ": differs by "
          << (got[i] - expected[i]).abs().max().template item<double>();
    }
  }
}

// The digits of the examples, in global batches of 50.
Dataset digits() {
  const std::string stem = std::string(COHORT_SOURCE_DIR) + "/examples/data/digits/train";
  return Dataset::idx(
             {.images = stem + "-images-idx3-ubyte", .labels = stem + "-labels-idx1-ubyte"})
      .shuffle(2000, {.seed = 3})
      .repeat()
      .batch(50)
      .map([](at::Tensor image, at::Tensor label) -> std::tuple<at::Tensor, at::Tensor> {
        return {image.to(torch::kFloat).div(255).flatten(1), label.to(torch::kLong)};
      });
}

nn::Sequential digits_net(std::int64_t pixels) {
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(pixels, 32), nn::ReLU(), nn::Linear(32, 10));
}

// One process, with whole batches and LibTorch alone.
Values trained_alone(std::int64_t pixels) {
  nn::Sequential net = digits_net(pixels);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto batches = digits().iterator();
  for (int step = 0; step < kSteps; ++step) {
    const auto [images, labels] = batches.next<at::Tensor, at::Tensor>();
    sgd.zero_grad();
    torch::cross_entropy_loss(net->forward(images), labels).backward();
    sgd.step();
  }
  return parameters_of(*net);
}

// 3 replicas have uneven parts of 50 rows.
TEST(ReplicaTrainingOfDigits, IsThatOfOneProcess) {
  auto first = digits().iterator();
  const std::int64_t pixels = std::get<0>(first.next<at::Tensor, at::Tensor>()).size(1);
  const Values expected = trained_alone(pixels);
  for (const int replicas : {1, 2, 3, 4}) {
    MirroredStrategy strategy(testing::cpu_devices(replicas));
    const auto model = strategy.replicate([&] { return digits_net(pixels); });
    const SGD sgd(model.parameters(), {.learning_rate = 0.05, .momentum = 0.9});
    auto input = strategy.distribute_dataset(digits());
    auto batches = input.iterator();
    for (int step = 0; step < kSteps; ++step) {
      strategy.run(
          [&](const at::Tensor& x, const at::Tensor& y) {
            sgd.minimize(average_loss(
                torch::cross_entropy_loss(model->forward(x), y, {}, at::Reduction::None)));
          },
          batches.get_next());
    }
    const Values got = parameters_of(*model.snapshot());
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_LT((got[i] - expected[i]).abs().max().item<float>(), 1e-5F) << replicas << ", " << i;
  }
}

}  // namespace
}  // namespace cohort
