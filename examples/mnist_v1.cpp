// SPDX-License-Identifier: Apache-2.0
// Trains on MNIST with parameter servers and no coordinator: each task runs this program.
//   cohort launch --v1 --workers 2 --ps 2 --chief --evaluator -- mnist_v1 --data-dir DIR
//   COHORT_TASKS=chief=1,ps=1,worker=2 COHORT_END_WHEN_UNUSED=10 srun -n 4 mnist_v1 …
// Tasks may be killed and started again: --restart 10.
#include <cohort/cohort.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>

namespace {

using enum cohort::ErrorCode;
std::map<std::string, std::string> options = {
    {"--data-dir", "data"}, {"--run-dir", "run_v1"}, {"--steps", "2000"}, {"--save-every", "200"}};

std::int64_t number(const std::string& option) {
  const std::string& text = options.at(option);
  COHORT_CHECK(text.size() - 1 < 9 && text.find_first_not_of("0123456789") == text.npos,
               invalid_argument, "expected 1 to 9 digits for ", option, ", got '", text, "'");
  return std::stoll(text);
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

// All tasks make these in the same order.
struct Training {
  explicit Training(cohort::v1::ParameterServerStrategy& made_in, std::int64_t pixels)
      : strategy(made_in),
        model(strategy.replicate([pixels] {
          using namespace torch::nn;
          return Sequential(Linear(pixels, 128), ReLU(), Linear(128, 10));
        })),
        optimizer(model.parameters(), {.learning_rate = 0.05}),
        global_step(strategy.global_step()) {}
  std::int64_t step() const { return global_step.read().item<std::int64_t>(); }

  cohort::v1::ParameterServerStrategy& strategy;
  cohort::Replicated<torch::nn::Sequential> model;
  cohort::SGD optimizer;
  cohort::Variable global_step;
};

// The number of the newest folder "step-N", which appears when it is whole; -1: there is none.
std::int64_t latest_step() {
  std::int64_t latest = -1;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(options["--run-dir"], none)) {
    const std::string name = entry.path().filename().string();
    const bool is_step = name.starts_with("step-") && name.size() > 5 &&
                         name.find_first_not_of("0123456789", 5) == name.npos;
    if (is_step) latest = std::max<std::int64_t>(latest, std::stoll(name.substr(5)));
  }
  return latest;
}

std::string folder_of(std::int64_t step) {
  return options["--run-dir"] + "/step-" + std::to_string(step);
}

// Returns false if a server was lost since this step: the values are now of an earlier one.
bool save(cohort::CheckpointManager& manager, std::int64_t step) {
  try {
    manager.save(step);
    return true;
  } catch (const cohort::Error& error) {
    if (error.code() != aborted) throw;
    return false;
  }
}

// The chief saves, and restores after the loss of a server.
void train(Training& training, const cohort::Dataset& data, std::int64_t steps) {
  const cohort::Checkpoint checkpoint(training.strategy);
  std::optional<cohort::CheckpointManager> manager;
  if (training.strategy.is_chief()) {
    manager.emplace(checkpoint, options["--run-dir"]);
    // Another thread calls this, also while this one saves, so it has its own.
    auto own = std::make_shared<const cohort::Checkpoint>(training.strategy);
    training.strategy.restore_after_loss([own]() -> std::optional<std::int64_t> {
      const std::int64_t latest = latest_step();
      return latest < 0 ? std::nullopt : std::optional(own->read(folder_of(latest)).step);
    });
    manager->restore_latest();  // nothing, if the servers have newer values
    training.strategy.let_others_train();
  }
  const auto input = training.strategy.distribute_dataset(
      data.shuffle(60'000).repeat().batch(64).map(scale).prefetch(2));
  std::int64_t saved = -1;
  auto batches = input.iterator();
  auto make_step = training.strategy.function([&](at::Tensor image, at::Tensor label) {
    const at::Tensor out = training.model->forward(image);
    training.optimizer.minimize(torch::cross_entropy_loss(out, label));
    training.global_step.assign_add(1);
    return training.global_step.read();  // comes with the answer to the update
  });
  std::int64_t step = training.step();
  const auto start = std::chrono::steady_clock::now();
  while (step < steps) {
    step = make_step(batches.get_next())[0].item<std::int64_t>();
    const std::int64_t due = step / number("--save-every");
    if (manager && due != saved && save(*manager, step)) saved = due;
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  if (manager) manager->save(step).wait();
  std::printf("trained to step %lld in %.2f s\n", static_cast<long long>(training.step()),
              taken.count());
}

// Evaluates each new checkpoint, the last one too.
void evaluate(Training& training, const cohort::Dataset& test, std::int64_t steps) {
  const cohort::Checkpoint checkpoint(training.strategy);
  for (std::int64_t seen = -1; seen < steps;) {
    const std::int64_t latest = latest_step();
    if (latest == seen) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    seen = checkpoint.read(folder_of(latest)).step;
    std::printf("test accuracy %.4f at step %lld\n", accuracy(training.model.snapshot(), test),
                static_cast<long long>(seen));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments& arguments) {
    for (std::size_t i = 0; i < arguments.values.size(); i += 2) {
      const std::string& name = arguments.values[i];
      COHORT_CHECK(options.contains(name) && i + 1 < arguments.values.size(), invalid_argument,
                   "expected --data-dir, --run-dir, --steps or --save-every with a value, got '",
                   name, "'");
      options[name] = arguments.values[i + 1];
    }
    const auto resolver = cohort::ClusterResolver::from_environment();
    if (resolver->task_type() == "ps") return cohort::Server(*resolver).join();
    const cohort::Dataset data = images("train");
    const auto sizes = *data.element_spec().fields[0].sizes;
    cohort::v1::ParameterServerStrategy strategy;
    Training training(strategy, sizes[0] * sizes[1]);
    const bool is_evaluator = strategy.cluster_resolver()->task_type() == "evaluator";
    is_evaluator ? evaluate(training, images("t10k"), number("--steps"))
                 : train(training, data, number("--steps"));
    return 0;
  });
}
