// SPDX-License-Identifier: Apache-2.0
// Workers that are in different calls: all hear at once who is where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "cohort/data/dataset.h"
#include "cohort/input/distributed_dataset.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/synchronous/workers/workers_fixture.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::run_workers;
using testing::text_of;

// Both workers get an error with all these texts.
void expect_on_both(const std::function<void(MultiWorkerMirroredStrategy&)>& body,
                    const std::vector<std::string>& texts) {
  for (const auto& error : run_workers(2, {}, body)) {
    for (const std::string& text : texts) EXPECT_THAT(text_of(error), HasSubstr(text));
  }
}

void train_once(MultiWorkerMirroredStrategy& strategy, const Variable& v) {
  const SGD sgd({v}, {.learning_rate = 1.0});
  strategy.run([&] { sgd.minimize(v.tensor().sum()); });
}

// Regression: iterators exchanged in an order of their own, so that a worker in one of them and
// another one in a call of the strategy waited for the timeout.
TEST(MultiWorkerCalls, NameTheCallsOfWorkersThatAreInDifferentOnes) {
  struct Case {
    const char* name;
    std::function<void(MultiWorkerMirroredStrategy&, DistributedIterator&)> alone;  // worker 0
    std::string text;
  };
  const std::string here = " at multi_worker_calls_test.cpp:";
  const std::vector<Case> cases = {
      {"replicate",
       [](auto& strategy, auto&) {
         strategy.replicate([] { return torch::nn::Linear(2, 1); }, {.name = "made_by_one"});
       },
       "module 'made_by_one'"},
      {"reduce", [](auto& strategy, auto&) { strategy.reduce("sum", at::ones({})); },
       "worker:0 is in reduce(), worker:1 draws from an iterator"},
      {"evaluation",
       [](auto& strategy, auto&) {
         strategy.distribute_dataset(Dataset::range(4).batch(2)).iterator();
       },
       "worker:0 starts an iterator" + here},
      {"break",
       [](auto& strategy, auto&) {
         const Variable v = strategy.variable("v", at::ones({1}));
         train_once(strategy, v);
       },
       "variable 'v'"},
      {"position", [](auto&, auto& iterator) { iterator.save(); },
       "worker:0 saves the position of an iterator, worker:1 draws from an iterator"},
  };
  // The workers agree in each step on a dataset that may fail.
  const Dataset may_fail =
      Dataset::range(40).batch(2).map(Function([](at::Tensor x) { return x; }));
  for (const Case& each : cases) {
    expect_on_both(
        [&](auto& strategy) {
          const auto dataset = strategy.distribute_dataset(may_fail);
          DistributedIterator iterator = dataset.iterator();
          iterator.get_next();
          if (strategy.worker() == 0) {
            each.alone(strategy, iterator);
          } else {
            iterator.get_next();
          }
        },
        {"invalid_argument", "expected one call on all workers", each.text,
         "worker:1 draws from an iterator"});
  }
}

// Regression: where one worker left out a run, later steps added gradients of parts of different
// batches, without a word until the next call that both made.
TEST(MultiWorkerCalls, NameAStepWithAnotherBatch) {
  for (const bool is_traced : {false, true}) {
    SCOPED_TRACE(is_traced ? "function()" : "run()");
    expect_on_both(
        [&](auto& strategy) {
          const Variable v = strategy.variable("v", at::ones({}));
          const SGD sgd({v}, {.learning_rate = 1.0});
          const auto step = [&](const at::Tensor& rows) {
            sgd.minimize(v.tensor() * rows.to(at::kFloat).sum());
          };
          auto traced = strategy.function(step);
          const auto dataset = strategy.distribute_dataset(Dataset::range(16).batch(4));
          DistributedIterator iterator = dataset.iterator();
          for (int i = 0; i < 4; ++i) {
            const DistributedElement batch = iterator.get_next();
            if (i == 2 && strategy.worker() == 1) continue;
            if (is_traced) {
              traced(batch);
            } else {
              strategy.run(step, batch);
            }
            EXPECT_LT(i, 3);
          }
        },
        {"a step after 3 elements of distributed datasets on worker:0",
         "a step after 4 elements of distributed datasets on worker:1"});
  }
}

TEST(MultiWorkerCalls, NameASnapshotOfOneWorker) {
  expect_on_both(
      [](auto& strategy) {
        const auto net = strategy.replicate([] { return torch::nn::Linear(2, 1); });
        const auto dataset = strategy.distribute_dataset(Dataset::range(8).batch(2));
        if (strategy.worker() == 0) net.snapshot();
        for (const auto& batch : dataset) strategy.run([](const at::Tensor&) {}, batch);
      },
      {"worker:0 is in snapshot() at multi_worker_calls_test.cpp:",
       ", worker:1 starts an iterator at multi_worker_calls_test.cpp:"});
}

TEST(MultiWorkerCalls, NameWorkersInDifferentIterators) {
  const Dataset may_fail =
      Dataset::range(40).batch(2).map(Function([](at::Tensor x) { return x; }));
  expect_on_both(
      [&](auto& strategy) {
        const auto dataset = strategy.distribute_dataset(may_fail);
        DistributedIterator first = dataset.iterator(), second = dataset.iterator();
        (strategy.worker() == 0 ? first : second).get_next();
      },
      {"got the next step of iterator 1 on worker:0 and the next step of iterator 2 on worker:1"});
}

// Regression: the values became different, or the loss had no gradient, and the messages told of
// optimizers of LibTorch and of variables on servers.
TEST(MultiWorkerCalls, MinimizeBelongsInRun) {
  const std::vector<std::string> texts = {
      "[optimizer.minimize] expected a call in run() for variable 'v', which each of 2 workers has",
      "call minimize() in the function that run() gets"};
  for (const bool is_reduced : {false, true}) {
    expect_on_both(
        [&](auto& strategy) {
          const Variable v = strategy.variable("v", at::ones({}));
          const SGD sgd({v}, {.learning_rate = 1.0});
          const PerReplica<at::Tensor> loss = strategy.run([&] { return v.tensor() * 2; });
          sgd.minimize(is_reduced ? strategy.reduce("sum", loss) : loss.local_results()[0]);
        },
        texts);
  }
  expect_on_both(
      [](auto& strategy) {
        const Variable v = strategy.variable("v", at::ones({}));
        const SGD sgd({v}, {.learning_rate = 1.0});
        strategy.run([&] {
          get_replica_context()->merge_call([&](Strategy&) { sgd.minimize(v.tensor() * 2); });
        });
      },
      texts);
}

// Regression: "all_reduce(sum) of tensor 1 1", which the program does not call.
TEST(MultiWorkerCalls, AverageLossIsNamed) {
  expect_on_both(
      [](auto& strategy) {
        const Variable v = strategy.variable("v", at::ones({}));
        const SGD sgd({v}, {.learning_rate = 1.0});
        strategy.run([&] {
          if (strategy.worker() == 1) return sgd.minimize(v.tensor() * 2);
          sgd.minimize(average_loss((v.tensor() * at::ones({3}))));
        });
      },
      {"expected one call on all workers, got average_loss() on worker:0 and ", " on worker:1"});
}

}  // namespace
}  // namespace cohort
