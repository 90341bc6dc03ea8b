// SPDX-License-Identifier: Apache-2.0
// A training step in two processes that sum their gradients: with cohort, eagerly and traced, also
// over tcp and while the backward pass runs, with c10d over Gloo, and with PyTorch's
// DistributedDataParallel and TensorFlow's MultiWorkerMirroredStrategy where they are installed.
// The program starts itself as the second worker, which makes the same steps.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/gloo_peer.h"
#include "bench/mlp_training.h"
#include "bench/python_peer.h"
#include "bench/report.h"
#include "bench/second_worker.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/run_main.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"

namespace cohort::bench {
namespace {

constexpr int kWorkers = 2;

// One strategy, and one cluster, for each.
struct Way {
  const char* name;
  GroupBackend backend;
  bool overlaps;
};
constexpr Way kWays[] = {{"run()", GroupBackend::shared_memory, false},
                         {"run(), overlapped", GroupBackend::shared_memory, true},
                         {"run(), tcp", GroupBackend::tcp, false},
                         {"run(), tcp, overlapped", GroupBackend::tcp, true}};
// Set before the first use.
const TwoWorkers*& workers() {
  static const TwoWorkers* both = nullptr;
  return both;
}
int own_worker() { return workers()->own(); }

class Workers final : public Training {
 public:
  Workers(const Network& network, MultiWorkerMirroredStrategy& strategy, bool is_traced)
      : strategy_(strategy), is_traced_(is_traced), batch_(batch_of(network, own_worker())) {
    // Unlike those of others of this strategy.
    const std::string prefix = network.title + (is_traced ? " traced " : " eager ");
    for (const at::Tensor& weight : weights_of(network))
      variables_.push_back(strategy_.variable(prefix + std::to_string(variables_.size()), weight));
    sgd_ = std::make_unique<SGD>(variables_, SGDOptions{.learning_rate = kRate});
  }
  void step() override {
    if (is_traced_) {
      traced_(batch_[0], batch_[1]);
    } else {
      strategy_.run(body_, batch_[0], batch_[1]);
    }
  }
  Tensors weights() const override { return values_of(variables_); }

 private:
  using Body = std::function<void(const at::Tensor&, const at::Tensor&)>;

  MultiWorkerMirroredStrategy& strategy_;
  const bool is_traced_;
  const Tensors batch_;
  std::vector<Variable> variables_;
  std::unique_ptr<SGD> sgd_;
  const Body body_ = [this](const at::Tensor& x, const at::Tensor& y) {
    // Half of the mean over this worker's rows: the workers' sum is the mean over all rows.
    sgd_->minimize(loss_of(x, y, variables_) / kWorkers);
  };
  const StrategyFunction<Body> traced_ = strategy_.function(body_);
};

#ifdef COHORT_BENCH_HAS_GLOO
// All gradients in one tensor, as a program that uses c10d from C++ sends them: Debian's LibTorch
// has no header with which DistributedDataParallel's Reducer could be used.
class FlatOverGloo final : public Training {
 public:
  FlatOverGloo(const Network& network, const std::string& file)
      : batch_(batch_of(network, own_worker())),
        weights_(weights_of(network)),
        group_(gloo_group(file, own_worker(), kWorkers)) {
    for (at::Tensor& weight : weights_) weight.requires_grad_();
  }
  void step() override {
    Tensors gradients =
        torch::autograd::grad({loss_of(batch_[0], batch_[1], weights_).div(kWorkers)}, weights_);
    const at::NoGradGuard no_grad;
    for (at::Tensor& gradient : gradients) gradient = gradient.reshape({-1});
    Tensors flat{at::cat(gradients)};
    group_->allreduce(flat)->wait();
    std::int64_t first = 0;
    for (at::Tensor& weight : weights_) {
      weight.sub_(flat[0].narrow(0, first, weight.numel()).view_as(weight), kRate);
      first += weight.numel();
    }
  }
  Tensors weights() const override { return weights_; }

 private:
  const Tensors batch_;
  Tensors weights_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
};
#endif

using Strategies = std::vector<std::unique_ptr<MultiWorkerMirroredStrategy>>;

double sum_of(const Tensors& weights) {
  double sum = 0;
  for (const at::Tensor& weight : weights) sum += at::abs(weight).sum(at::kDouble).item<double>();
  return sum;
}

// Two processes of Python, of which this program talks to one. The other worker has none, and waits
// in its next step.
struct Peer {
  std::string name;  // of the peer
  PythonPeer* python = nullptr;
  // A request with the least steps of it; what it measures; how many steps it counts as.
  struct Way {
    std::string request;
    std::string title;
    int steps = 1;
  };
  std::vector<Way> ways = {};
};

// Gives the peer the weights and all rows, trains `steps` steps, and compares the weights.
void prepare(const Peer& peer, const Network& network, int steps, const Tensors& expected) {
  const std::string path = workers()->store() + ".problem";
  Tensors all = weights_of(network);
  for (int worker = 0; worker < kWorkers; ++worker) {
    for (const at::Tensor& rows : batch_of(network, worker)) all.push_back(rows.to(at::kFloat));
  }
  std::ofstream file(path, std::ios::binary);
  for (const at::Tensor& values : all)
    file.write(static_cast<const char*>(values.contiguous().data_ptr()),
               static_cast<std::streamsize>(values.nbytes()));
  file.close();
  std::string widths;
  for (const std::int64_t width : network.widths)
    widths += (widths.empty() ? "" : ",") + std::to_string(width);
  peer.python->measure("load " + path + " " + widths);
  const double sum = peer.python->measure("train " + std::to_string(steps));
  const double right = sum_of(expected);
  require(std::abs(sum - right) <= 1e-5 * right, network.title + ": " + peer.name);
  std::filesystem::remove(path);
}

void add_ways(std::vector<Contender>& contenders, const Peer& peer, const Network& network) {
  for (const Peer::Way& way : peer.ways) {
    const std::string request =
        way.request + " " + std::to_string(std::max(1, network.steps / way.steps));
    contenders.push_back({way.title, [python = peer.python, request, each = way.steps] {
                            return python->measure(request) / each;
                          }});
  }
}

void compare(const Bench& bench, const Network& network, const Strategies& strategies,
             const std::vector<Peer>& peers) {
  if (!bench.wants(network.title)) return;
  Plain alone(network, own_worker());
  Workers traced(network, *strategies.front(), true);
  std::vector<std::unique_ptr<Workers>> eager;
  std::vector<std::pair<std::string, Training*>> all = {{"one process alone, its own rows", &alone},
                                                        {"function()", &traced}};
  for (std::size_t i = 0; i < std::size(kWays); ++i) {
    eager.push_back(std::make_unique<Workers>(network, *strategies[i], false));
    all.emplace_back(kWays[i].name, eager.back().get());
  }
#ifdef COHORT_BENCH_HAS_GLOO
  FlatOverGloo gloo(network, workers()->store() + std::to_string(network.widths.size()));
  all.emplace_back("c10d on Gloo, one tensor", &gloo);
#endif
  // Also the steps in which workers agree on what they send.
  const int num_checked = std::max(4, network.steps / 25);
  for (int i = 0; i < num_checked; ++i) {
    for (const auto& [name, training] : all) training->step();
  }
  for (std::size_t i = 0; i < std::size(kWays); ++i) {
    require(are_close(traced.weights(), eager[i]->weights(), 0),
            network.title + ": function() and " + kWays[i].name);
  }
#ifdef COHORT_BENCH_HAS_GLOO
  require(are_close(gloo.weights(), traced.weights(), 1e-5), network.title + ": Gloo");
#endif
  for (const Peer& peer : peers) prepare(peer, network, num_checked, traced.weights());
  std::vector<Contender> contenders;
  for (const auto& [name, training] : all) {
    contenders.push_back({name, [&network, training = training] {
                            const double seconds = seconds_of([&] {
                              for (int step = 0; step < network.steps; ++step) training->step();
                            });
                            return 1e6 * seconds / network.steps;
                          }});
  }
  for (const Peer& peer : peers) add_ways(contenders, peer, network);
  bench.compare(network.title, {.unit = "us", .baseline = 1}, contenders);
}

// 161 tensors, 102 MB: about the parameters of a ResNet-50.
Network many_layers() {
  std::vector<std::int64_t> widths(81, 565);
  widths.back() = 10;
  return {"workers: 80 layers, 102 MB", widths, 5};
}

void run(const Bench& bench) {
  at::set_num_threads(1);
  Strategies strategies;
  for (std::size_t i = 0; i < std::size(kWays); ++i) {
    workers()->use_cluster(i);
    strategies.push_back(std::make_unique<MultiWorkerMirroredStrategy>(
        TfConfigResolver{},
        MultiWorkerMirroredOptions{.backend = kWays[i].backend,
                                   .overlaps_communication = kWays[i].overlaps}));
  }
  std::unique_ptr<PythonPeer> torch, tensorflow;
  std::vector<Peer> peers;
  if (own_worker() == 0) {
    const std::string scripts = COHORT_PEERS;
    torch = PythonPeer::start(PythonPeer::torch(), scripts + "/torch_workers.py");
    tensorflow = PythonPeer::start(PythonPeer::tensorflow(), scripts + "/tf_workers.py");
    if (torch)
      peers.push_back({"DDP",
                       torch.get(),
                       {{"ddp", "PyTorch's DDP on Gloo"}, {"alone", "DDP without its reduction"}}});
    else
      std::printf("no DDP: there is no %s (bench/README.md)\n", PythonPeer::torch().c_str());
    if (tensorflow)
      peers.push_back(
          {"MWMS",
           tensorflow.get(),
           {{"call", "TensorFlow's MWMS, a call a step"}, {"graph", "MWMS, 50 steps a call", 50}}});
    else
      std::printf("no MWMS: there is no %s (bench/README.md)\n", PythonPeer::tensorflow().c_str());
  }
  compare(bench, {"workers: MLP 64-64-64-10", {64, 64, 64, 10}, 500}, strategies, peers);
  if (tensorflow) peers.pop_back();  // the large network is compared with DDP alone
  tensorflow.reset();
  compare(bench, many_layers(), strategies, peers);
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  using namespace cohort::bench;
  return cohort::run_main(argc, argv, [&](const cohort::Arguments&) {
    const TwoWorkers both(argc, argv, std::size(kWays));
    workers() = &both;
    cohort::bench::run(Bench(both.argc(), argv));
    both.wait();
    return 0;
  });
}
