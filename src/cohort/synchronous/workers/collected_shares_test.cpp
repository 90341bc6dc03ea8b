// SPDX-License-Identifier: Apache-2.0
// New groups of workers of which each has a share of the slots.
#include "cohort/synchronous/workers/collected_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/synchronous/workers/fake_groups.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/variable/saved_values.h"

namespace cohort {
namespace {

using testing::FakeFormations;
using ::testing::HasSubstr;
using SharedValues = std::vector<at::Tensor>;

// Two variables and Adam on each worker.
struct SharedProgram {
  explicit SharedProgram(MultiWorkerMirroredStrategy& its)
      : strategy(its),
        a(its.variable("a", at::ones({7}))),
        b(its.variable("b", at::zeros({2, 3}, at::kDouble))),
        adam({a, b}, {.learning_rate = 0.1, .name = "adam"}) {}

  void train_until(std::int64_t end) {
    while (adam.iterations() < end) {
      strategy.run([&] {
        const auto step = static_cast<double>(adam.iterations() + 1);
        const int id = get_replica_context()->replica_id_in_sync_group();
        adam.apply_gradients({{at::arange(7, at::kFloat) * (0.1 * step + id), a},
                              {at::full({2, 3}, step - id, at::kDouble), b}});
      });
    }
  }
  SharedValues values() const { return {a.read(), b.read()}; }
  std::int64_t elements_of_slots() const {
    std::int64_t elements = 0;
    for (const Variable& each : {a, b}) {
      for (const auto& [name, slots] : internal::target_of(each).variable.state(0).slots()) {
        for (const at::Tensor& tensor : slots.tensors) elements += tensor.numel();
      }
    }
    return elements;
  }

  MultiWorkerMirroredStrategy& strategy;
  Variable a, b;
  Adam adam;
};

class CollectedShares : public ::testing::Test {
 protected:
  std::unique_ptr<MultiWorkerMirroredStrategy> made(int task, bool shards) const {
    return testing::strategy_of_task(formations_, task,
                                     {.devices = {"CPU:0", "CPU:1"},
                                      .timeout = std::chrono::seconds(60),
                                      .shard_optimizer_state = shards});
  }
  // Runs `body` for each task at once.
  static void on_tasks(const std::set<int>& tasks, const std::function<void(int)>& body) {
    std::vector<std::exception_ptr> errors(tasks.size());
    std::vector<std::thread> threads;
    for (const int task : tasks) {
      threads.emplace_back([&, task, i = threads.size()] {
        try {
          body(task);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }
  // Two workers train, get a third one, and form one group more.
  std::vector<SharedValues> trained_by_more(bool shards) {
    std::vector<SharedValues> values(3);
    std::promise<void> promise;
    const std::shared_future<void> may_come(promise.get_future());
    std::atomic<int> ready = 0;
    formations_->expect({0, 1});
    on_tasks({0, 1, 2}, [&](int task) {
      if (task == 2) may_come.wait();
      const auto strategy = made(task, shards);
      SharedProgram program(*strategy);
      if (task < 2) {
        program.train_until(3);
        if (++ready == 2) {
          formations_->expect({0, 1, 2});
          promise.set_value();
        }
        may_come.wait();
        strategy->rebuild();
      }
      EXPECT_EQ(strategy->num_workers(), 3);
      program.train_until(6);
      strategy->rebuild();  // with the same workers
      program.train_until(8);
      values[static_cast<std::size_t>(task)] = program.values();
      EXPECT_LE(program.elements_of_slots(), shards ? 2 * (3 + 2) + 2 : 100);
    });
    return values;
  }

  const std::shared_ptr<FakeFormations> formations_ = std::make_shared<FakeFormations>();
};

TEST_F(CollectedShares, AreCutForTheWorkersOfTheNextGroup) {
  const std::vector<SharedValues> expected = trained_by_more(false);
  const std::vector<SharedValues> got = trained_by_more(true);
  for (std::size_t worker = 0; worker < 3; ++worker) {
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(got[worker][i].equal(expected[worker][i])) << worker << ", " << i;
  }
}

TEST_F(CollectedShares, AreRefusedWithoutThoseOfALostWorker) {
  const testing::TemporaryFolder folder;
  const std::string file = folder.file("values.safetensors");
  formations_->expect({0, 1, 2});
  std::promise<void> promise;
  const std::shared_future<void> is_lost(promise.get_future());
  std::atomic<int> ready = 0;
  on_tasks({0, 1, 2}, [&](int task) {
    const auto strategy = made(task, true);
    SharedProgram program(*strategy);
    program.train_until(3);
    if (++ready == 3) {
      formations_->expect({0, 2});
      promise.set_value();
    }
    is_lost.wait();
    if (task == 1) return;
    const SharedValues before = program.values();
    try {
      strategy->rebuild();
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_loss);
      EXPECT_FALSE(is_task_loss(error));
      // Regression: 64, as if another start would not help.
      EXPECT_EQ(exit_code_of(error), 75);
      EXPECT_THAT(error.what(), HasSubstr("got none of the shares of worker:1"));
      EXPECT_THAT(error.what(), HasSubstr("save_values()"));
    }
    const SharedValues after = program.values();
    for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(after[i].equal(before[i]));
    EXPECT_THROW(program.train_until(4), Error);
    if (task == 0) {
      save_values(file, {{"a", program.a}, {"b", program.b}});
      EXPECT_TRUE(SavedValues(file).value("a").equal(before[0]));
    }
  });
}

// Regression: the loss of a worker that had no slots was a loss of data.
TEST_F(CollectedShares, AreNotMissedWhereThereAreNoSlots) {
  formations_->expect({0, 1, 2});
  std::promise<void> promise;
  const std::shared_future<void> is_lost(promise.get_future());
  std::atomic<int> ready = 0;
  on_tasks({0, 1, 2}, [&](int task) {
    const auto strategy = made(task, true);
    const Variable v = strategy->variable("v", at::zeros({7}));
    const SGD sgd({v}, {.learning_rate = 1.0, .name = "sgd"});
    const auto train = [&] { strategy->run([&] { sgd.minimize(-v.tensor().sum()); }); };
    train();  // 6 replicas
    if (++ready == 3) {
      formations_->expect({0, 2});
      promise.set_value();
    }
    is_lost.wait();
    if (task == 1) return;
    strategy->rebuild();
    train();  // 4 replicas
    EXPECT_TRUE(v.read().equal(at::full({7}, 10.0)));
  });
}

}  // namespace
}  // namespace cohort
