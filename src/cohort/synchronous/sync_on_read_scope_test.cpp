// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "cohort/optimizer/optimizers.h"
#include "cohort/synchronous/mirrored/variable_fixture.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::throws_error;

class SyncOnRead : public testing::VariableFixture {
 protected:
  Variable on_read(double value, Aggregation aggregation, std::optional<bool> is_trainable = {}) {
    return two_.variable("v" + std::to_string(++made_), scalar(value),
                         {.is_trainable = is_trainable,
                          .synchronization = Synchronization::on_read,
                          .aggregation = aggregation});
  }
  int made_ = 0;
  MirroredStrategy two_{testing::cpu_devices(2)};
};

// VAR-33
TEST_F(SyncOnRead, TheTensorIsTheValueOfAllReplicas) {
  const Variable sum = on_read(1, Aggregation::sum), mean = on_read(1, Aggregation::mean);
  const Variable first = on_read(1, Aggregation::only_first_replica);
  const auto add_ten = [](const Variable& v) { return number(v.tensor() + 10); };
  two_.run([&] {
    for (const Variable& v : {sum, mean, first}) v.assign(scalar(id() + 1));
    {
      const SyncOnReadScope scope;
      EXPECT_EQ(add_ten(sum), 13);
      EXPECT_EQ(add_ten(mean), 11.5);
      EXPECT_EQ(add_ten(first), 11);
      sum.assign_add(scalar(1));
      EXPECT_EQ(add_ten(sum), 15) << "each read is a new one";
    }
    EXPECT_EQ(add_ten(sum), 12 + id());
  });
  EXPECT_THAT(components(sum), ElementsAre(2, 3));
}

// Regression: the tensor was replaced by that of another run.
TEST_F(SyncOnRead, RunsAtTheSameTimeHaveTensorsOfTheirOwn) {
  const Variable mean = on_read(1, Aggregation::mean);
  std::latch has_read(2), has_ended(1);
  std::thread other([&] {
    has_read.wait();
    two_.run([&] {
      const SyncOnReadScope scope;
      EXPECT_EQ(number(mean.tensor()), 1);
    });
    has_ended.count_down();
  });
  two_.run([&] {
    const SyncOnReadScope scope;
    const at::Tensor& tensor = mean.tensor();
    const at::TensorImpl* const before = tensor.unsafeGetTensorImpl();
    has_read.count_down();
    has_ended.wait();
    EXPECT_EQ(tensor.unsafeGetTensorImpl(), before);
    EXPECT_EQ(number(tensor), 1);
  });
  other.join();
}

TEST_F(SyncOnRead, OtherVariablesStayAsTheyAre) {
  const Variable v = two_.variable("on_write", scalar(3), {.aggregation = Aggregation::sum});
  two_.run([&] {
    const SyncOnReadScope scope;
    EXPECT_EQ(number(v.tensor()), 3);
    EXPECT_EQ(number(v.read()), 3);
  });
}

TEST_F(SyncOnRead, AReadAndANoneAreErrors) {
  const Variable sum = on_read(1, Aggregation::sum), none = on_read(1, Aggregation::none);
  two_.run([&] {
    const SyncOnReadScope scope;
    EXPECT_THAT([&] { sum.read(); },
                throws_error(ErrorCode::unimplemented, "outside of a SyncOnReadScope"));
    EXPECT_THAT([&] { none.tensor(); },
                throws_error(ErrorCode::invalid_argument, "an aggregation"));
  });
  const SyncOnReadScope scope;
  EXPECT_THAT([&] { sum.read(); }, throws_error(ErrorCode::unimplemented, "use tensor(), which"));
}

// Replica 0 runs on the thread of the caller, and would wait for the others.
TEST_F(SyncOnRead, AScopeAroundRunConcernsNoReplica) {
  const Variable sum = on_read(1, Aggregation::sum);
  const SyncOnReadScope scope;
  const auto read = two_.run([&] { return number(sum.tensor()) + number(sum.read()); });
  EXPECT_THAT(read.local_results(), Each(2));
}

TEST_F(SyncOnRead, GradientsFlowToTheComponents) {
  const Variable w = on_read(2, Aggregation::sum, /*is_trainable=*/true);
  two_.run([&] {
    at::Tensor loss;
    {
      const SyncOnReadScope scope;
      loss = w.tensor() * (id() + 1);
    }
    EXPECT_EQ(number(loss), 4 * (id() + 1));
    loss.backward();
    EXPECT_EQ(number(w.tensor().grad()), 3) << "the sum of the factors";
  });
}

TEST_F(SyncOnRead, AnOptimizerIsRefusedInsideOfTheScope) {
  const Variable w = on_read(2, Aggregation::sum, /*is_trainable=*/true);
  const SGD sgd({w});
  EXPECT_THAT(([&] {
                two_.run([&] {
                  const SyncOnReadScope scope;
                  sgd.minimize(w.tensor() * 2);
                });
              }),
              throws_error(ErrorCode::unimplemented, "end the scope before"));
  EXPECT_THAT(components(w), Each(2));
}

TEST_F(SyncOnRead, OneReplicaNeedsNoOther) {
  MirroredStrategy one(testing::cpu_devices(1));
  OneDeviceStrategy plain("CPU:0");
  for (Strategy* strategy : std::vector<Strategy*>{&one, &plain}) {
    const Variable v = strategy->variable(
        "v", scalar(2),
        {.synchronization = Synchronization::on_read, .aggregation = Aggregation::sum});
    strategy->run([&] {
      const SyncOnReadScope scope;
      EXPECT_EQ(number(v.tensor()), 2);
    });
  }
}

}  // namespace
}  // namespace cohort
