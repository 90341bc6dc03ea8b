// SPDX-License-Identifier: Apache-2.0
// The program of tf.estimator's time: the same in each task, which learns from TF_CONFIG, or from
// what has started it, whether it trains, evaluates or serves. The same command goes on after an
// interruption.
//   train_and_evaluate --strategy mirrored …
//   cohort launch --workers 2 --ps 0 -- train_and_evaluate --strategy multi_worker …
//   cohort launch --workers 2 --ps 1 --data DIR -- train_and_evaluate --strategy parameter_server …
//   cohort launch --v1 --workers 2 --ps 2 --chief --evaluator -- train_and_evaluate --strategy v1 …
#include <cohort/cohort.h>
#include <torch/torch.h>

#include <iostream>
#include <map>

namespace {
namespace estimator = cohort::estimator;
using cohort::Dataset, cohort::InputContext, cohort::Nest;

std::map<std::string, std::string> options = {{"--strategy", "one_device"},
                                              {"--data-dir", "data"},
                                              {"--model-dir", "model"},
                                              {"--max-steps", "1000"}};

std::unique_ptr<cohort::Strategy> make_strategy(const std::string& name) {
  const std::vector<std::string> devices = {"CPU:0", "CPU:1"};  // {}: all GPUs
  if (name == "one_device") return std::make_unique<cohort::OneDeviceStrategy>();
  if (name == "mirrored") return std::make_unique<cohort::MirroredStrategy>(devices);
  if (name == "central_storage") return std::make_unique<cohort::CentralStorageStrategy>(devices);
  if (name == "multi_worker") return std::make_unique<cohort::MultiWorkerMirroredStrategy>();
  if (name == "v1") return std::make_unique<cohort::v1::ParameterServerStrategy>();
  COHORT_CHECK(name == "parameter_server", cohort::ErrorCode::invalid_argument,
               "expected a --strategy of the usage, got '", name, "'");
  return std::make_unique<cohort::ParameterServerStrategy>(
      *cohort::ClusterResolver::from_environment());
}

// Images, float32[pixels] in [0, 1], and labels, int64 class indices.
Dataset digits(const std::string& part) {
  const std::string stem = options["--data-dir"] + "/" + part + "-";
  return Dataset::idx({.images = stem + "images-idx3-ubyte", .labels = stem + "labels-idx1-ubyte"});
}
Dataset batches(const Dataset& digits, std::int64_t size) {
  return digits.batch(size).map([](at::Tensor image, at::Tensor label) {
    return std::tuple(image.to(torch::kFloat).div(255).flatten(1), label.to(torch::kLong));
  });
}
// Each input pipeline has its part of the data, in batches for one replica.
Dataset training_data(const InputContext& context) {
  const Dataset part = digits("train").shard(context).shuffle(10'000, {.seed = 1}).repeat();
  return batches(part, context.get_per_replica_batch_size(64));
}
Dataset test_data() { return batches(digits("t10k"), 256); }

estimator::EstimatorSpec digits_model(const estimator::ModelContext& context) {
  const std::int64_t pixels = test_data().element_spec().fields[0].sizes->at(1);
  const auto net = context.strategy.replicate([pixels] {
    using namespace torch::nn;
    return Sequential(Linear(pixels, 128), ReLU(), Dropout(0.2), Linear(128, 10));
  });
  const cohort::Adam adam(net.parameters(), {.learning_rate = 2e-3});
  const cohort::metrics::Mean loss({.name = "loss"});
  const cohort::metrics::Accuracy accuracy;
  const auto losses_of = [](const at::Tensor& scores, const Nest& batch) {
    return torch::cross_entropy_loss(scores, batch.items()[1].tensor(), {}, at::Reduction::None);
  };
  return {.train_step =
              [=](const Nest& batch) {
                const at::Tensor scores = net->forward(batch.items()[0].tensor());
                const at::Tensor mean = cohort::average_loss(losses_of(scores, batch));
                adam.minimize(mean);
                return mean;
              },
          .eval_step =
              [=](const Nest& batch) {
                const at::Tensor scores = net->forward(batch.items()[0].tensor());
                loss.update(losses_of(scores, batch));
                accuracy.update({.labels = batch.items()[1].tensor(), .predictions = scores});
              },
          .eval_metrics = {loss, accuracy}};
}

int run() {
  const auto resolver = cohort::ClusterResolver::from_environment();
  if (resolver->task_type() == "ps") return cohort::Server(*resolver).join();
  const auto strategy = make_strategy(options["--strategy"]);
  estimator::Estimator model(digits_model,
                             estimator::RunConfig({.model_dir = options["--model-dir"],
                                                   .save_checkpoints_steps = 200,
                                                   .max_worker_delay = std::chrono::seconds(0),
                                                   .train_distribute = strategy.get()}));
  const auto best = std::make_shared<estimator::BestExporter>("best");
  const estimator::TrainAndEvaluateResult result = estimator::train_and_evaluate(
      model, {.input_fn = training_data, .max_steps = std::stoll(options["--max-steps"])},
      {.input_fn = test_data,
       .steps = {},  // all
       .exporters = {best},
       .start_delay = std::chrono::seconds(1),
       .throttle = std::chrono::seconds(0)});
  if (result.last)
    std::cout << "step " << result.last->global_step << ": accuracy "
              << result.last->values.at("accuracy") << std::endl;
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
    return run();
  });
}
