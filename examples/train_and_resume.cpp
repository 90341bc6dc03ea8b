// SPDX-License-Identifier: Apache-2.0
// A whole program on any strategy: validation, a decaying learning rate, clipping, early stopping,
// curves for TensorBoard. At SIGTERM it saves and ends with code 75; the same command goes on.
//   cohort launch --workers 2 --ps 0 -- train_and_resume --strategy multi_worker …
//   cohort launch --workers 2 --ps 1 --data DIR -- train_and_resume --strategy parameter_server …
#include <cohort/cohort.h>
#include <torch/torch.h>

#include <iostream>
#include <map>

namespace {
using cohort::Dataset, cohort::Iterator, cohort::Nest;
std::map<std::string, std::string> options = {{"--strategy", "one_device"},
                                              {"--data-dir", "data"},
                                              {"--run-dir", "run"},
                                              {"--epochs", "20"},
                                              {"--patience", "5"}};

std::unique_ptr<cohort::Strategy> make_strategy(const std::string& name) {
  const std::vector<std::string> devices = {"CPU:0", "CPU:1"};  // {}: all GPUs
  if (name == "one_device") return std::make_unique<cohort::OneDeviceStrategy>();
  if (name == "mirrored") return std::make_unique<cohort::MirroredStrategy>(devices);
  if (name == "central_storage") return std::make_unique<cohort::CentralStorageStrategy>(devices);
  if (name == "multi_worker") return std::make_unique<cohort::MultiWorkerMirroredStrategy>();
  COHORT_CHECK(name == "parameter_server", cohort::ErrorCode::invalid_argument,
               "expected a --strategy of the usage, got '", name, "'");
  return std::make_unique<cohort::ParameterServerStrategy>(
      *cohort::ClusterResolver::from_environment());
}

// Batches of images, float32[N, pixels] in [0, 1], and labels, int64 class indices.
Dataset batches(const std::string& part, std::int64_t size) {
  const std::string stem = options["--data-dir"] + "/" + part + "-";
  return Dataset::idx({.images = stem + "images-idx3-ubyte", .labels = stem + "labels-idx1-ubyte"})
      .shuffle(part == "train" ? 60'000 : 1, {.seed = 1})  // 1: as they are
      .batch(size)
      .map([](at::Tensor image, at::Tensor label) {
        return std::tuple(image.to(torch::kFloat).div(255).flatten(1), label.to(torch::kLong));
      });
}

using Step = std::function<void(const Nest& batch)>;
// Makes a step of training, which returns false at the end of an epoch, and the validation.
using Loop = std::pair<std::function<bool()>, cohort::Evaluation>;
Loop on_replicas(cohort::Strategy& strategy, const Step& train, const Step& check,
                 cohort::Checkpoint& checkpoint) {
  const auto data = strategy.distribute_dataset(batches("train", 64));
  const auto pass = std::make_shared<cohort::DistributedIterator>(data.iterator());
  checkpoint.add("data", *pass);
  const auto step = [=, &strategy] {
    if (const auto batch = pass->try_next()) return strategy.run(train, *batch), true;
    *pass = data.iterator();
    return false;
  };
  return {step, {strategy, check, strategy.distribute_dataset(batches("t10k", 256))}};
}
// The workers draw the batches themselves.
Loop on_servers(cohort::ParameterServerStrategy& strategy, const Step& train, const Step& check) {
  const auto coordinator = std::make_shared<cohort::ClusterCoordinator>(strategy);
  const cohort::Function drawn([=](Iterator& rows) { train(rows.get_next()); });
  const auto data = coordinator->distribute_dataset(batches("train", 64));
  const auto pass = std::make_shared<std::optional<cohort::Epoch>>();
  const auto step = [=] {
    if (!*pass) pass->emplace(coordinator->begin_epoch(drawn, data));
    if ((*pass)->try_next()) return true;
    pass->reset();
    return false;
  };
  const auto checked = [=](Iterator& rows) { check(rows.get_next()); };
  return {step, {*coordinator, checked, batches("t10k", 256)}};
}

int train(cohort::Strategy& strategy) {
  const cohort::StopSignals signals;
  auto* const servers = dynamic_cast<cohort::ParameterServerStrategy*>(&strategy);
  torch::manual_seed(1);
  const Dataset data = batches("train", 64);
  const auto net = strategy.replicate([pixels = data.element_spec().fields[0].sizes->at(1)] {
    using namespace torch::nn;
    return Sequential(Linear(pixels, 128), ReLU(), Dropout(0.2), Linear(128, 10));
  });
  const cohort::CosineDecay rate({.initial_learning_rate = 2e-3, .decay_steps = 1000});
  const cohort::Adam adam(net.parameters(), {.learning_rate = rate});
  const auto scope = strategy.scope();  // of the metrics, which add up over its replicas
  const cohort::metrics::Mean loss({.name = "loss"}), val_loss({.name = "val_loss"});
  const cohort::metrics::Accuracy accuracy;
  const auto step = [&](const Nest& batch) {
    const at::Tensor x = batch.items()[0].tensor(), y = batch.items()[1].tensor();
    const at::Tensor losses =
        torch::cross_entropy_loss(net->forward(x), y, {}, at::Reduction::None);
    const auto mean = servers ? losses.mean() : cohort::average_loss(losses);  // over all replicas
    const auto gradients = adam.compute_gradients(mean);
    adam.apply_gradients(cohort::clip_by_global_norm(gradients, 1.0).gradients);
    loss.update(losses.detach());
  };
  const auto check = [&](const Nest& batch) {
    const at::Tensor y = batch.items()[1].tensor(),
                     scores = net->forward(batch.items()[0].tensor());
    val_loss.update(torch::cross_entropy_loss(scores, y, {}, at::Reduction::None));
    accuracy.update({.labels = y, .predictions = scores});
  };
  std::int64_t epoch = 0;
  cohort::EarlyStopping stopping({.patience = std::stoll(options["--patience"])});
  cohort::Checkpoint checkpoint(strategy);
  checkpoint.add("epoch", epoch)
      .add("stopping", {[&] { return stopping.save(); }, [&](auto& s) { stopping.restore(s); }});
  const auto [next_step, validation] =
      servers ? on_servers(*servers, step, check) : on_replicas(strategy, step, check, checkpoint);
  cohort::CheckpointManager manager(checkpoint, options["--run-dir"] + "/checkpoints");
  manager.restore_latest();
  const std::int64_t epochs = std::stoll(options["--epochs"]);
  cohort::SummaryWriter summaries(strategy, options["--run-dir"] + "/logs", {.has_jsonl = true});
  cohort::ProgressBar bar({.steps = epochs * data.cardinality(), .first_step = adam.iterations()});
  cohort::MetricValues values;  // of the epoch before
  while (epoch < epochs && !stopping.should_stop()) {
    while (next_step()) {
      bar.show(adam.iterations(), values);
      if (!signals.agreed(strategy)) continue;
      if (!servers) manager.save(adam.iterations());  // on servers, the epoch begins again
      return signals.exit_code();
    }
    validation.run();
    values = {
        {"loss", loss.result()}, {"val_loss", val_loss.result()}, {"accuracy", accuracy.result()}};
    loss.reset(), val_loss.reset(), accuracy.reset();
    for (const auto& [name, value] : values) summaries.scalar(name, value, adam.iterations());
    stopping.update(epoch++, values);
    manager.save(adam.iterations());
    if (strategy.extended().should_checkpoint())
      std::cout << "epoch " << epoch << ": accuracy " << values["accuracy"] << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments& arguments) {
    const std::vector<std::string>& words = arguments.values;
    for (std::size_t i = 0; i < words.size(); i += 2) {
      COHORT_CHECK(options.contains(words[i]) && i + 1 < words.size(),
                   cohort::ErrorCode::invalid_argument, "expected an option, got '", words[i], "'");
      options[words[i]] = words[i + 1];
    }
    if (options["--strategy"] == "parameter_server") {
      const auto resolver = cohort::ClusterResolver::from_environment();
      if (resolver->is_server()) return cohort::Server(*resolver).join();
    }
    return train(*make_strategy(options["--strategy"]));
  });
}
