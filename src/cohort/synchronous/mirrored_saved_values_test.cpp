// SPDX-License-Identifier: Apache-2.0
// Saved values of variables that replicas have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cohort/optimizer/optimizers.h"
#include "cohort/synchronous/mirrored/variable_fixture.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/saved_values.h"
#include "cohort/variable/state_walk.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::throws_error;

class MirroredSavedValues : public testing::VariableFixture {
 protected:
  Variable on_read(Aggregation aggregation) {
    return four_.variable(
        "v" + std::to_string(++made_), scalar(0),
        {.synchronization = Synchronization::on_read, .aggregation = aggregation});
  }
  void spread(const Variable& v) {
    const PerReplica<at::Tensor> each({scalar(4), scalar(3), scalar(-1), scalar(6)});
    four_.run([&](const at::Tensor& own) { v.assign(own); }, each);
  }
  void save(const Variable& v) const { save_values(path_, {{"x", v}}); }
  void restore(const Variable& v) const { restore_values(path_, {{"x", v}}); }

  testing::TemporaryFolder folder_;
  const std::string path_ = folder_.file("c");
  int made_ = 0;
  MirroredStrategy four_{testing::cpu_devices(4)};
};

TEST_F(MirroredSavedValues, RecordsOfOnReadAreWhatTheirReplicasAreTogether) {
  for (const Aggregation aggregation : {Aggregation::sum, Aggregation::mean}) {
    const Variable v = on_read(aggregation);
    spread(v);
    const VariableRecord together = whole_state({&v, 1}, {})[0];
    const VariableRecord by_replica = whole_state({&v, 1}, {.is_by_replica = true})[0];
    EXPECT_EQ(by_replica.values.size(), 4U);
    const double value = number(v.read());
    import_state(v, together);
    EXPECT_EQ(number(v.read()), value);
    EXPECT_THAT(components(v), Each(3));
    spread(v);
    VariableRecord two = by_replica;
    two.values.resize(2);
    EXPECT_THAT([&] { import_state(v, two); },
                throws_error(ErrorCode::invalid_argument, "one for each of the 4 replicas"));
  }
}

// The slots of the record became those of the variable, and changed with them.
TEST_F(MirroredSavedValues, ARecordIsTakenTwice) {
  const Variable v = four_.variable("v", scalar(1), {.aggregation = Aggregation::mean});
  const SGD sgd({v}, {.learning_rate = 0.5, .momentum = 0.5});
  const auto step = [&] { four_.run([&] { sgd.minimize(v.tensor().square()); }); };
  step();
  const VariableRecord saved = whole_state({&v, 1}, {})[0];
  step();
  const double expected = number(v.read());
  for (int i = 0; i < 2; ++i) {
    import_state(v, saved);
    step();
    EXPECT_EQ(number(v.read()), expected);
  }
}

// VAR-29, VAR-30
TEST_F(MirroredSavedValues, OfOnReadAreWhatTheirReplicasAreTogether) {
  const auto check = [&](Aggregation aggregation, double saved, double restored) {
    const Variable v = on_read(aggregation);
    spread(v);
    save(v);
    EXPECT_EQ(number(SavedValues(path_).value("x")), saved);
    four_.run([&] { v.assign(-1); });
    restore(v);
    EXPECT_THAT(components(v), Each(restored));
    EXPECT_EQ(number(v.read()), saved);
    const Variable mirrored = four_.variable("w" + std::to_string(made_), scalar(0));
    restore(mirrored);
    EXPECT_THAT(components(mirrored), Each(saved));
    const Variable plain = local_variable("p", scalar(0));
    restore(plain);
    EXPECT_EQ(number(plain.read()), saved);
  };
  check(Aggregation::sum, 12, 3);
  check(Aggregation::mean, 3, 3);
  check(Aggregation::only_first_replica, 4, 4);
}

TEST_F(MirroredSavedValues, OfOnReadWithoutAnAggregationAreRefused) {
  const Variable v = on_read(Aggregation::none);
  EXPECT_THAT([&] { save(v); }, throws_error(ErrorCode::invalid_argument, "an aggregation"));
  EXPECT_TRUE(folder_.names().empty());
}

// VAR-31
TEST_F(MirroredSavedValues, OfAPlainVariableAreDividedWhereComponentsAreSummed) {
  save(local_variable("p", scalar(2)));
  const Variable sum = on_read(Aggregation::sum), mean = on_read(Aggregation::mean);
  restore_values(path_, {{"x", sum}});
  restore(mean);
  EXPECT_THAT(components(sum), Each(0.5));
  EXPECT_THAT(components(mean), Each(2));
  save(local_variable("i", scalar(7, at::kLong), false));
  const Variable whole = four_.variable(
      "whole", scalar(0, at::kLong),
      {.synchronization = Synchronization::on_read, .aggregation = Aggregation::sum});
  restore(whole);
  EXPECT_THAT(components(whole), ElementsAre(4, 1, 1, 1)) << "the first gets the remainder";
}

// VAR-061
TEST_F(MirroredSavedValues, GoFromOneStrategyToAnother) {
  OneDeviceStrategy one("CPU:0");
  CentralStorageStrategy central(testing::cpu_devices(2));
  const Variable from = one.variable("from", scalar(1)), to = four_.variable("to", scalar(0));
  const Variable shared = central.variable("shared", scalar(0));
  save(from);
  restore(to);
  EXPECT_THAT(components(to), Each(1));
  to.assign_add(1);
  save(to);
  restore(from);
  restore(shared);
  EXPECT_EQ(number(from.read()), 2);
  EXPECT_EQ(number(shared.read()), 2);
}

TEST_F(MirroredSavedValues, ReplicasCannotSaveOrRestore) {
  const Variable v = four_.variable("v", scalar(1));
  save(v);
  EXPECT_THAT([&] { four_.run([&] { save(v); }); },
              throws_error(ErrorCode::failed_precondition, "outside of run()"));
  EXPECT_THAT([&] { four_.run([&] { restore(v); }); },
              throws_error(ErrorCode::failed_precondition, "outside of run()"));
  const StrategyScope scope = four_.scope();
  restore(v);
}

TEST_F(MirroredSavedValues, AnotherStrategysScopeIsRefused) {
  const Variable v = four_.variable("v", scalar(1));
  OneDeviceStrategy other("CPU:0");
  const StrategyScope scope = other.scope();
  EXPECT_THAT([&] { save(v); }, throws_error(ErrorCode::failed_precondition, "mixing strategies"));
}

}  // namespace
}  // namespace cohort
