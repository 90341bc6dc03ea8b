// SPDX-License-Identifier: Apache-2.0
// A training step of a small MLP in the replicas of one process, by run() and by function(), beside
// the same step without a strategy and in a loop of LibTorch alone. Also a step with many weights,
// whose gradients take longer to add.
#include <ATen/Parallel.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/mlp_training.h"
#include "bench/report.h"
#include "cohort/core/run_main.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/cpu_devices.h"

namespace cohort::bench {
namespace {

class WithoutStrategy final : public Training {
 public:
  explicit WithoutStrategy(const Network& network) : batch_(batch_of(network, 0)) {
    for (const at::Tensor& weight : weights_of(network))
      variables_.push_back(local_variable("v" + std::to_string(variables_.size()), weight));
    sgd_ = std::make_unique<SGD>(variables_, SGDOptions{.learning_rate = kRate});
  }
  void step() override { sgd_->minimize(loss_of(batch_[0], batch_[1], variables_)); }
  Tensors weights() const override { return values_of(variables_); }

 private:
  const Tensors batch_;
  std::vector<Variable> variables_;
  std::unique_ptr<SGD> sgd_;
};

class Replicas final : public Training {
 public:
  Replicas(const Network& network, int replicas, bool is_traced)
      : strategy_(testing::cpu_devices(replicas)), is_traced_(is_traced) {
    Tensors x, y;
    for (int i = 0; i < replicas; ++i) {
      const Tensors own = batch_of(network, i);
      x.push_back(own[0]);
      y.push_back(own[1]);
    }
    x_ = PerReplica<at::Tensor>(x);
    y_ = PerReplica<at::Tensor>(y);
    for (const at::Tensor& weight : weights_of(network))
      variables_.push_back(strategy_.variable("v" + std::to_string(variables_.size()), weight));
    sgd_ = std::make_unique<SGD>(variables_, SGDOptions{.learning_rate = kRate});
  }
  void step() override {
    if (is_traced_) {
      traced_(x_, y_);
    } else {
      strategy_.run(body_, x_, y_);
    }
  }
  Tensors weights() const override { return values_of(variables_); }

 private:
  using Body = std::function<void(const at::Tensor&, const at::Tensor&)>;

  MirroredStrategy strategy_;
  const bool is_traced_;
  std::vector<Variable> variables_;
  std::unique_ptr<SGD> sgd_;
  PerReplica<at::Tensor> x_, y_;
  const Body body_ = [this](const at::Tensor& x, const at::Tensor& y) {
    sgd_->minimize(loss_of(x, y, variables_));
  };
  const StrategyFunction<Body> traced_ = strategy_.function(body_);
};

void compare(const Bench& bench, const Network& network) {
  if (!bench.wants(network.title)) return;
  Plain plain(network, 0);
  WithoutStrategy alone(network);
  Replicas run_1(network, 1, false), function_1(network, 1, true);
  Replicas run_2(network, 2, false), function_2(network, 2, true);
  const std::vector<Training*> all = {&alone, &plain, &run_1, &function_1, &run_2, &function_2};
  for (int i = 0; i < 20; ++i) {
    for (Training* const training : all) training->step();
  }
  require(are_close(plain.weights(), alone.weights(), 1e-6), network.title + ": LibTorch alone");
  require(are_close(run_1.weights(), alone.weights(), 0), network.title + ": run(), 1 replica");
  require(are_close(function_1.weights(), alone.weights(), 0),
          network.title + ": function(), 1 replica");
  require(are_close(function_2.weights(), run_2.weights(), 0),
          network.title + ": function(), 2 replicas");
  const std::vector<std::string> names = {"our optimizer, no strategy", "LibTorch alone",
                                          "1 replica, run()",           "1 replica, function()",
                                          "2 replicas, run()",          "2 replicas, function()"};
  std::vector<Contender> contenders;
  for (std::size_t i = 0; i < all.size(); ++i) {
    contenders.push_back({names[i], [&network, training = all[i]] {
                            const double seconds = seconds_of([&] {
                              for (int step = 0; step < network.steps; ++step) training->step();
                            });
                            return 1e6 * seconds / network.steps;
                          }});
  }
  bench.compare(network.title, {.unit = "us"}, contenders);
}

void run(const Bench& bench) {
  // As many as one replica of two has on two cores.
  at::set_num_threads(1);
  compare(bench, {"replicas: MLP 64-64-64-10", {64, 64, 64, 10}, 1000});
  compare(bench, {"replicas: MLP 1024-2048-2048-10", {1024, 2048, 2048, 10}, 20});
}

}  // namespace
}  // namespace cohort::bench

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [&](const cohort::Arguments&) {
    cohort::bench::run(cohort::bench::Bench(argc, argv));
    return 0;
  });
}
