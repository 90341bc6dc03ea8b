// SPDX-License-Identifier: Apache-2.0
// Workers that do not do the same: all get the same error, with names, and nobody waits.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/synchronous/workers/workers_fixture.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/variable/saved_values.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_workers;
using testing::text_of;
using testing::WorkersOptions;

using Body = std::function<void(MultiWorkerMirroredStrategy&)>;

// Both workers get an error with all these texts.
void expect_on_both(const Body& body, const std::vector<std::string>& texts,
                    const WorkersOptions& options = {}) {
  const auto errors = run_workers(2, options, body);
  for (const auto& error : errors) {
    for (const std::string& text : texts) EXPECT_THAT(text_of(error), HasSubstr(text));
  }
}

void train_once(MultiWorkerMirroredStrategy& strategy, const Variable& v) {
  const SGD sgd({v}, {.learning_rate = 1.0});
  strategy.run([&] { sgd.minimize(v.tensor().sum()); });
}

// Regression: the first worker's learning rate was used, and that of the others was lost.
TEST(MultiWorkerErrors, NameHyperparametersThatDiffer) {
  expect_on_both(
      [](MultiWorkerMirroredStrategy& strategy) {
        const Variable v = strategy.variable("v", at::ones({}));
        SGD sgd({v}, {.learning_rate = 0.1});
        const auto step = [&] { strategy.run([&] { sgd.minimize(v.tensor().sum()); }); };
        step();
        step();
        if (strategy.worker() == 1) sgd.set_hyperparameter("learning_rate", 0.2);
        step();
      },
      {"expected one call on all workers, got optimizer 'sgd': learning_rate 0.1, weight_decay 0 "
       "on worker:0 and optimizer 'sgd': learning_rate 0.2, weight_decay 0 on worker:1"});
  expect_on_both(
      [](MultiWorkerMirroredStrategy& strategy) {
        const Variable v = strategy.variable("v", at::ones({}));
        const SGD sgd({v}, {.learning_rate = strategy.worker() == 0 ? 0.1 : 0.3});
        strategy.run([&] { sgd.minimize(v.tensor().sum()); });
      },
      {"learning_rate 0.1", "learning_rate 0.3"});
  expect_on_both(
      [](MultiWorkerMirroredStrategy& strategy) {
        const Variable v = strategy.variable("v", at::ones({}));
        const double momentum = strategy.worker() == 0 ? 0.9 : 0.5;
        const SGD sgd({v}, {.learning_rate = 0.1, .momentum = momentum});
        strategy.function([&] { sgd.minimize(v.tensor().sum()); })();
      },
      {"learning_rate 0.1, momentum 0.9, weight_decay 0 on worker:0",
       "learning_rate 0.1, momentum 0.5, weight_decay 0 on worker:1"});
}

// Regression: with a constant rate nobody noticed it.
TEST(MultiWorkerErrors, NameOtherNumbersOfUpdates) {
  for (const int when : {0, 3}) {
    for (const bool is_traced : {false, true}) {
      expect_on_both(
          [&](MultiWorkerMirroredStrategy& strategy) {
            const Variable v = strategy.variable("v", at::ones({}));
            SGD sgd({v}, {.learning_rate = 0.1, .name = "sgd"});
            const auto traced = strategy.function([&] { sgd.minimize(v.tensor().sum()); });
            for (int step = 0; step < 9; ++step) {
              if (step == when && strategy.worker() == 1) sgd.set_iterations(50);
              if (is_traced) {
                traced();
              } else {
                strategy.run([&] { sgd.minimize(v.tensor().sum()); });
              }
            }
          },
          {"expected one call on all workers, got sgd of 'v' after ",
           "on worker:0 and sgd of 'v' after 5", "on worker:1"});
    }
  }
}

// Regression: LibTorch's error came when the sum was first assigned.
TEST(MultiWorkerErrors, RefuseASumOfBools) {
  expect_on_both(
      [](MultiWorkerMirroredStrategy& strategy) {
        strategy.variable("seen", at::zeros({}, at::kBool),
                          {.synchronization = VariableSynchronization::on_read,
                           .aggregation = VariableAggregation::sum});
      },
      {"expected a variable of numbers for on_read with aggregation sum, got bool[]", "'seen'",
       "use int64"});
}

TEST(MultiWorkerErrors, NameTheFirstDifferenceOfVariables) {
  const auto make = [](const std::string& name, const at::Tensor& value,
                       const VariableOptions& options = {}) {
    return std::function<void(MultiWorkerMirroredStrategy&)>(
        [=](MultiWorkerMirroredStrategy& strategy) { strategy.variable(name, value, options); });
  };
  const Body usual = make("v", at::ones({2}));
  const auto expect = [&](const Body& other, const std::string& text) {
    expect_on_both(
        [&](auto& strategy) { strategy.worker() == 0 ? usual(strategy) : other(strategy); },
        {"[strategy.variable] expected one call on all workers", "variable 'v' float32[2]",
         "on worker:0 and", text, "on worker:1", "make the same calls in the same order on each"});
  };
  expect(make("w", at::ones({2})), "variable 'w' float32[2]");
  expect(make("v", at::ones({3})), "variable 'v' float32[3]");
  expect(make("v", at::ones({2}, at::kDouble)), "variable 'v' float64[2]");
  expect(make("v", at::ones({2}), {.aggregation = VariableAggregation::sum}), "aggregation sum");
}

TEST(MultiWorkerErrors, AreThoseOfTheWorkerThatCannotMakeAVariable) {
  expect_on_both(
      [](auto& strategy) {
        if (strategy.worker() == 0) {
          const Variable v = strategy.variable("v", at::ones({2}));
          strategy.variable("v", at::ones({2}));
        } else {
          const Variable v = strategy.variable("v", at::ones({2}));
          strategy.variable("w", at::ones({2}));
        }
      },
      {"expected a new name, got 'v'", "worker:0"});
}

TEST(MultiWorkerErrors, NameAnotherStep) {
  expect_on_both(
      [](auto& strategy) {
        const Variable v = strategy.variable("v", at::ones({2}));
        const Variable w = strategy.variable("w", at::ones({2}));
        train_once(strategy, strategy.worker() == 0 ? v : w);
      },
      {"expected one call on all workers", "variable 'v' float32[2] on worker:0",
       "variable 'w' float32[2] on worker:1"});
  expect_on_both(
      [](auto& strategy) {
        const Variable v = strategy.variable("v", at::ones({2}));
        const SGD sgd({v}, {.learning_rate = 1.0});
        const Adam adam({v}, {.learning_rate = 1.0});
        strategy.run([&] {
          strategy.worker() == 0 ? sgd.minimize(v.tensor().sum()) : adam.minimize(v.tensor().sum());
        });
      },
      {"apply_gradients(sgd) on worker:0", "apply_gradients(adam) on worker:1"});
  // In later steps, which are one all_reduce().
  expect_on_both(
      [](auto& strategy) {
        const Variable v = strategy.variable("v", at::ones({2}));
        const Variable w = strategy.variable("w", at::ones({2}));
        const SGD of_v({v}, {.learning_rate = 1.0}), of_w({w}, {.learning_rate = 1.0});
        for (int step = 0; step < 3; ++step) {
          strategy.run([&] { of_v.minimize(v.tensor().sum()); });
          strategy.run([&] { of_w.minimize(w.tensor().sum()); });
        }
        strategy.run([&] {
          strategy.worker() == 0 ? of_v.minimize(v.tensor().sum())
                                 : of_w.minimize(w.tensor().sum());
        });
      },
      {"variable 'v' float32[2] on worker:0", "variable 'w' float32[2] on worker:1"});
}

TEST(MultiWorkerErrors, OfOneReplicaReachAllAndNobodyUpdates) {
  for (const int replicas : {1, 2}) {
    std::vector<double> values(2);
    expect_on_both(
        [&](auto& strategy) {
          const Variable v = strategy.variable("v", at::ones({}));
          const SGD sgd({v}, {.learning_rate = 1.0});
          for (int step = 0; step < 2; ++step) strategy.run([&] { sgd.minimize(v.tensor() * 1); });
          const auto fail = [&] {
            strategy.run([&] {
              const int last = strategy.num_replicas_in_sync() - 1;
              if (get_replica_context()->replica_id_in_sync_group() == last)
                throw std::runtime_error("no data");
              sgd.minimize(v.tensor() * 1);
            });
          };
          EXPECT_ANY_THROW(fail());
          values[static_cast<std::size_t>(strategy.worker())] = v.read().template item<double>();
          // The workers can go on.
          strategy.run([&] { sgd.minimize(v.tensor() * 1); });
          fail();
        },
        {"no data"}, {.replicas = replicas});
    EXPECT_EQ(values, std::vector<double>(2, 1 - 2.0 * 2 * replicas));
  }
}

// Regression: it told nobody, and the others waited for it until the timeout.
TEST(MultiWorkerErrors, OfARunThatCannotBeginReachAll) {
  const auto body = [](MultiWorkerMirroredStrategy& strategy) {
    const Variable v = strategy.variable("v", at::ones({2}));
    const Variable w = strategy.variable("w", at::ones({2}));
    try {
      strategy.run([&] {
        const c10::NoGradGuard no_grad;
        const bool is_bad = get_replica_context()->replica_id_in_sync_group() == 2;
        if (is_bad) w.tensor().mul_(2);
        COHORT_CHECK(!is_bad, ErrorCode::internal, "the first error");
        get_replica_context()->all_reduce(ReduceOp::sum, at::ones({}));
      });
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the first error"));
    }
    train_once(strategy, v);
  };
  expect_on_both(body, {"updated only some of them"}, {.replicas = 2});
}

TEST(MultiWorkerErrors, NameTheWorkerThatFailed) {
  const auto errors = run_workers(2, {}, [](auto& strategy) {
    const Variable v = strategy.variable("v", at::ones({}));
    const SGD sgd({v}, {.learning_rate = 1.0});
    strategy.run([&] {
      if (strategy.worker() == 1) throw std::runtime_error("no data");
      sgd.minimize(v.tensor() * 1);
    });
  });
  EXPECT_THAT(text_of(errors[0]), AllOf(HasSubstr("no data"), HasSubstr("worker:1")));
  EXPECT_THAT(text_of(errors[1]), HasSubstr("no data"));
}

// Regression: neither the limit nor what sets it was named.
TEST(MultiWorkerErrors, NameTheWorkerThatDoesNotCome) {
  std::atomic<bool> has_ended = false;
  const auto errors =
      run_workers(2, {.timeout = std::chrono::milliseconds(200)}, [&](auto& strategy) {
        if (strategy.worker() == 0) {
          const auto notify = [&] {
            has_ended = true;
            has_ended.notify_all();
          };
          try {
            strategy.variable("v", at::ones({}));
          } catch (...) {
            notify();
            throw;
          }
          notify();
        } else {
          has_ended.wait(false);
        }
      });
  EXPECT_THAT(text_of(errors[0]), AllOf(HasSubstr("deadline_exceeded"), HasSubstr("worker:1"),
                                        HasSubstr("waiting 0.2 s in variable, the limit of "
                                                  "MultiWorkerMirroredOptions::timeout"),
                                        HasSubstr("call rebuild() on each")));
}

TEST(MultiWorkerErrors, TellThatAWorkerHasLeft) {
  const auto errors = run_workers(2, {}, [&](auto& strategy) {
    const Variable v = strategy.variable("v", at::ones({}));
    if (strategy.worker() == 0) train_once(strategy, v);
  });
  EXPECT_THAT(text_of(errors[0]), HasSubstr("worker:1"));
}

TEST(MultiWorkerErrors, RefuseOtherNumbersOfReplicas) {
  const InProcessWorkers workers(2);
  std::vector<std::exception_ptr> errors(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        MultiWorkerMirroredStrategy strategy(workers.group(rank),
                                             {.devices = testing::cpu_devices(rank + 1)});
        strategy.variable("v", at::ones({}));
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors) {
    EXPECT_THAT(text_of(error), HasSubstr("got 1 on worker:0 and 2 on worker:1; give all workers "
                                          "as many devices"));
  }
}

TEST(MultiWorkerErrors, TellThatVariablesHaveBecomeDifferent) {
  expect_on_both(
      [](auto& strategy) {
        const Variable v = strategy.variable("v", at::ones({2}));
        const SGD sgd({v}, {.learning_rate = 1.0});
        for (int step = 0; step < 8; ++step) {
          if (step == 2 && strategy.worker() == 1) v.assign(at::zeros({2}));
          strategy.run([&] { sgd.minimize(v.tensor().sum()); });
        }
      },
      {"expected equal values of variable 'v' on all workers", "worker:1", "restore"});
}

// Regression: with one replica on each worker, what all had read together was reduced again.
TEST(MultiWorkerVariables, AreReducedAndGatheredAsTheValuesOfReplicas) {
  const auto errors = run_workers(4, {}, [](auto& strategy) {
    const Variable count = strategy.variable("count", at::zeros({1}),
                                             {.synchronization = VariableSynchronization::on_read,
                                              .aggregation = VariableAggregation::sum});
    strategy.run([&] {
      const int replica = get_replica_context()->replica_id_in_sync_group();
      count.assign_add(at::full({1}, static_cast<double>(replica + 1)));
    });
    EXPECT_TRUE(strategy.reduce(ReduceOp::sum, count).equal(at::full({1}, 10.0)));
    EXPECT_TRUE(strategy.reduce(ReduceOp::mean, count).equal(at::full({1}, 2.5)));
    EXPECT_TRUE(strategy.gather(count, 0).equal(at::arange(1, 5, at::kFloat)));
    const Variable same = strategy.variable("same", at::full({1}, 0.1));
    EXPECT_TRUE(strategy.reduce(ReduceOp::mean, same).equal(at::full({1}, 0.1)));
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

// Regression: each worker wrote the file.
TEST(MultiWorkerVariables, AreSavedByTheFirstWorkerAlone) {
  const testing::TemporaryFolder folder;
  const auto errors = run_workers(2, {}, [&](auto& strategy) {
    const Variable v = strategy.variable("v", at::ones({1}));
    save_values(folder.file("of_" + std::to_string(strategy.worker())), {{"v", v}});
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
  EXPECT_THAT(folder.names(), ::testing::ElementsAre("of_0"));
}

// Regression: it failed on the first worker alone.
TEST(MultiWorkerErrors, OfTheFirstWorkersFileReachAll) {
  expect_on_both(
      [](auto& strategy) {
        const Variable v = strategy.variable("v", at::ones({1}));
        save_values("/no such folder/values", {{"v", v}});
      },
      {"not_found", "/no such folder/values"});
}

// Regression: values were compared in the steps 1, 2, 4, 8, … only, so 5 and 6 trained on.
TEST(MultiWorkerErrors, TellThatOneWorkerHasWrittenBeforeAStep) {
  const std::vector<std::function<void(const Variable&)>> writes = {
      [](const Variable& v) { v.assign(at::zeros({2})); },
      [](const Variable& v) {
        SGD({v}, {.learning_rate = 1.0, .name = "alone"}).apply_gradients({{at::ones({2}), v}});
      },
      [](const Variable& v) {
        const c10::NoGradGuard no_grad;
        v.tensor().mul_(2);
      },
  };
  for (const WorkersOptions& options : {WorkersOptions{}, WorkersOptions{.replicas = 2}}) {
    for (const auto& write : writes) {
      for (const bool is_traced : {false, true}) {
        for (const int when : {0, 1, 4, 5}) {
          expect_on_both(
              [&](auto& strategy) {
                const Variable v = strategy.variable("v", at::ones({2}));
                const SGD sgd({v}, {.learning_rate = 1.0});
                const auto train = [&] { sgd.minimize(v.tensor().sum()); };
                const auto traced = strategy.function(train);
                for (int step = 0; step <= when; ++step) {
                  if (step == when && strategy.worker() == 1) write(v);
                  is_traced ? traced() : strategy.run(train);
                }
              },
              {"expected equal values of variable 'v' on all workers"}, options);
        }
      }
    }
  }
}

TEST(MultiWorkerVariables, MayBeWrittenAlikeBetweenSteps) {
  for (const bool shards : {false, true}) {
    const auto errors = run_workers(2, {.replicas = 2, .shards = shards}, [](auto& strategy) {
      const Variable v = strategy.variable("v", at::full({2}, 64.0));
      const SGD sgd({v}, {.learning_rate = 1.0});
      for (int step = 0; step < 7; ++step) {
        v.assign(v.read() / 2);
        strategy.run([&] { sgd.minimize(v.tensor().sum()); });
      }
      // Each step halves the value and subtracts the gradients of 4 replicas.
      EXPECT_TRUE(v.read().equal(at::full({2}, 64.0 / 128 - 8 + 8.0 / 128)));
    });
    for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
  }
}

TEST(MultiWorkerVariables, GetTheValueOfTheFirstWorker) {
  const auto errors = run_workers(3, {.replicas = 2}, [](auto& strategy) {
    const Variable v =
        strategy.variable("v", at::full({2}, static_cast<double>(strategy.worker() + 5)));
    EXPECT_TRUE(v.read().equal(at::full({2}, 5.0)));
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

}  // namespace
}  // namespace cohort
