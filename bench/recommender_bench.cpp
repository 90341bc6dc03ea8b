// SPDX-License-Identifier: Apache-2.0
// A recommender's step: two embedding tables of N x 16, eight numbers, a network of 40-64-32-1,
// Adagrad, 256 examples. With replicas, with two synchronous workers, with two workers and two
// parameter servers, and, as the peer, LibTorch alone in one process with sparse gradients; a
// training of TensorFlow and of PyTorch beside it is anchors' t5_recommender.py.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/report.h"
#include "bench/second_worker.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace cohort::bench {
namespace {

constexpr std::int64_t kBatch = 256;
constexpr std::int64_t kWidth = 16;
constexpr std::int64_t kNumbers = 8;
constexpr std::int64_t kBatches = 64;
constexpr int kSteps = 200;
constexpr double kRate = 0.05;

struct RecommenderImpl : torch::nn::Module {
  RecommenderImpl(std::int64_t rows, bool is_sparse)
      : users(register_module("users", embedding(rows, is_sparse))),
        items(register_module("items", embedding(rows, is_sparse))),
        first(register_module("first", torch::nn::Linear(2 * kWidth + kNumbers, 64))),
        second(register_module("second", torch::nn::Linear(64, 32))),
        third(register_module("third", torch::nn::Linear(32, 1))) {}

  static torch::nn::Embedding embedding(std::int64_t rows, bool is_sparse) {
    return torch::nn::Embedding(torch::nn::EmbeddingOptions(rows, kWidth).sparse(is_sparse));
  }
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& numbers, const at::Tensor& label) {
    const at::Tensor user = users(ids.select(1, 0));
    const at::Tensor item = items(ids.select(1, 1));
    at::Tensor x = at::cat({user, item, numbers}, 1);
    x = second(first(x).relu()).relu();
    return at::binary_cross_entropy_with_logits(third(x), label);
  }

  torch::nn::Embedding users, items;
  torch::nn::Linear first, second, third;
};
TORCH_MODULE(Recommender);

// Ids with a skew as Zipf's over [0, rows), and a label that depends on them.
struct Examples {
  at::Tensor ids, numbers, labels;  // of all batches

  explicit Examples(std::int64_t rows) {
    const at::Generator generator = at::detail::createCPUGenerator(1);
    const std::int64_t count = kBatches * kBatch;
    const at::Tensor u = at::rand({count, 2}, generator, at::TensorOptions(at::kDouble));
    ids = u.mul(std::log(static_cast<double>(rows))).exp().to(at::kLong).sub(1).clamp(0, rows - 1);
    numbers = at::randn({count, kNumbers}, generator, at::TensorOptions(at::kFloat));
    labels = ids.sum(1).remainder(3).add(numbers.select(1, 0)).gt(1).to(at::kFloat).unsqueeze(1);
  }
};

// `run` makes kSteps steps.
template <class Run>
double microseconds_of_example(const Run& run) {
  return 1e6 * seconds_of(run) / kSteps / kBatch;
}

// LibTorch in this process.
class Alone {
 public:
  Alone(std::int64_t rows, bool is_sparse)
      : model_(rows, is_sparse),
        optimizer_(model_->parameters(), torch::optim::AdagradOptions(kRate)),
        examples_(rows) {}

  double measure() {
    return microseconds_of_example([&] {
      for (int i = 0; i < kSteps; ++i) step();
    });
  }

 private:
  void step() {
    const std::int64_t at = (step_++ % kBatches) * kBatch;
    optimizer_.zero_grad();
    model_
        ->loss(examples_.ids.slice(0, at, at + kBatch), examples_.numbers.slice(0, at, at + kBatch),
               examples_.labels.slice(0, at, at + kBatch))
        .backward();
    optimizer_.step();
  }

  Recommender model_;
  torch::optim::Adagrad optimizer_;
  const Examples examples_;
  std::int64_t step_ = 0;
};

// Replicas, which divide the batch: in this process, or one in each of two workers.
class Replicas {
 public:
  Replicas(std::int64_t rows, bool is_sparse, SynchronousStrategy& strategy, bool is_traced = false)
      : strategy_(strategy),
        is_traced_(is_traced),
        model_(strategy_.replicate([&] { return Recommender(rows, is_sparse); },
                                   {.name = name_of(rows, is_sparse, is_traced)})),
        optimizer_(model_.parameters(), {.learning_rate = kRate}),
        examples_(rows) {}

  double measure() {
    return microseconds_of_example([&] {
      for (int i = 0; i < kSteps; ++i) step();
    });
  }

 private:
  // Each model of a strategy has another one.
  static std::string name_of(std::int64_t rows, bool is_sparse, bool is_traced) {
    return std::to_string(rows) + (is_sparse ? " sparse" : " dense") + (is_traced ? " traced" : "");
  }
  void step() {
    const std::int64_t own = kBatch / strategy_.num_replicas_in_sync();
    const auto local = static_cast<std::int64_t>(strategy_.devices().size());
    const std::int64_t first = (step_++ % kBatches) * kBatch + strategy_.worker() * local * own;
    std::vector<at::Tensor> ids, numbers, labels;
    for (std::int64_t at = first; at < first + local * own; at += own) {
      ids.push_back(examples_.ids.slice(0, at, at + own));
      numbers.push_back(examples_.numbers.slice(0, at, at + own));
      labels.push_back(examples_.labels.slice(0, at, at + own));
    }
    const PerReplica<at::Tensor> a(ids), b(numbers), c(labels);
    if (is_traced_) {
      traced_(a, b, c);
    } else {
      strategy_.run(body_, a, b, c);
    }
  }

  using Body = std::function<void(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

  SynchronousStrategy& strategy_;
  const bool is_traced_;
  Replicated<Recommender> model_;
  Adagrad optimizer_;
  const Examples examples_;
  std::int64_t step_ = 0;
  const Body body_ = [this](const at::Tensor& ids, const at::Tensor& numbers,
                            const at::Tensor& labels) {
    const at::Tensor loss = model_->loss(ids, numbers, labels);
    optimizer_.minimize(loss / strategy_.num_replicas_in_sync());
  };
  const StrategyFunction<Body> traced_ = strategy_.function(body_);
};

// Two workers and two parameter servers.
class Cluster {
 public:
  Cluster(std::int64_t rows, bool is_sparse)
      : cluster_({.workers = 2, .ps = 2, .command = {COHORT_COMMAND, "server"}}),
        strategy_(cluster_.resolver()),
        coordinator_(strategy_),
        model_(strategy_.replicate([&] { return Recommender(rows, is_sparse); })),
        optimizer_(model_.parameters(), {.learning_rate = kRate}) {
    const Examples examples(rows);
    iterator_ = coordinator_
                    .create_per_worker_dataset([&](const InputContext&) {
                      return Dataset::from_tensor_slices(
                                 Nest::tuple({examples.ids, examples.numbers, examples.labels}))
                          .batch(kBatch)
                          .repeat()
                          .prefetch(4);
                    })
                    .iterator();
    steps(20);
  }

  double measure() {
    return microseconds_of_example([&] { steps(kSteps); });
  }
  // The bytes that a worker pulls and pushes in a step.
  std::pair<double, double> bytes_of_a_step() {
    const auto before = coordinator_.statistics();
    steps(kSteps);
    const auto after = coordinator_.statistics();
    return {static_cast<double>(after.pulled_bytes - before.pulled_bytes) / kSteps,
            static_cast<double>(after.pushed_bytes - before.pushed_bytes) / kSteps};
  }

 private:
  void steps(int count) {
    for (int i = 0; i < count; ++i) coordinator_.schedule(step_, *iterator_);
    coordinator_.join();
  }

  testing::TestCluster cluster_;
  ParameterServerStrategy strategy_;
  ClusterCoordinator coordinator_;
  Replicated<Recommender> model_;
  Adagrad optimizer_;
  std::optional<PerWorkerIterator> iterator_;
  const Function step_{[this](Iterator& it) {
    auto [ids, numbers, labels] = it.next<at::Tensor, at::Tensor, at::Tensor>();
    const at::Tensor loss = model_->loss(ids, numbers, labels);
    optimizer_.minimize(loss);
    return loss;
  }};
};

using Contenders = std::vector<Contender>;

void compare(const Bench& bench, const std::string& title, Contenders contenders) {
  bench.compare(title, {.unit = "us/example"}, contenders);
}

Contender contender(const char* name, auto& training) {
  return {name, [&training] { return training.measure(); }};
}

void run_in_one_process(const Bench& bench, const std::string& title, std::int64_t rows) {
  MirroredStrategy one({"CPU:0"}), two({"CPU:0", "CPU:1"});
  Alone alone(rows, true);
  Replicas eager(rows, true, one), traced(rows, true, one, true), dense(rows, false, one, true);
  Replicas of_two(rows, true, two);
  compare(bench, title,
          {contender("LibTorch alone, sparse(true)", alone),
           contender("run(), 1 replica, sparse(true)", eager),
           contender("function(), 1 replica, sparse(true)", traced),
           contender("function(), 1 replica, sparse(false)", dense),
           contender("run(), 2 replicas, sparse(true)", of_two)});
}

// Worker 1 makes only the steps of both, as often as worker 0.
void run_in_two_workers(const Bench& bench, const std::string& title, std::int64_t rows,
                        SynchronousStrategy& workers) {
  Replicas eager(rows, true, workers), traced(rows, true, workers, true);
  Contenders both = {contender("run(), 2 workers, sparse(true)", eager),
                     contender("function(), 2 workers, sparse(true)", traced)};
  if (workers.worker() == 1) return compare(bench, title, both);
  Alone alone(rows, true);
  both.insert(both.begin(), contender("LibTorch alone, sparse(true)", alone));
  compare(bench, title, both);
}

void run_with_servers(const Bench& bench, const std::string& title, std::int64_t rows) {
  Alone alone(rows, true);
  Cluster dense(rows, false), sparse(rows, true);
  for (const auto& [name, cluster] :
       {std::pair("sparse(false)", &dense), {"sparse(true)", &sparse}}) {
    const auto [pulled, pushed] = cluster->bytes_of_a_step();
    std::printf("%s, %s: %.1f KB pulled and %.1f KB pushed in a step\n", title.c_str(), name,
                pulled / 1e3, pushed / 1e3);
  }
  compare(bench, title,
          {contender("LibTorch alone, sparse(true)", alone),
           contender("schedule(), 2 workers, 2 ps, sparse(false)", dense),
           contender("schedule(), 2 workers, 2 ps, sparse(true)", sparse)});
}

void run(const Bench& bench, const TwoWorkers& both) {
  both.use_cluster(0);
  // The second worker waits while the first one measures the others.
  MultiWorkerMirroredStrategy workers(TfConfigResolver{}, {.timeout = std::chrono::hours(1)});
  for (const std::int64_t rows : {1'000, 100'000, 1'000'000, 10'000'000}) {
    torch::manual_seed(1);
    const std::string title = "recommender, two tables of " + std::to_string(rows) + " x 16, ";
    const std::string here = title + "one process", servers = title + "parameter servers";
    if (both.own() == 0 && bench.wants(here)) run_in_one_process(bench, here, rows);
    if (bench.wants(title + "two workers"))
      run_in_two_workers(bench, title + "two workers", rows, workers);
    if (both.own() == 0 && bench.wants(servers)) run_with_servers(bench, servers, rows);
  }
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  const cohort::bench::TwoWorkers both(argc, argv, 1);
  cohort::bench::run(cohort::bench::Bench(both.argc(), argv), both);
  both.wait();
  return 0;
}
