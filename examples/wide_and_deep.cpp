// SPDX-License-Identifier: Apache-2.0
// Predicts clicks with a wide and deep network, as a recommender does: ids are strings of which
// nobody knows how many there are, so their rows live in tables by key on parameter servers.
//
//   cohort launch --workers 2 --ps 2 --data /tmp/clicks -- wide_and_deep /tmp/clicks
//   wide_and_deep /tmp/clicks --strategy one     # the same model in one process
//
// The folder gets a click log, which the program makes up: ids have a distribution as Zipf's, and
// a hidden model decides about clicks, so that the best AUC is known. The options, with defaults:
//
//   --strategy servers|one   --rows 1000000     the capacity of each table
//   --clicks 400000          --users 100000 --items 10000
//   --epochs 1 --batch 256   --seed 1
#include <cohort/cohort.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Options {
  std::string folder;
  std::map<std::string, std::int64_t> numbers = {
      {"--rows", 1'000'000}, {"--clicks", 400'000}, {"--users", 100'000}, {"--items", 10'000},
      {"--epochs", 1},       {"--batch", 256},      {"--seed", 1}};
  bool has_servers = true;

  explicit Options(const cohort::Arguments& arguments) {
    const std::vector<std::string>& words = arguments.values;
    COHORT_CHECK(words.size() % 2 == 1, cohort::ErrorCode::invalid_argument,
                 "usage: wide_and_deep FOLDER [--strategy servers|one] [--rows N] [--clicks N] "
                 "[--users N] [--items N] [--epochs N] [--batch N] [--seed N]");
    folder = words[0];
    for (std::size_t i = 1; i < words.size(); i += 2) set(words[i], words[i + 1]);
  }
  std::int64_t operator[](const std::string& name) const { return numbers.at(name); }

 private:
  void set(const std::string& name, const std::string& value) {
    if (name == "--strategy" && (value == "servers" || value == "one")) {
      has_servers = value == "servers";
      return;
    }
    const bool is_number = value.find_first_not_of("0123456789") == std::string::npos;
    COHORT_CHECK(numbers.contains(name) && is_number && !value.empty() && value.size() < 10 &&
                     std::stoll(value) > 0,
                 cohort::ErrorCode::invalid_argument,
                 "expected an option of the usage with a number from 1 to 999999999, or --strategy "
                 "servers|one, got ",
                 name, " '", value, "'");
    numbers[name] = std::stoll(value);
  }
};

// --- the click log -------------------------------------------------------------------------------

constexpr std::int64_t kFiles = 8;  // of the training part, so that workers read other files
constexpr std::int64_t kCountries = 20;

// The hidden model's opinion of a feature is a number from a normal distribution.
double opinion(const std::string& feature) {
  std::minstd_rand random(static_cast<std::uint32_t>(cohort::embedding_key(feature) >> 20));
  return std::normal_distribution<>()(random);
}

// One line of a log, as the site would write it.
struct Click {
  std::string user, item, country;
  std::array<float, 2> numbers = {};  // the price, and the time of the day
  double chance = 0;                  // of a click, which only the hidden model knows
  bool is_click = false;

  Click(const Options& options, std::mt19937_64& random) {
    std::uniform_real_distribution<> uniform;
    // n^u - 1: the chance of id i falls as 1/(i + 1).
    const auto zipf = [&](std::int64_t n) {
      return std::to_string(
          static_cast<std::int64_t>(std::pow(static_cast<double>(n), uniform(random))) - 1);
    };
    user = "user=" + zipf(options["--users"]);
    item = "item=" + zipf(options["--items"]);
    country = "country=" + zipf(kCountries);
    for (float& number : numbers) number = static_cast<float>(std::normal_distribution<>()(random));
    const double taste = opinion(user + " taste") * opinion(item + " taste");
    const double logit = opinion(user) + opinion(item) + 0.7 * taste + 0.7 * opinion(cross()) -
                         0.5 * numbers[0] + 0.3 * std::sin(3 * numbers[1]) - 1;
    chance = 1 / (1 + std::exp(-logit));
    is_click = uniform(random) < chance;
  }
  // Two features together, which a sum of their effects cannot express.
  std::string cross() const { return country + " " + item; }
  cohort::Example example() const {
    using cohort::embedding_key;
    return {{{"keys", cohort::Int64List{embedding_key(user), embedding_key(item),
                                        embedding_key(country), embedding_key(cross())}},
             {"numbers", cohort::FloatList(numbers.begin(), numbers.end())},
             {"click", cohort::FloatList{is_click ? 1.0F : 0.0F}}}};
  }
};

// Pairs of a score and whether there was a click.
using Scores = std::vector<std::pair<float, bool>>;

// The chance that a click has a higher score than a non-click (the area under the ROC curve).
double auc(Scores scores) {
  std::sort(scores.begin(), scores.end());
  double clicks = 0, others = 0, area = 0;
  for (std::size_t begin = 0, end = 0; begin < scores.size(); begin = end) {
    double clicks_here = 0, others_here = 0;  // with one score; they count half
    for (; end < scores.size() && scores[end].first == scores[begin].first; ++end)
      (scores[end].second ? clicks_here : others_here) += 1;
    area += clicks_here * (others + others_here / 2);
    clicks += clicks_here, others += others_here;
  }
  COHORT_CHECK(clicks > 0 && others > 0, cohort::ErrorCode::invalid_argument,
               "expected clicks and non-clicks in the held-out part; give more --clicks");
  return area / clicks / others;
}

// Writes the log: a tenth of it is held out. Returns the AUC of the hidden model on that part.
double write_log(const Options& options) {
  std::filesystem::create_directories(options.folder);
  std::mt19937_64 random(static_cast<std::uint64_t>(options["--seed"]));
  for (std::int64_t i = 0; i < kFiles; ++i) {
    cohort::RecordWriter writer(options.folder + "/train-" + std::to_string(i) + ".tfrecord");
    for (std::int64_t n = i; n < options["--clicks"]; n += kFiles)
      writer.write(Click(options, random).example().serialize());
    writer.close();
  }
  Scores best;
  cohort::RecordWriter writer(options.folder + "/test.tfrecord");
  for (std::int64_t n = 0; n < options["--clicks"]; n += 10) {
    const Click click(options, random);
    writer.write(click.example().serialize());
    best.emplace_back(static_cast<float>(click.chance), click.is_click);
  }
  writer.close();
  return auc(std::move(best));
}

// Elements: maps of "keys" int64[batch, 4], "numbers" float32[batch, 2] and "click" float32[batch].
cohort::Dataset parsed(const cohort::Dataset& records, std::int64_t batch) {
  return records.batch(batch)
      .parse_example({{"keys", {.dtype = at::kLong, .sizes = {4}}},
                      {"numbers", {.dtype = at::kFloat, .sizes = {2}}},
                      {"click", {.dtype = at::kFloat}}})
      .prefetch(4);
}
cohort::Dataset training_data(const Options& options) {
  const auto files = cohort::Dataset::list_files({options.folder + "/train-*.tfrecord"},
                                                 {.seed = options["--seed"]});
  return parsed(cohort::Dataset::tf_record(files).shuffle(20'000, {.seed = options["--seed"]}),
                options["--batch"]);
}
cohort::Dataset held_out(const Options& options) {
  return parsed(
      cohort::Dataset::tf_record(cohort::StringTensor({1}, {options.folder + "/test.tfrecord"})),
      4096);
}

// --- the model -----------------------------------------------------------------------------------

constexpr std::int64_t kWidth = 16;

// Rows by key, wherever they are, and the variable that an optimizer updates.
struct Rows {
  std::function<at::Tensor(const at::Tensor& keys)> lookup;
  cohort::Variable variable;
};

Rows rows_of(cohort::ParameterServerStrategy& strategy, const std::string& name, std::int64_t dim,
             const cohort::Initializer& initializer, std::int64_t capacity) {
  const cohort::EmbeddingTable table =
      strategy.embedding_table(name, {.dim = dim,
                                      .initializer = initializer,
                                      .capacity = capacity,
                                      .eviction = cohort::TableEviction::least_recently_used});
  return {[table](const at::Tensor& keys) { return table.lookup(keys); }, table.variable()};
}
// In one process: a matrix, in which the keys that have the same remainder share a row.
Rows rows_of(cohort::OneDeviceStrategy& strategy, const std::string& name, std::int64_t dim,
             const cohort::Initializer& initializer, std::int64_t capacity) {
  const cohort::Variable matrix =
      strategy.variable(name, {at::kFloat, {{capacity, dim}}}, initializer);
  return {[matrix, capacity](const at::Tensor& keys) {
            return torch::embedding(matrix.tensor(), keys.remainder(capacity), -1, false, true);
          },
          matrix};
}

// The wide part adds a number for each feature, crosses included. The deep part is a network over
// embeddings of the single features.
struct WideAndDeepImpl : torch::nn::Module {
  WideAndDeepImpl() {
    using namespace torch::nn;
    layers = register_module("layers", Sequential(Linear(3 * kWidth + 2, 64), ReLU(),
                                                  Linear(64, 32), ReLU(), Linear(32, 1)));
  }
  // wide: [batch, 4, 1]; deep: [batch, 3, kWidth]; numbers: [batch, 2]. Returns [batch].
  at::Tensor forward(const at::Tensor& wide, const at::Tensor& deep, const at::Tensor& numbers) {
    const at::Tensor x = torch::cat({deep.flatten(1), numbers}, 1);
    return layers->forward(x).squeeze(1) + wide.sum({1, 2});
  }
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(WideAndDeep);

struct Recommender {
  template <class Strategy>
  Recommender(Strategy& strategy, std::int64_t rows)
      : wide(rows_of(strategy, "wide", 1, cohort::Initializer::zeros(), rows)),
        deep(rows_of(strategy, "deep", kWidth, cohort::Initializer::random_normal(0, 0.05), rows)),
        model(strategy.replicate([] { return WideAndDeep(); })),
        optimizer(variables(), {.learning_rate = 0.05}) {}

  // The logits of a batch: of the step's `net`, or of a snapshot.
  template <class Net>
  at::Tensor logits(Net net, const cohort::Nest& batch) const {
    const at::Tensor keys = batch.entry("keys").tensor();
    return net->forward(wide.lookup(keys), deep.lookup(keys.narrow(1, 0, 3)),
                        batch.entry("numbers").tensor());
  }
  at::Tensor train(const cohort::Nest& batch) const {
    const at::Tensor loss = torch::binary_cross_entropy_with_logits(logits(model, batch),
                                                                    batch.entry("click").tensor());
    optimizer.minimize(loss);
    return loss.detach();
  }
  double evaluate(const cohort::Dataset& data) const {
    const torch::NoGradGuard no_grad;
    WideAndDeep trained = model.snapshot();
    Scores scores;
    for (cohort::Nest& batch : data) {
      const at::Tensor score = logits(trained, batch), click = batch.entry("click").tensor();
      for (std::int64_t i = 0; i < score.numel(); ++i)
        scores.emplace_back(score[i].item<float>(), click[i].item<float>() > 0.5F);
    }
    return auc(std::move(scores));
  }
  std::vector<cohort::Variable> variables() const {
    std::vector<cohort::Variable> all = model.parameters();
    all.insert(all.end(), {wide.variable, deep.variable});
    return all;
  }

  Rows wide, deep;
  cohort::Replicated<WideAndDeep> model;
  cohort::Adagrad optimizer;
};

// --- training ------------------------------------------------------------------------------------

cohort::ProgressBar progress(const Options& options) {
  return cohort::ProgressBar(
      {.steps = options["--epochs"] * options["--clicks"] / options["--batch"],
       .examples_per_step = options["--batch"]});
}

// An epoch uses each click once, also if a worker is lost and returns. Clicks that are used twice
// lower the AUC of all others, since the rows of rare keys then fit these few clicks too well.
void train_on_servers(const Options& options, cohort::ClusterCoordinator& coordinator,
                      const Recommender& recommender) {
  const cohort::PerWorkerDataset data = coordinator.distribute_dataset(training_data(options));
  const cohort::Function step(
      [&](cohort::Iterator& it) { return recommender.train(it.get_next()); });
  cohort::ProgressBar bar = progress(options);
  std::int64_t done = 0;
  const auto show = [&](const cohort::EpochStep&) { bar.show(++done); };
  for (std::int64_t epoch = 0; epoch < options["--epochs"]; ++epoch)
    coordinator.run_epoch(step, data, {.on_step = show});
}
void train_in_one_process(const Options& options, cohort::OneDeviceStrategy& strategy,
                          const Recommender& recommender) {
  const cohort::DistributedDataset data = strategy.distribute_dataset(training_data(options));
  cohort::ProgressBar bar = progress(options);
  std::int64_t done = 0;
  for (std::int64_t epoch = 0; epoch < options["--epochs"]; ++epoch) {
    for (const auto& batch : data) {
      strategy.run([&](const cohort::Nest& nest) { return recommender.train(nest); }, batch);
      bar.show(++done);
    }
  }
}

template <class Strategy, class Train>
int train_and_evaluate(const Options& options, Strategy& strategy, const Train& train) {
  const double best = write_log(options);
  const Recommender recommender(strategy, options["--rows"]);
  const auto start = std::chrono::steady_clock::now();
  train(recommender);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%.0f examples a second; ",
              static_cast<double>(options["--epochs"] * options["--clicks"]) / took.count());
  std::printf("AUC of the model behind the log %.4f\n", best);
  std::printf("AUC %.4f\n", recommender.evaluate(held_out(options)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments& arguments) {
    const Options options(arguments);
    if (!options.has_servers) {
      cohort::OneDeviceStrategy strategy;
      torch::manual_seed(static_cast<std::uint64_t>(options["--seed"]));
      return train_and_evaluate(options, strategy, [&](const Recommender& model) {
        train_in_one_process(options, strategy, model);
      });
    }
    const auto resolver = cohort::ClusterResolver::from_environment();
    if (resolver->is_server()) return cohort::Server(*resolver).join();
    cohort::ParameterServerStrategy strategy(
        *resolver, {.cluster = {.seed = static_cast<std::uint64_t>(options["--seed"])}});
    cohort::ClusterCoordinator coordinator(strategy);
    return train_and_evaluate(options, strategy, [&](const Recommender& model) {
      train_on_servers(options, coordinator, model);
    });
  });
}
