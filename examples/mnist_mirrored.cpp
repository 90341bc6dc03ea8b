// SPDX-License-Identifier: Apache-2.0
// Trains an ordinary torch::nn module on MNIST with replicas in one process, which split each batch
// and sum their gradients: mnist_mirrored --replicas 2 --data-dir DIR
#include <cohort/cohort.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace {

std::map<std::string, std::string> options = {
    {"--replicas", "2"}, {"--data-dir", "data"}, {"--epochs", "4"}, {"--batch", "64"}};

std::int64_t number(const std::string& name) {
  const std::string& text = options.at(name);
  COHORT_CHECK(!text.empty() && text.size() < 10 &&
                   text.find_first_not_of("0123456789") == std::string::npos && text != "0",
               cohort::ErrorCode::invalid_argument, "expected a positive number for ", name,
               ", got '", text, "'");
  return std::stoll(text);
}

void read_options(const cohort::Arguments& arguments) {
  for (std::size_t i = 0; i < arguments.values.size(); i += 2) {
    const std::string& name = arguments.values[i];
    COHORT_CHECK(options.contains(name) && i + 1 < arguments.values.size(),
                 cohort::ErrorCode::invalid_argument,
                 "expected --replicas N, --data-dir DIR, --epochs N or --batch N, got '", name,
                 "'");
    options[name] = arguments.values[i + 1];
  }
}

cohort::Dataset images(const std::string& part) {
  const std::string stem = options.at("--data-dir") + "/" + part;
  return cohort::Dataset::idx(
      {.images = stem + "-images-idx3-ubyte", .labels = stem + "-labels-idx1-ubyte"});
}

// Converts a batch: images to float32[N, pixels] in [0, 1], labels to int64 class indices.
std::tuple<at::Tensor, at::Tensor> scale(at::Tensor image, at::Tensor label) {
  return {image.to(torch::kFloat).div(255).flatten(1), label.to(torch::kLong)};
}

double accuracy(torch::nn::Sequential model, const cohort::Dataset& test) {
  const torch::NoGradGuard no_grad;
  model->eval();
  std::int64_t right = 0;
  for (auto it = test.batch(1000).map(scale).iterator(); auto element = it.try_next();) {
    const at::Tensor guess = model->forward(element->items()[0].tensor()).argmax(1);
    right += guess.eq(element->items()[1].tensor()).sum().item<std::int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(test.cardinality());
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments& arguments) {
    read_options(arguments);
    std::vector<std::string> devices;
    for (std::int64_t i = 0; i < number("--replicas"); ++i)
      devices.push_back("CPU:" + std::to_string(i));
    cohort::MirroredStrategy strategy(devices);
    const cohort::Dataset train = images("train"), test = images("t10k");
    const auto sizes = *train.element_spec().fields[0].sizes;
    const auto model = strategy.replicate([pixels = sizes[0] * sizes[1]] {
      using namespace torch::nn;
      return Sequential(Linear(pixels, 128), ReLU(), Linear(128, 10));
    });
    const cohort::SGD optimizer(model.parameters(), {.learning_rate = 0.05, .momentum = 0.9});
    const cohort::DistributedDataset input = strategy.distribute_dataset(
        train.shuffle(60'000, {.seed = 1}).batch(number("--batch")).map(scale).prefetch(2));
    for (std::int64_t epoch = 1; epoch <= number("--epochs"); ++epoch) {
      double loss = 0;
      for (const auto& batch : input) {
        const auto losses = strategy.run(
            [&](const at::Tensor& image, const at::Tensor& label) {
              const at::Tensor each =
                  torch::cross_entropy_loss(model->forward(image), label, {}, at::Reduction::None);
              const at::Tensor mean = cohort::average_loss(each);
              optimizer.minimize(mean);  // the gradients are summed over the replicas
              return mean.detach();
            },
            batch);
        loss = strategy.reduce(cohort::ReduceOp::sum, losses).item<double>();
      }
      std::printf("epoch %lld: loss %.4f, test accuracy %.4f\n", static_cast<long long>(epoch),
                  loss, accuracy(model.snapshot(), test));
    }
    return 0;
  });
}
