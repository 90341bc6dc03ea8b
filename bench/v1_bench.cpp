// SPDX-License-Identifier: Apache-2.0
// Asynchronous training of a small network, batches of 64 x 784 numbers, with 2 workers and 2
// parameter servers: v1::ParameterServerStrategy, whose workers run the program by themselves,
// beside a ClusterCoordinator. Each worker is a process with one thread for its computations.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/python_peer.h"
#include "bench/report.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/v1/parameter_server_strategy.h"

namespace cohort::bench {
namespace {

constexpr std::int64_t kBatch = 64;
constexpr std::int64_t kBatches = 64;
constexpr std::int64_t kPixels = 784;
constexpr int kSteps = 938;  // of both workers: an epoch of MNIST
constexpr int kCheckedSteps = 2 * kSteps;
constexpr double kRate = 0.05;
constexpr std::string_view kTaskOption = "--v1-task";

// The sum of several networks of two layers, each with 4 variables.
struct NetworksImpl : torch::nn::Module {
  NetworksImpl(int count, std::int64_t width) {
    register_module("first", first);
    register_module("second", second);
    for (int i = 0; i < count; ++i) {
      first->push_back(torch::nn::Linear(kPixels, width));
      second->push_back(torch::nn::Linear(width, 10));
    }
  }
  at::Tensor loss(const at::Tensor& image, const at::Tensor& label) {
    at::Tensor sum;
    for (std::size_t i = 0; i < first->size(); ++i) {
      const at::Tensor hidden = first->at<torch::nn::LinearImpl>(i).forward(image).relu();
      const at::Tensor out = second->at<torch::nn::LinearImpl>(i).forward(hidden);
      sum = i == 0 ? out : sum + out;
    }
    return at::cross_entropy_loss(sum, label);
  }
  torch::nn::ModuleList first, second;
};
TORCH_MODULE(Networks);

struct Workload {
  const char* title;
  int count;
  std::int64_t width;
};
// About as many numbers in 10 times as many variables.
constexpr Workload kWorkloads[] = {{"v1: MLP 784-128-10, 4 variables", 1, 128},
                                   {"v1: 10 MLPs 784-13-10, 40 variables", 10, 13}};

// Labels that a linear function of the images decides.
struct Examples {
  at::Tensor images, labels;

  Examples() {
    const at::Generator generator = at::detail::createCPUGenerator(1);
    const at::TensorOptions options(at::kFloat);
    images = at::rand({kBatches * kBatch, kPixels}, generator, options).sub(0.5);
    labels = images.matmul(at::randn({kPixels, 10}, generator, options)).argmax(1);
  }
  Dataset batches() const {
    return Dataset::from_tensor_slices(Nest::tuple({images, labels}))
        .batch(kBatch)
        .repeat()
        .prefetch(4);
  }
  double loss_of(Networks network) const {
    const at::NoGradGuard no_grad;
    return network->loss(images, labels).item<double>();
  }
};

// --- a task of version 1 -------------------------------------------------------------------------

// Reads numbers of steps from stdin, makes them, and answers each with 0; "loss" with the loss.
class Task {
 public:
  Task(int count, std::int64_t width, bool is_traced)
      : is_traced_(is_traced),
        model_(strategy_.replicate([=] { return Networks(count, width); })),
        optimizer_(model_.parameters(), {.learning_rate = kRate}),
        global_step_(strategy_.global_step()),
        input_(strategy_.distribute_datasets_from_function(
            [this](const InputContext&) { return examples_.batches(); })),
        batches_(input_.iterator()) {
    strategy_.let_others_train();
  }

  void answer() {
    for (std::string word; std::cin >> word;) {
      if (word == "loss") {
        std::cout << examples_.loss_of(model_.snapshot()) << std::endl;
        continue;
      }
      for (int steps = std::stoi(word); steps > 0; --steps) step();
      std::cout << 0 << std::endl;
    }
  }

 private:
  using Body = std::function<void(const at::Tensor&, const at::Tensor&)>;

  void step() {
    if (is_traced_) {
      traced_(batches_.get_next());
    } else {
      strategy_.run(body_, batches_.get_next());
    }
  }

  const bool is_traced_;
  const Examples examples_;
  v1::ParameterServerStrategy strategy_;
  Replicated<Networks> model_;
  SGD optimizer_;
  Variable global_step_;
  DistributedDataset input_;
  DistributedIterator batches_;
  const Body body_ = [this](const at::Tensor& image, const at::Tensor& label) {
    optimizer_.minimize(model_->loss(image, label));
    global_step_.assign_add(1);
  };
  const StrategyFunction<Body> traced_ = strategy_.function(body_);
};

// --- the contenders ------------------------------------------------------------------------------

class Version1 {
 public:
  Version1(const Workload& workload, bool is_traced)
      : cluster_({.workers = 1,
                  .ps = 2,
                  .command = {COHORT_COMMAND, "server"},
                  .not_started = {"worker:0"}}),
        chief_(start("chief:0", workload, is_traced)),
        worker_(start("worker:0", workload, is_traced)) {}

  // Milliseconds a step, of the steps of both workers.
  double measure(int steps = kSteps) {
    const std::string half = std::to_string(steps / 2);
    return 1e3 / steps * seconds_of([&] {
             auto other = std::async(std::launch::async, [&] { worker_->measure(half); });
             chief_->measure(half);
             other.get();
           });
  }
  double loss() { return chief_->measure("loss"); }

 private:
  std::unique_ptr<PythonPeer> start(const std::string& task, const Workload& workload,
                                    bool is_traced) const {
    ::setenv("TF_CONFIG", cluster_.tf_config(task).c_str(), 1);
    ::setenv("OMP_NUM_THREADS", "1", 1);  // as `cohort launch` does; OpenBLAS reads nothing else
    auto made = std::make_unique<PythonPeer>(std::vector<std::string>{
        std::filesystem::read_symlink("/proc/self/exe"), std::string(kTaskOption),
        std::to_string(workload.count), std::to_string(workload.width), is_traced ? "1" : "0"});
    ::unsetenv("OMP_NUM_THREADS");
    ::unsetenv("TF_CONFIG");
    return made;
  }

  testing::TestCluster cluster_;
  std::unique_ptr<PythonPeer> chief_, worker_;
};

class Coordinated {
 public:
  explicit Coordinated(const Workload& workload)
      : cluster_({.workers = 2, .ps = 2, .command = {COHORT_COMMAND, "server"}}),
        strategy_(cluster_.resolver()),
        coordinator_(strategy_),
        model_(
            strategy_.replicate([workload] { return Networks(workload.count, workload.width); })),
        optimizer_(model_.parameters(), {.learning_rate = kRate}),
        iterator_(coordinator_
                      .create_per_worker_dataset(
                          [this](const InputContext&) { return examples_.batches(); })
                      .iterator()) {}

  double measure(int steps = kSteps) {
    return 1e3 / steps * seconds_of([&] {
             for (int i = 0; i < steps; ++i) coordinator_.schedule(step_, iterator_);
             coordinator_.join();
           });
  }
  double loss() { return examples_.loss_of(model_.snapshot()); }

 private:
  const Examples examples_;
  testing::TestCluster cluster_;
  ParameterServerStrategy strategy_;
  ClusterCoordinator coordinator_;
  Replicated<Networks> model_;
  SGD optimizer_;
  PerWorkerIterator iterator_;
  const Function step_{[this](Iterator& it) {
    auto [image, label] = it.next<at::Tensor, at::Tensor>();
    optimizer_.minimize(model_->loss(image, label));
  }};
};

// All train well, and about equally well: their workers do not wait for each other, and one of them
// may end before the other.
void check_losses(const Workload& workload, const std::vector<double>& losses) {
  const double untrained = std::log(10.0);
  const Spread spread = spread_of(losses);
  std::printf("%s: losses after %d steps", workload.title, kCheckedSteps);
  for (const double loss : losses) std::printf(" %.3f", loss);
  std::printf("\n");
  require(spread.max < 0.8 * untrained && spread.max < 1.3 * spread.min, "the losses");
}

void run(const Bench& bench) {
  torch::manual_seed(1);
  for (const Workload& workload : kWorkloads) {
    if (!bench.wants(workload.title)) continue;
    Coordinated coordinated(workload);
    Version1 eager(workload, /*is_traced=*/false), traced(workload, /*is_traced=*/true);
    coordinated.measure(kCheckedSteps);
    eager.measure(kCheckedSteps);
    traced.measure(kCheckedSteps);
    check_losses(workload, {coordinated.loss(), eager.loss(), traced.loss()});
    bench.compare(workload.title, {.unit = "ms/step"},
                  {{"coordinator, schedule()", [&] { return coordinated.measure(); }},
                   {"v1, run()", [&] { return eager.measure(); }},
                   {"v1, function()", [&] { return traced.measure(); }}});
  }
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  if (argc == 5 && argv[1] == cohort::bench::kTaskOption) {
    at::set_num_threads(1);
    torch::manual_seed(1);
    cohort::bench::Task(std::stoi(argv[2]), std::stoi(argv[3]), argv[4] == std::string("1"))
        .answer();
    return 0;
  }
  cohort::bench::run(cohort::bench::Bench(argc, argv));
  return 0;
}
