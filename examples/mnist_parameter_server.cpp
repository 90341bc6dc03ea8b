// SPDX-License-Identifier: Apache-2.0
// Trains a network on MNIST with parameter servers. The same program runs in every task of the
// cluster that TF_CONFIG describes; `cohort launch --workers 2 --ps 2 -- mnist_parameter_server`
// starts five of them.
#include <cohort/cohort.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace {

// --model mlp|cnn --data mnist|digits --data-dir DIR --epochs N --batch N --seed N
struct Options {
  std::map<std::string, std::string> values = {{"--model", "mlp"},     {"--data", "mnist"},
                                               {"--data-dir", "data"}, {"--epochs", "8"},
                                               {"--batch", "64"},      {"--seed", "1"}};

  explicit Options(const cohort::Arguments& arguments) {
    for (std::size_t i = 0; i < arguments.values.size(); i += 2) {
      const std::string& name = arguments.values[i];
      COHORT_CHECK(values.contains(name) && i + 1 < arguments.values.size(),
                   cohort::ErrorCode::invalid_argument,
                   "expected --model mlp|cnn, --data mnist|digits, --data-dir DIR, --epochs N, "
                   "--batch N or --seed N, each with a value, got '",
                   name, "'");
      values[name] = arguments.values[i + 1];
    }
    one_of("--model", "mlp", "cnn");
    one_of("--data", "mnist", "digits");
    for (const char* name : {"--epochs", "--batch"}) {
      COHORT_CHECK(number(name) > 0, cohort::ErrorCode::invalid_argument, "expected ", name,
                   " > 0, got ", number(name));
    }
  }
  void one_of(const std::string& name, const std::string& a, const std::string& b) const {
    COHORT_CHECK(values.at(name) == a || values.at(name) == b, cohort::ErrorCode::invalid_argument,
                 "expected ", name, " to be ", a, " or ", b, ", got '", values.at(name), "'");
  }
  std::int64_t number(const std::string& name) const {
    const std::string& text = values.at(name);
    const bool is_number = text.find_first_not_of("0123456789") == std::string::npos;
    COHORT_CHECK(is_number && !text.empty() && text.size() < 10,
                 cohort::ErrorCode::invalid_argument, "expected 1 to 9 digits for ", name,
                 ", got '", text, "'");
    return std::stoll(text);
  }
  cohort::Dataset images(const std::string& part) const {
    const std::string stem = values.at("--data-dir") + "/" + part;
    return cohort::Dataset::idx(
        {.images = stem + "-images-idx3-ubyte", .labels = stem + "-labels-idx1-ubyte"});
  }
};

// Converts a batch: images to float32[N, H, W, 1] in [0, 1], labels to int64 class indices.
std::tuple<at::Tensor, at::Tensor> scale(at::Tensor image, at::Tensor label) {
  return {image.to(torch::kFloat).div(255).unsqueeze(3), label.to(torch::kLong)};
}

torch::nn::Sequential make_model(const Options& options) {
  using namespace torch::nn;
  const std::int64_t side = options.images("train").element_spec().fields[0].sizes->front();
  if (options.values.at("--model") == "mlp")
    return Sequential(Flatten(), Linear(side * side, 128), ReLU(), Linear(128, 10));
  const std::int64_t padding = side < 10 ? 1 : 0, left = padding ? side / 4 : (side / 2 - 3) / 2;
  const auto channels_last = [](at::Tensor x) { return x.permute({0, 3, 1, 2}); };  // fastest order
  return Sequential(Functional(channels_last), Conv2d(Conv2dOptions(1, 32, 3).padding(padding)),
                    MaxPool2d(2), ReLU(), Conv2d(Conv2dOptions(32, 64, 3).padding(padding)),
                    MaxPool2d(2), ReLU(), Flatten(), Linear(64 * left * left, 128), ReLU(),
                    Linear(128, 10));
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

void print_summary(const cohort::ClusterCoordinator& coordinator, double seconds,
                   double test_accuracy) {
  const auto statistics = coordinator.statistics();
  std::printf("test accuracy %.4f after %.1f s\n", test_accuracy, seconds);
  for (std::size_t i = 0; i < statistics.closures.size(); ++i) {
    std::printf("worker:%zu ran %llu closures\n", i,
                static_cast<unsigned long long>(statistics.closures[i]));
  }
  std::printf("%.1f MB pulled, %.1f MB pushed, %llu retries\n",
              static_cast<double>(statistics.pulled_bytes) / 1e6,
              static_cast<double>(statistics.pushed_bytes) / 1e6,
              static_cast<unsigned long long>(statistics.retries));
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments& arguments) {
    const Options options(arguments);
    const auto resolver = cohort::ClusterResolver::from_environment();
    if (resolver->is_server()) return cohort::Server(*resolver).join();
    // Opens the data before it connects, so that errors in the data are found without other tasks.
    const std::int64_t batch = options.number("--batch");
    const cohort::Dataset train = options.images("train"), test = options.images("t10k");
    const std::int64_t steps = options.number("--epochs") * (train.cardinality() / batch);
    COHORT_CHECK(steps > 0, cohort::ErrorCode::invalid_argument, "expected --batch of at most ",
                 train.cardinality(), ", got --batch ", batch);
    cohort::ParameterServerStrategy strategy(
        *resolver, {.cluster = {.seed = static_cast<std::uint64_t>(options.number("--seed"))}});
    cohort::ClusterCoordinator coordinator(strategy);
    auto model = strategy.replicate([&] { return make_model(options); });
    const double rate = options.values.at("--model") == "mlp" ? 0.05 : 0.01;
    cohort::SGD optimizer(model.parameters(), {.learning_rate = rate, .momentum = 0.9});
    auto data = coordinator.create_per_worker_dataset([&](const cohort::InputContext& input) {
      return train.shard(input)
          .shuffle(60'000, {.seed = options.number("--seed")})
          .repeat()
          .batch(batch)
          .map(scale);
    });
    auto iterator = data.iterator();
    cohort::Function step([&](cohort::Iterator& it) {
      auto [image, label] = it.next<at::Tensor, at::Tensor>();
      auto loss = torch::cross_entropy_loss(model->forward(image), label);
      optimizer.minimize(loss);
      return loss;
    });
    std::vector<cohort::RemoteValue> losses;
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < steps; ++i) losses.push_back(coordinator.schedule(step, iterator));
    cohort::ProgressBar bar({.steps = steps, .examples_per_step = batch});
    for (std::size_t done = 0; !coordinator.join(std::chrono::milliseconds(100));) {
      while (done < losses.size() && losses[done].is_ready()) ++done;
      if (done > 0)
        bar.show(static_cast<std::int64_t>(done), losses[done - 1].fetch().tensor().item<double>());
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    print_summary(coordinator, took.count(), accuracy(model.snapshot(), test));
    return 0;
  });
}
