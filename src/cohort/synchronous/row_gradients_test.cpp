// SPDX-License-Identifier: Apache-2.0
// The sparse gradients of embeddings, in run() and in steps of function(), on one process and on
// several workers.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/replicas/reduction.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/synchronous/workers/workers_fixture.h"
#include "cohort/variable/row_gradient.h"

namespace cohort {
namespace {

using testing::run_workers;
using testing::Tensors;
using testing::text_of;

// So many rows that a traced step makes gradients sparse which would be dense.
constexpr std::int64_t kWords = 5000;

struct Words : torch::nn::Module {
  explicit Words(bool is_sparse)
      : words(register_module(
            "words",
            torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, 3).sparse(is_sparse)))),
        bags(register_module(
            "bags",
            torch::nn::EmbeddingBag(
                torch::nn::EmbeddingBagOptions(kWords, 3).mode(torch::kSum).sparse(is_sparse)))) {}
  at::Tensor forward(const at::Tensor& ids) { return words(ids).sum(1).tanh() * (bags(ids) + 1); }
  torch::nn::Embedding words;
  torch::nn::EmbeddingBag bags;
};

struct Job {
  int workers = 1;
  int replicas = 1;
  bool is_traced = false;
  bool shards = false;
  std::string to_string() const {
    return std::to_string(workers) + " workers, " + std::to_string(replicas) + " replicas" +
           (is_traced ? ", traced" : "") + (shards ? ", with shares" : "");
  }
};

using Make = std::function<Optimizer(const std::vector<Variable>&)>;

class RowGradientsOfReplicas : public ::testing::Test {
 protected:
  static Tensors train(SynchronousStrategy& strategy, bool is_sparse, bool is_traced,
                       const Make& make) {
    const auto model = strategy.replicate([&] { return Words(is_sparse); }, {.name = "words"});
    at::Generator generator = at::detail::createCPUGenerator(3);
    for (const Variable& variable : model.variables())
      variable.assign(at::randn(*variable.spec().sizes, generator));
    const Optimizer optimizer = make(model.parameters());
    const auto step = [&](const at::Tensor& ids) {
      optimizer.minimize((model->forward(ids) * 3).square().sum());
    };
    const auto traced = strategy.function(step);
    const std::int64_t all = strategy.num_replicas_in_sync();
    const auto local = static_cast<std::int64_t>(strategy.devices().size());
    for (int i = 0; i < 4; ++i) {
      // Few ids, so that most rows come several times, in one replica and in several.
      const at::Tensor ids = at::randint(0, 11, {all, 4, 3}, generator, at::kLong);
      std::vector<at::Tensor> own;
      for (std::int64_t r = 0; r < local; ++r) own.push_back(ids[strategy.worker() * local + r]);
      is_traced ? static_cast<void>(traced(PerReplica<at::Tensor>(own)))
                : static_cast<void>(strategy.run(step, PerReplica<at::Tensor>(own)));
    }
    return testing::values_of(model.variables());
  }
  static Tensors trained(const Job& job, bool is_sparse, const Make& make) {
    if (job.workers == 1) {
      MirroredStrategy one(testing::cpu_devices(job.replicas));
      return train(one, is_sparse, job.is_traced, make);
    }
    std::vector<Tensors> got(static_cast<std::size_t>(job.workers));
    const auto errors =
        run_workers(job.workers, {.replicas = job.replicas, .shards = job.shards}, [&](auto& s) {
          got[static_cast<std::size_t>(s.worker())] = train(s, is_sparse, job.is_traced, make);
        });
    for (const auto& error : errors) EXPECT_EQ(text_of(error), "") << job.to_string();
    for (const Tensors& other : got) expect_equal(other, got[0], job);
    return got[0];
  }
  static void expect_equal(const Tensors& got, const Tensors& expected, const Job& job) {
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(got[i].equal(expected[i])) << job.to_string() << ", tensor " << i;
  }
};

std::vector<Job> jobs() {
  std::vector<Job> jobs;
  for (const bool is_traced : {false, true}) {
    for (const int replicas : {1, 2, 3}) jobs.push_back({1, replicas, is_traced});
    for (const int workers : {2, 3}) jobs.push_back({workers, 1, is_traced});
    jobs.push_back({2, 2, is_traced});
    jobs.push_back({3, 1, is_traced, true});
  }
  return jobs;
}

TEST_F(RowGradientsOfReplicas, GiveTheBitsOfDenseOnes) {
  const std::vector<Make> optimizers = {
      [](const auto& all) { return SGD(all, {.learning_rate = 0.05}); },
      [](const auto& all) { return Adagrad(all, {.learning_rate = 0.1}); },
      [](const auto& all) { return Adam(all, {.learning_rate = 0.1}); }};
  for (const Job& job : jobs()) {
    for (const Make& make : optimizers) {
      const Tensors dense = trained(job, false, make);
      expect_equal(trained(job, true, make), dense, job);
      if (job.is_traced)
        expect_equal(dense, trained({job.workers, job.replicas, false, job.shards}, false, make),
                     job);
    }
  }
}

TEST_F(RowGradientsOfReplicas, LazyOnesAreTheSameHoweverTheReplicasAreSpread) {
  const Make make = [](const auto& all) {
    return Adam(all, {.learning_rate = 0.1, .lazy_rows = true});
  };
  for (const Job& job : jobs()) {
    if (job.shards) continue;
    const Job one{1, job.workers * job.replicas};
    expect_equal(trained(job, true, make), trained(one, true, make), job);
  }
}

// A batch of padding alone: the gradient has no rows, which is zero in all of them.
TEST_F(RowGradientsOfReplicas, WithoutRowsAreZeros) {
  const auto trained = [](SynchronousStrategy& strategy) {
    const Variable v = strategy.variable("v", torch::ones({4, 2}));
    const Adam adam({v}, {.learning_rate = 0.1});
    strategy.run([&] { adam.minimize(v.tensor().square().sum()); });
    const at::Tensor none =
        variable::row_gradient(torch::empty({0}, torch::kLong), torch::empty({0, 2}), {4, 2});
    for (int i = 0; i < 2; ++i) strategy.run([&] { adam.apply_gradients({{none, v}}); });
    return v.read();
  };
  MirroredStrategy one(testing::cpu_devices(2));
  const at::Tensor expected = trained(one);
  const auto errors = run_workers(2, {}, [&](auto& strategy) {
    EXPECT_TRUE(trained(strategy).equal(expected)) << "worker " << strategy.worker();
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

// Replica 0 goes on, and writes into its gradient, while replica 1 still reads the sum.
TEST_F(RowGradientsOfReplicas, HaveTheirSumInMemoryOfItsOwn) {
  const at::Tensor only =
      variable::summed_row_gradient(torch::tensor({1}, torch::kLong), torch::ones({1, 2}), {4, 2});
  const auto sum = internal::sum_of_gradient_parts({only, at::Tensor()}, "test");
  EXPECT_FALSE(sum.value.is_alias_of(variable::rows_of(only).values));
}

TEST_F(RowGradientsOfReplicas, LazyOnesAreNotUpdatedInShares) {
  const auto errors = run_workers(2, {.shards = true}, [](auto& strategy) {
    train(strategy, true, false,
          [](const auto& all) { return Adam(all, {.learning_rate = 0.1, .lazy_rows = true}); });
  });
  for (const auto& error : errors) {
    EXPECT_NE(text_of(error).find("leave out one of the two options"), std::string::npos)
        << text_of(error);
  }
}

}  // namespace
}  // namespace cohort
