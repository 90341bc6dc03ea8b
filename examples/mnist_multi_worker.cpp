// SPDX-License-Identifier: Apache-2.0
// Trains an ordinary torch::nn module on MNIST with workers that split each batch and sum their
// gradients: cohort launch --workers 2 --ps 0 -- mnist_multi_worker --data-dir DIR
#include <cohort/cohort.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>

namespace {

using enum cohort::ErrorCode;
std::map<std::string, std::string> options = {{"--data-dir", "data"}, {"--epochs", "4"}};

std::int64_t epochs_of(const cohort::Arguments& arguments) {
  for (std::size_t i = 0; i < arguments.values.size(); i += 2) {
    const std::string& name = arguments.values[i];
    COHORT_CHECK(options.contains(name) && i + 1 < arguments.values.size(), invalid_argument,
                 "expected --data-dir DIR or --epochs N, got '", name, "'");
    options[name] = arguments.values[i + 1];
  }
  const std::string& epochs = options["--epochs"];
  COHORT_CHECK(epochs.size() - 1 < 9 && epochs.find_first_not_of("0123456789") == epochs.npos,
               invalid_argument, "expected 1 to 9 digits for --epochs, got '", epochs, "'");
  return std::stoll(epochs);
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
    const std::int64_t epochs = epochs_of(arguments);
    const cohort::Dataset train = images("train"), test = images("t10k");
    cohort::MultiWorkerMirroredStrategy strategy;
    const auto sizes = *train.element_spec().fields[0].sizes;
    const auto model = strategy.replicate([pixels = sizes[0] * sizes[1]] {
      using namespace torch::nn;
      return Sequential(Linear(pixels, 128), ReLU(), Linear(128, 10));
    });
    const cohort::SGD optimizer(model.parameters(), {.learning_rate = 0.05, .momentum = 0.9});
    // A worker that starts again gets this variable and the weights from the others.
    const cohort::Variable epochs_done =
        strategy.variable("epochs_done", torch::zeros({}, torch::kLong), {.is_trainable = false});
    const auto epoch = [&] { return epochs_done.read().item<std::int64_t>(); };
    const auto step = [&](const at::Tensor& image, const at::Tensor& label) {
      const at::Tensor out = model->forward(image);
      const at::Tensor each = torch::cross_entropy_loss(out, label, {}, at::Reduction::None);
      optimizer.minimize(cohort::average_loss(each));  // sums the gradients of all workers
    };
    // Each pass over it has another order, also where a worker starts again.
    const auto input = strategy.distribute_dataset(
        train.shuffle(60'000, {.seed = 1}).batch(64).map(scale).prefetch(2));
    cohort::ProgressBar progress({.steps = epochs, .is_visible = false});
    const auto start = std::chrono::steady_clock::now();
    const cohort::ClusterSpec cluster = strategy.cluster_resolver()->cluster_spec();
    const std::int64_t all_workers = cluster ? cluster.num_tasks("worker") : 1;
    bool must_rebuild = false;
    while (epoch() < epochs) {
      progress.show(epoch());
      try {
        if (must_rebuild) strategy.rebuild();
        must_rebuild = false;
        for (const auto& batch : input) strategy.run(step, batch);
        epochs_done.assign_add(1);
        must_rebuild = strategy.num_workers() < all_workers;  // takes in who has come back
      } catch (const cohort::Error& error) {
        if (!cohort::is_task_loss(error)) throw;
        std::fprintf(stderr, "%s\n", error.what());
        must_rebuild = true;
      }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const auto trained = model.snapshot();
    if (strategy.worker() == 0)
      std::printf("test accuracy %.4f after %.1f s\n", accuracy(trained, test), took.count());
    return 0;
  });
}
