// SPDX-License-Identifier: Apache-2.0
// Predicts whether a review is good, from sentences of any length, with parameter servers. The
// pipeline runs on the workers: a vocabulary file maps words to numbers, and a C++ function crops
// sentences of any length.
//
//   cohort launch --workers 2 --ps 1 --data examples/data/reviews -- text examples/data/reviews
#include <cohort/cohort.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <tuple>

namespace {

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kWordsMax = 24;
constexpr int kEpochs = 8;

cohort::data::LookupOptions vocabulary(const std::string& folder) {
  return {.file = folder + "/vocabulary.txt", .num_oov_indices = 1, .mask_token = ""};
}

// A convolution over pairs of neighbouring words ("not good"), then the maximum over all pairs.
struct ReviewNetImpl : torch::nn::Module {
  explicit ReviewNetImpl(std::int64_t words)
      : embedding(register_module("embedding", torch::nn::Embedding(words, 16))),
        pairs(register_module("pairs", torch::nn::Conv1d(16, 32, 2))),
        out(register_module("out", torch::nn::Linear(32, 1))) {}
  // int64[batch, words], padded with 0, to float32[batch].
  at::Tensor forward(const at::Tensor& words) {
    const at::Tensor x = embedding->forward(words) * words.ne(0).unsqueeze(2);
    return out->forward(torch::relu(pairs->forward(x.transpose(1, 2))).amax(2)).squeeze(1);
  }
  torch::nn::Embedding embedding;
  torch::nn::Conv1d pairs;
  torch::nn::Linear out;
};
TORCH_MODULE(ReviewNet);

// Keeps the last kWordsMax words of a review; called per review, before padding.
std::tuple<at::Tensor, at::Tensor> crop(at::Tensor words, at::Tensor is_good) {
  const std::int64_t length = std::min(words.size(0), kWordsMax);
  return {words.narrow(0, words.size(0) - length, length), is_good};
}

// Elements: (int64[batch, kWordsMax], float32[batch]).
cohort::Dataset reviews(const std::string& folder, const std::string& part,
                        const cohort::InputContext* input) {
  cohort::Dataset rows = cohort::Dataset::csv(
      cohort::StringTensor(folder + "/" + part + ".csv"),
      {.columns = {{cohort::kString}, {at::ScalarType::Float}}, .header = true});
  if (input != nullptr) rows = rows.shard(*input).shuffle(1000, {.seed = 1});
  return rows.map(cohort::data::lower(0))
      .map(cohort::data::split(0))
      .map(cohort::data::lookup(0, vocabulary(folder)))
      .map(crop)
      .padded_batch(kBatch, {.padded_shapes = cohort::Nest::tuple(
                                 {cohort::Nest::list({kWordsMax}), cohort::Nest::list({})})})
      .prefetch(2);
}

double accuracy(ReviewNet model, const cohort::Dataset& data) {
  model->eval();
  const torch::NoGradGuard no_grad;
  double right = 0, rows = 0;
  for (auto it = data.iterator(); auto element = it.try_next();) {
    const at::Tensor is_good = element->items()[1].tensor();
    const at::Tensor logits = model->forward(element->items()[0].tensor());
    right += logits.gt(0).eq(is_good.gt(0.5)).sum().item<double>();
    rows += static_cast<double>(is_good.size(0));
  }
  return right / rows;
}

int train(const std::string& folder) {
  const auto resolver = cohort::ClusterResolver::from_environment();
  if (resolver->is_server()) return cohort::Server(*resolver).join();
  cohort::ParameterServerStrategy strategy(*resolver, {.cluster = {.seed = 1}});
  cohort::ClusterCoordinator coordinator(strategy);
  const std::int64_t words = cohort::data::vocabulary_size(vocabulary(folder));
  auto model = strategy.replicate([words] { return ReviewNet(words); });
  const cohort::CosineDecay rate({.initial_learning_rate = 0.01, .decay_steps = kEpochs * 25});
  cohort::Adam optimizer(model.parameters(), {.learning_rate = rate});
  auto data = coordinator.create_per_worker_dataset(
      [&](const cohort::InputContext& input) { return reviews(folder, "train", &input); });
  cohort::Function step([&](cohort::Iterator& it) {
    auto [words_in, is_good] = it.next<at::Tensor, at::Tensor>();
    auto loss = torch::binary_cross_entropy_with_logits(model->forward(words_in), is_good);
    optimizer.minimize(loss);
    return loss;
  });
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const auto result = coordinator.run_epoch(step, data);
    std::printf("epoch %d: loss %.3f of %llu reviews\n", epoch, result.mean.tensor().item<double>(),
                static_cast<unsigned long long>(result.examples));
  }
  std::printf("test accuracy %.4f\n", accuracy(model.snapshot(), reviews(folder, "test", nullptr)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments& arguments) {
    COHORT_CHECK(arguments.values.size() == 1, cohort::ErrorCode::invalid_argument,
                 "usage: text FOLDER, with train.csv, test.csv and vocabulary.txt");
    return train(arguments.values[0]);
  });
}
