// SPDX-License-Identifier: Apache-2.0
// A training that stops at a random step and goes on from its checkpoint has the bits of one that
// never stopped: with dropout, batch statistics, a schedule, shuffled data and partial batches.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/data/dataset.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/testing/temporary_folder.h"

namespace cohort {
namespace {

constexpr std::int64_t kRows = 54, kBatch = 8, kSteps = 24;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(6, 16))),
        norm(register_module("norm", torch::nn::BatchNorm1d(16))),
        dropout(register_module("dropout", torch::nn::Dropout(0.3))),
        last(register_module("last", torch::nn::Linear(16, 1))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return last(dropout(torch::relu(norm(first(x)))));
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout dropout;
  torch::nn::Linear last;
};
TORCH_MODULE(Net);

struct Kind {
  int replicas;
  bool is_torch;  // TorchOptimizer, else cohort::Adam with a schedule
};

// One process of a training.
class Training {
 public:
  explicit Training(const Kind& kind)
      : strategy_(devices(kind.replicas)),
        net_(strategy_.replicate([] { return Net(); })),
        data_(strategy_.distribute_dataset(
            Dataset::range(kRows).shuffle(kRows, {.seed = 3}).batch(kBatch))),
        iterator_(data_.iterator()) {
    if (kind.is_torch) {
      torch_.emplace(net_, [](std::vector<at::Tensor> parameters) {
        return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(0.01));
      });
    } else {
      adam_.emplace(net_.parameters(),
                    AdamOptions{.learning_rate = LearningRateSchedule([](std::int64_t step) {
                                  return 0.02 / (1.0 + 0.1 * double(step));
                                })});
    }
    checkpoint_.emplace(strategy_);
    checkpoint_->add("step", step_).add("pass", data_).add("data", iterator_);
  }
  // Trains until the step of this number.
  void train(std::int64_t until) {
    for (; step_ < until; ++step_) {
      std::optional<DistributedElement> batch = iterator_.try_next();
      if (!batch) {
        iterator_ = data_.iterator();
        batch = iterator_.try_next();
      }
      strategy_.run([this](const Nest& ids) { step(ids.tensor()); }, *batch);
    }
  }
  void save(const std::string& path) const { checkpoint_->write(path, step_); }
  void restore(const std::string& path) { checkpoint_->read(path).assert_consumed(); }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> values;
    for (const Variable& each : net_.variables()) values.push_back(each.read().clone());
    return values;
  }

 private:
  static std::vector<std::string> devices(int count) {
    std::vector<std::string> devices;
    for (int i = 0; i < count; ++i) devices.push_back("CPU:" + std::to_string(i));
    return devices;
  }
  void step(const at::Tensor& ids) {
    const at::Tensor x =
        torch::sin(ids.to(torch::kFloat).unsqueeze(1) * torch::arange(1, 7, torch::kFloat));
    const at::Tensor losses = (net_->forward(x) - x.sum(1, true)).square().sum(1);
    const at::Tensor loss = average_loss(losses);
    torch_ ? torch_->minimize(loss) : adam_->minimize(loss);
  }

  MirroredStrategy strategy_;
  Replicated<Net> net_;
  DistributedDataset data_;
  DistributedIterator iterator_;
  std::optional<TorchOptimizer<torch::optim::Adam>> torch_;
  std::optional<Adam> adam_;
  std::int64_t step_ = 0;
  std::optional<Checkpoint> checkpoint_;
};

class ResumedTraining : public ::testing::TestWithParam<Kind> {};

TEST_P(ResumedTraining, HasTheBitsOfOneThatNeverStopped) {
  torch::manual_seed(5);
  Training whole(GetParam());
  whole.train(kSteps);
  std::mt19937 random(11);
  for (int trial = 0; trial < 4; ++trial) {
    const auto stop = static_cast<std::int64_t>(random() % kSteps);
    SCOPED_TRACE(stop);
    const testing::TemporaryFolder folder;
    {
      torch::manual_seed(5);
      Training first(GetParam());
      first.train(stop);
      first.save(folder.file("c"));
      first.train(stop + 2);  // lost
    }
    torch::manual_seed(99);
    Training second(GetParam());
    second.restore(folder.file("c"));
    second.train(kSteps);
    const std::vector<at::Tensor> expected = whole.values(), got = second.values();
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(torch::equal(expected[i], got[i])) << "tensor " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ResumedTraining,
                         ::testing::Values(Kind{1, false}, Kind{2, false}, Kind{3, false},
                                           Kind{1, true}, Kind{2, true}));

}  // namespace
}  // namespace cohort
