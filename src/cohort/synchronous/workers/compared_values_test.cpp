// SPDX-License-Identifier: Apache-2.0
// Values of variables that are not those of the other workers are found before they are used.
#include "cohort/synchronous/workers/compared_values.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/synchronous/workers/workers_fixture.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::run_workers;
using testing::text_of;
using testing::WorkersOptions;

int replica_of_all() { return get_replica_context()->replica_id_in_sync_group(); }

const std::vector<WorkersOptions>& ways() {
  static const std::vector<WorkersOptions> all = {
      {},
      {.replicas = 2},
      {.shards = true},
      {.replicas = 2, .shards = true},
      {.bytes_per_pack = 8, .overlaps = true},
  };
  return all;
}

void expect_no_errors(const std::vector<std::exception_ptr>& errors) {
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

void add_in_place(const Variable& v, double number) {
  const c10::NoGradGuard no_grad;
  v.tensor().add_(number);
}

// Regression: a traced step counted the updates of its optimizer twice, so each step compared all
// values, which takes as long as reading them.
TEST(ComparedValues, AreThoseThatSomethingElseThanAnUpdateHasWritten) {
  for (const WorkersOptions& options : ways()) {
    for (const bool is_traced : {false, true}) {
      expect_no_errors(run_workers(2, options, [&](auto& strategy) {
        const Variable v = strategy.variable("v", at::zeros({4}));
        const SGD sgd({v}, {.learning_rate = 1.0});
        const auto update = [&] { sgd.minimize(v.tensor().sum()); };
        const auto assign = [&] { v.assign(at::ones({4})); };
        const auto traced_update = strategy.function(update);
        const auto traced_assign = strategy.function(assign);
        const auto is_doubted = [&] { return internal::target_of(v).variable.has_other_values(); };
        for (int i = 0; i < 3; ++i) {
          is_traced ? static_cast<void>(traced_update()) : static_cast<void>(strategy.run(update));
          EXPECT_FALSE(is_doubted()) << "step " << i << (is_traced ? ", traced" : "");
        }
        is_traced ? static_cast<void>(traced_assign()) : static_cast<void>(strategy.run(assign));
        EXPECT_TRUE(is_doubted()) << (is_traced ? "traced" : "");
      }));
    }
  }
}

// Regression: a plan without a step was taken for one whose gradients are added.
TEST(ComparedValues, ThatDifferInTheFirstStepLeaveTheNextOneRight) {
  for (const WorkersOptions& options : ways()) {
    for (const bool is_traced : {false, true}) {
      for (const bool is_clipped : {false, true}) {
        if (is_traced && is_clipped) continue;  // function() refuses it
        expect_no_errors(run_workers(2, options, [&](auto& strategy) {
          const Variable v = strategy.variable("v", at::zeros({4}));
          const SGD sgd({v}, {.learning_rate = 1.0});
          const auto body = [&] {
            const at::Tensor loss = v.tensor().sum() * (strategy.worker() + 1);
            if (!is_clipped) return sgd.minimize(loss);
            sgd.apply_gradients(clip_by_global_norm(sgd.compute_gradients(loss), 100.0).gradients);
          };
          const auto traced = strategy.function(body);
          const auto step = [&] { is_traced ? traced() : strategy.run(body); };
          if (strategy.worker() == 1) v.assign(at::ones({4}));
          EXPECT_THROW(step(), Error);
          v.assign(at::zeros({4}));
          step();
          EXPECT_TRUE(v.read().equal(at::full({4}, -3.0 * options.replicas))) << v.read()[0];
        }));
      }
    }
  }
}

// Regression: after one write into a component, no difference was found any more.
TEST(ComparedValues, AreComparedAgainAfterAnAssignmentOfTheWholeVariable) {
  for (const WorkersOptions& options : ways()) {
    expect_no_errors(run_workers(2, options, [&](auto& strategy) {
      const Variable v = strategy.variable("v", at::zeros({4}));
      const SGD sgd({v}, {.learning_rate = 1.0});
      const auto train = [&] { strategy.run([&] { sgd.minimize(v.tensor().sum()); }); };
      strategy.run([&] { v.assign(at::ones({4})); });  // each replica its component
      v.assign(at::zeros({4}));
      train();
      train();
      train();
      train();
      EXPECT_TRUE(v.read().equal(at::full({4}, -8.0 * options.replicas)));
      if (strategy.worker() == 1) v.assign(at::zeros({4}));
      EXPECT_THROW(train(), Error);
    }));
  }
}

TEST(ComparedValues, AreThoseOfAVariableOfWhichOneWorkerAloneWroteAComponent) {
  const auto errors = run_workers(2, {.replicas = 2}, [](auto& strategy) {
    const Variable v = strategy.variable("v", at::zeros({4}));
    const SGD sgd({v}, {.learning_rate = 1.0});
    for (int step = 0; step < 6; ++step) {
      if (step == 5 && strategy.worker() == 1) strategy.local_results(v)[0].assign(at::ones({4}));
      strategy.run([&] { sgd.minimize(v.tensor().sum()); });
    }
  });
  for (const auto& error : errors) EXPECT_THAT(text_of(error), HasSubstr("got different ones on"));
}

// Regression: only the first replica's values were looked at.
TEST(ComparedValues, AreThoseOfAllReplicas) {
  for (const bool shards : {false, true}) {
    const auto errors = run_workers(2, {.replicas = 2, .shards = shards}, [](auto& strategy) {
      const Variable v = strategy.variable("v", at::zeros({4}));
      const SGD sgd({v}, {.learning_rate = 1.0});
      for (int step = 0; step < 6; ++step) {
        strategy.run([&] {
          if (step == 5 && replica_of_all() == 3) add_in_place(v, 100.0);
          sgd.minimize(v.tensor().sum());
        });
      }
    });
    for (const auto& error : errors)
      EXPECT_THAT(text_of(error), HasSubstr("different ones in the replicas of worker:1"));
  }
}

// Regression: in the steps 1, 2, 4, 8, … they were taken for values that must be equal.
TEST(ComparedValues, AreNotThoseOfVariablesThatAreSynchronizedOnRead) {
  expect_no_errors(run_workers(2, {.replicas = 2}, [](auto& strategy) {
    const Variable v = strategy.variable("v", at::zeros({4}),
                                         {.synchronization = VariableSynchronization::on_read,
                                          .aggregation = VariableAggregation::mean});
    const Variable u = strategy.variable("u", at::zeros({4}));
    const SGD sgd({u, v}, {.learning_rate = 1.0});
    for (int step = 0; step < 9; ++step) {
      u.assign(u.read() * 2);
      strategy.run([&] {
        add_in_place(v, replica_of_all() + 1.0);
        sgd.minimize((u.tensor() + v.tensor()).sum());
      });
    }
  }));
}

}  // namespace
}  // namespace cohort
