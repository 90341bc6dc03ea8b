// SPDX-License-Identifier: Apache-2.0
// Predicts the species of penguins from a CSV file with string categories and missing values, with
// parameter servers. Stops when the validation loss no longer falls.
//
//   DATA=examples/data/penguins
//   cohort launch --workers 2 --ps 1 --data $DATA -- tabular $DATA
#include <cohort/cohort.h>
#include <torch/torch.h>

#include <cstdio>
#include <limits>
#include <string>
#include <tuple>

namespace {

constexpr std::int64_t kBatch = 16;
constexpr int kEpochsMax = 100;
constexpr int kPatience = 5;  // stops after this many epochs without a better validation loss

const cohort::data::LookupOptions kSpecies = {.tokens = {"Adelie", "Chinstrap", "Gentoo"},
                                              .num_oov_indices = 0};
// "" stands for an unknown sex.
const cohort::data::LookupOptions kIslands = {.tokens = {"Biscoe", "Dream", "Torgersen"}};
const cohort::data::LookupOptions kSexes = {.tokens = {"female", "male"}, .mask_token = ""};

struct PenguinNetImpl : torch::nn::Module {
  PenguinNetImpl()
      : island(register_module("island", embedding(kIslands))),
        sex(register_module("sex", embedding(kSexes))),
        hidden(register_module("hidden", torch::nn::Linear(4 + 4 + 4, 16))),
        out(register_module("out", torch::nn::Linear(16, 3))) {}
  static torch::nn::Embedding embedding(const cohort::data::LookupOptions& vocabulary) {
    return torch::nn::Embedding(cohort::data::vocabulary_size(vocabulary), 4);
  }
  at::Tensor forward(const at::Tensor& island_ids, const at::Tensor& sex_ids,
                     const at::Tensor& sizes) {
    const at::Tensor x = torch::cat({island->forward(island_ids), sex->forward(sex_ids), sizes}, 1);
    return out->forward(torch::relu(hidden->forward(x)));
  }
  torch::nn::Embedding island, sex;
  torch::nn::Linear hidden, out;
};
TORCH_MODULE(PenguinNet);

// Scales bill length, bill depth and flipper length (mm) and body mass (g) to about 0 +- 1.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> scale(
    at::Tensor species, at::Tensor island, at::Tensor bill_length, at::Tensor bill_depth,
    at::Tensor flipper, at::Tensor mass, at::Tensor sex) {
  const at::Tensor sizes = torch::stack(
      {(bill_length - 44) / 5.5, (bill_depth - 17) / 2, (flipper - 201) / 14, (mass - 4200) / 800},
      1);
  return {species, island, sex, sizes};
}

// Elements: (species, island, sex: int64[batch]; sizes: float32[batch, 4]).
cohort::Dataset penguins(const std::string& file, const cohort::InputContext* input,
                         bool is_training) {
  using at::ScalarType;
  using cohort::kString;
  cohort::Dataset rows = cohort::Dataset::csv(
      cohort::StringTensor(file),
      {.columns = {{kString},
                   {kString},
                   {ScalarType::Float, 44.0},  // used in place of a missing value
                   {ScalarType::Float, 17.0},
                   {ScalarType::Float, 201.0},
                   {ScalarType::Float, 4200.0},
                   {kString, ""}},
       .header = true,
       .na_value = "NA",
       .select_columns = {0, 1, 2, 3, 4, 5, 6}});
  if (input != nullptr) rows = rows.shard(*input);
  if (is_training) rows = rows.shuffle(1000, {.seed = 1});
  return rows.batch(kBatch)
      .map(cohort::data::lookup(0, kSpecies))
      .map(cohort::data::lookup(1, kIslands))
      .map(cohort::data::lookup(6, kSexes))
      .map(scale);
}

struct Score {
  double loss = 0, accuracy = 0;
};
Score evaluate(PenguinNet model, const std::string& file) {
  model->eval();
  const torch::NoGradGuard no_grad;
  Score sum;
  double rows = 0;
  for (auto it = penguins(file, nullptr, false).iterator(); auto element = it.try_next();) {
    const auto at = [&](std::size_t i) { return element->items()[i].tensor(); };
    const at::Tensor logits = model->forward(at(1), at(2), at(3));
    sum.loss += torch::cross_entropy_loss(logits, at(0), {}, at::Reduction::Sum).item<double>();
    sum.accuracy += logits.argmax(1).eq(at(0)).sum().item<double>();
    rows += static_cast<double>(at(0).size(0));
  }
  return {sum.loss / rows, sum.accuracy / rows};
}

int train(const std::string& folder) {
  const auto resolver = cohort::ClusterResolver::from_environment();
  if (resolver->is_server()) return cohort::Server(*resolver).join();
  cohort::ParameterServerStrategy strategy(*resolver, {.cluster = {.seed = 3}});
  cohort::ClusterCoordinator coordinator(strategy);
  auto model = strategy.replicate([] { return PenguinNet(); });
  cohort::AdamW optimizer(model.parameters(), {.learning_rate = 0.01, .weight_decay = 0.01});
  auto data = coordinator.create_per_worker_dataset([&](const cohort::InputContext& input) {
    return penguins(folder + "/train.csv", &input, true);
  });
  cohort::Function step([&](cohort::Iterator& it) {
    auto [species, island, sex, sizes] = it.next<at::Tensor, at::Tensor, at::Tensor, at::Tensor>();
    auto loss = torch::cross_entropy_loss(model->forward(island, sex, sizes), species);
    optimizer.minimize(loss);
    return loss;
  });

  PenguinNet best = model.snapshot();
  double best_loss = std::numeric_limits<double>::infinity();
  for (int epoch = 0, worse = 0; epoch < kEpochsMax && worse < kPatience; ++epoch) {
    const auto result = coordinator.run_epoch(step, data);
    PenguinNet now = model.snapshot();
    const Score score = evaluate(now, folder + "/validation.csv");
    std::printf("epoch %d: %llu steps, loss %.3f, validation loss %.3f\n", epoch,
                static_cast<unsigned long long>(result.steps), result.mean.tensor().item<double>(),
                score.loss);
    worse = score.loss < best_loss ? 0 : worse + 1;
    if (worse == 0) best = now, best_loss = score.loss;
  }
  std::printf("test accuracy %.4f\n", evaluate(best, folder + "/test.csv").accuracy);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments& arguments) {
    COHORT_CHECK(arguments.values.size() == 1, cohort::ErrorCode::invalid_argument,
                 "usage: tabular FOLDER, with train.csv, validation.csv and test.csv");
    return train(arguments.values[0]);
  });
}
