// SPDX-License-Identifier: Apache-2.0
// The comment above a test names the rows of the specification, and the recorded cases.
#include "cohort/strategy/strategy_extended.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/strategy/context_fixture.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::throws_error;
using Values = PerReplica<at::Tensor>;

template <class T>
concept TakesZero = requires(void (*call)(T)) {
  call(0);
};
template <class T>
concept TakesAList = requires(void (*call)(T)) {
  call({"CPU:0", "CPU:1"});
};
// RED-20. The number 0 was taken for a null pointer, that is for a text.
static_assert(!TakesZero<Destinations> && !TakesZero<ReduceOpOrName>);
static_assert(!std::is_convertible_v<int, Destinations> &&
              !std::is_convertible_v<std::nullptr_t, Destinations>);
static_assert(!TakesAList<Destinations> &&
              !std::is_convertible_v<std::vector<std::string>, Destinations>);
// RED-10
static_assert(!std::is_convertible_v<const char*, Axes> &&
              !std::is_convertible_v<std::string, Axes> && !std::is_convertible_v<char, Axes>);
static_assert(TakesZero<Axes> && std::is_convertible_v<std::int64_t, Axes>);

class Extended : public testing::ContextFixture {
 protected:
  static at::Tensor scalar(double value) { return at::full({}, value, at::kDouble); }
  static double number(const at::Tensor& value) { return value.item<double>(); }
  static std::vector<double> numbers(const PerReplica<at::Tensor>& values) {
    std::vector<double> result;
    for (const at::Tensor& each : values.local_results()) result.push_back(number(each));
    return result;
  }
  std::vector<double> components(const Variable& variable) {
    std::vector<double> result;
    for (const Variable& each : two_.local_results(variable)) result.push_back(number(each.read()));
    return result;
  }
  MirroredStrategy two_{{"CPU:0", "CPU:1"}};
  StrategyExtended extended_ = two_.extended();
  const Values one_and_two_{{scalar(1), scalar(2)}};
};

// RED-062
TEST_F(Extended, ReducesToOneDeviceOrToACopyForEach) {
  const Mirrored<> one = extended_.reduce_to("sum", one_and_two_, "cpu:1");
  EXPECT_FALSE(one.is_wrapped());
  EXPECT_EQ(number(one), 3);
  EXPECT_THAT(one.devices(), ElementsAre("CPU:1"));
  const Variable v = two_.variable("v", scalar(9));
  const Mirrored<> both = extended_.reduce_to(ReduceOp::mean, one_and_two_, v);
  EXPECT_TRUE(both.is_mirrored());
  EXPECT_THAT(numbers(both), ElementsAre(1.5, 1.5));
  EXPECT_FALSE(both[0].is_alias_of(both[1]));
  EXPECT_THAT(both.devices(), ElementsAre("CPU:0", "CPU:1"));
  EXPECT_THAT(components(v), Each(9)) << "a destination is not changed";
  EXPECT_THAT(numbers(extended_.reduce_to("sum", one_and_two_, one_and_two_)), ElementsAre(3, 3));
  EXPECT_THAT(extended_.reduce_to("sum", one_and_two_, scalar(0)).devices(), ElementsAre("CPU:0"));
}

// RED-047, RED-049
TEST_F(Extended, AValueThatIsNotDistributedHasOnlyAMean) {
  EXPECT_EQ(extended_.reduce_to("mean", Nest(5.0), "cpu:0").value().real(), 5);
  EXPECT_EQ(extended_.reduce_to("mean", Nest(7), one_and_two_).value().integer(), 7);
  EXPECT_EQ(extended_.reduce_to("sum", Nest(0), "cpu:0").value().integer(), 0);
  const at::Tensor value = scalar(5);
  EXPECT_THAT(numbers(extended_.reduce_to("mean", value, one_and_two_)), ElementsAre(5, 5));
  EXPECT_FALSE(extended_.reduce_to("mean", value, one_and_two_)[0].is_alias_of(value));
  EXPECT_THAT([&] { extended_.reduce_to("sum", scalar(0), "cpu:0"); },
              throws_error(ErrorCode::invalid_argument, "the same for all 2"));
}

// RED-053; 2.7
TEST_F(Extended, AVariableIsReducedByItsKind) {
  const Variable written = two_.variable("w", scalar(3));
  EXPECT_EQ(number(two_.reduce("mean", written)), 3);
  EXPECT_EQ(number(extended_.reduce_to("mean", written, "cpu:0")), 3);
  EXPECT_THAT([&] { two_.reduce("sum", written); },
              throws_error(ErrorCode::invalid_argument, "the same for all 2"));
  const Variable read = two_.variable("r", scalar(0),
                                      {.synchronization = VariableSynchronization::on_read,
                                       .aggregation = VariableAggregation::sum});
  two_.run([&] { read.assign(scalar(get_replica_context()->replica_id_in_sync_group() + 1)); });
  EXPECT_EQ(number(two_.reduce("sum", read)), 3);
  EXPECT_EQ(number(extended_.reduce_to("mean", read, "cpu:0")), 1.5);
  const Variable vector = two_.variable("x", at::full({2}, 1.5));
  EXPECT_EQ(number(two_.reduce("sum", vector, 0)), 6);
  EXPECT_THAT(two_.gather(vector, 0).sizes(), ElementsAre(4));
}

// RED-061
TEST_F(Extended, ADestinationIsADeviceOfThisProcess) {
  const auto refused = [&](const Destinations& destinations, const std::string& words) {
    EXPECT_THAT([&] { extended_.reduce_to("sum", one_and_two_, destinations); },
                throws_error(ErrorCode::invalid_argument, words));
    EXPECT_THAT([&] { extended_.broadcast_to(scalar(1), destinations); },
                throws_error(ErrorCode::invalid_argument, words));
    EXPECT_THAT(
        ([&] {
          extended_.batch_reduce_to("sum", {{one_and_two_, "cpu:0"}, {one_and_two_, destinations}});
        }),
        throws_error(ErrorCode::invalid_argument, words));
  };
  refused("/job:worker/task:1", "got /job:worker/task:1/CPU:0");
  refused("GPU:7", "got GPU:7");
  refused(Values({scalar(1), scalar(2), scalar(3)}), "at most 2 components");
  EXPECT_THAT([] { Destinations(""); }, throws_error(ErrorCode::invalid_argument, "\"\""));
  EXPECT_THAT([] { Destinations("cpu:x"); }, throws_error(ErrorCode::invalid_argument, "cpu:x"));
  EXPECT_THAT([] { Destinations{at::Tensor()}; },
              throws_error(ErrorCode::invalid_argument, "undefined"));
  EXPECT_THAT([&] { extended_.reduce_to("sum", one_and_two_, "cpu:0", {.bytes_per_pack = -1}); },
              throws_error(ErrorCode::invalid_argument, "bytes_per_pack"));
}

// Such a variable was taken for a plain one on the first device.
TEST_F(Extended, VariablesOfOtherStrategiesHaveNoDevicesHere) {
  MirroredStrategy other({"CPU:2", "CPU:3"});
  const Variable foreign = other.variable("q", scalar(1));
  const auto refused = throws_error(ErrorCode::invalid_argument,
                                    "a variable of 'mirrored', got 'q' of another strategy");
  const auto expect_refused = [&] {
    EXPECT_THAT([&] { extended_.devices(foreign); }, refused);
    EXPECT_THAT([&] { extended_.reduce_to("mean", foreign, "cpu:0"); }, refused);
    EXPECT_THAT([&] { extended_.reduce_to("mean", one_and_two_, foreign); }, refused);
    EXPECT_THAT([&] { extended_.broadcast_to(scalar(1), foreign); }, refused);
    EXPECT_THAT(([&] { extended_.batch_reduce_to("mean", {{one_and_two_, foreign}}); }), refused);
  };
  expect_refused();
  const StrategyScope scope = two_.scope();
  expect_refused();
  EXPECT_THAT(extended_.devices(local_variable("p", scalar(1))), ElementsAre("CPU:0"));
}

// RED-066, RED-068
TEST_F(Extended, ReducesABatchInItsOrder) {
  const at::Tensor row =
      at::sparse_coo_tensor(at::tensor({1}, at::kLong).unsqueeze(0), at::ones({1, 2}), {3, 2});
  const std::vector<Mirrored<>> results = extended_.batch_reduce_to(
      "mean",
      {{one_and_two_, "cpu:0"}, {Values({row, row}), "cpu:1"}, {one_and_two_, one_and_two_}});
  EXPECT_EQ(number(results.at(0)), 1.5);
  EXPECT_THAT(results.at(0).devices(), ElementsAre("CPU:0"));
  EXPECT_THAT(results.at(1).devices(), ElementsAre("CPU:1"));
  EXPECT_THAT(results.at(2).devices(), ElementsAre("CPU:0", "CPU:1"));
  EXPECT_TRUE(results.at(1).value().to_dense().equal(row.to_dense()));
  EXPECT_THAT(numbers(results.at(2)), ElementsAre(1.5, 1.5));
  EXPECT_TRUE(extended_.batch_reduce_to("sum", {}).empty());
}

// RED-091
TEST_F(Extended, BroadcastsTensorsAndPassesHostValuesThrough) {
  const at::Tensor value = scalar(4);
  const Mirrored<> both = extended_.broadcast_to(value, one_and_two_);
  EXPECT_THAT(numbers(both), ElementsAre(4, 4));
  EXPECT_FALSE(both[0].is_alias_of(value));
  EXPECT_EQ(extended_.broadcast_to(Nest(3), one_and_two_).value().integer(), 3);
  EXPECT_EQ(extended_.broadcast_to(Nest::list({value}), "cpu:1").value().structure(), "[tensor]");
}

// RED-080, RED-081, RED-083, RED-28
TEST_F(Extended, UpdatesEachComponentWithItsPartOfTheArguments) {
  const Variable v = two_.variable("v", scalar(5));
  const auto results = extended_.update(
      v,
      [](const Variable& self, const at::Tensor& x, double factor) {
        self.assign_add(x);
        return self.read() * factor;
      },
      Values::mirrored({scalar(1), scalar(2)}), 10.0);
  EXPECT_TRUE(results.is_mirrored());
  EXPECT_THAT(numbers(results), ElementsAre(60, 70));
  EXPECT_THAT(components(v), ElementsAre(6, 7));
  static_assert(std::is_void_v<decltype(extended_.update(v, [](const Variable&) {}))>);
  const Variable read = two_.variable("r", scalar(5),
                                      {.synchronization = VariableSynchronization::on_read,
                                       .aggregation = VariableAggregation::sum});
  extended_.update(
      read, [](const Variable& self, const at::Tensor& x) { self.assign_add(x); }, one_and_two_);
  EXPECT_THAT(components(read), ElementsAre(6, 7));
}

// CTX-066
TEST_F(Extended, AnUpdateIsCrossReplicaContext) {
  const Variable v = two_.variable("v", scalar(5));
  int updates = 0;
  extended_.update(v, [&](const Variable&) {
    ++updates;
    expect_cross(two_);
  });
  EXPECT_EQ(updates, 2);
}

// RED-088
TEST_F(Extended, AnUpdateInReplicasIsDoneOnceAndGivesEachItsComponent) {
  const Variable v = two_.variable("v", scalar(5), {.aggregation = VariableAggregation::sum});
  std::atomic<int> updates = 0;
  const auto results = two_.run([&] {
    const int id = get_replica_context()->replica_id_in_sync_group();
    return two_.extended()
        .update(
            v,
            [&](const Variable& self, const at::Tensor& x) {
              ++updates;
              self.assign(x);
              return self.read() * 2;
            },
            scalar(id + 1))
        .value();
  });
  EXPECT_EQ(updates, 2);
  EXPECT_THAT(components(v), ElementsAre(1, 2));
  EXPECT_THAT(numbers(results), ElementsAre(2, 4));
  const Variable other = two_.variable("other", scalar(5));
  two_.run([&] {
    const bool is_first = get_replica_context()->replica_id_in_sync_group() == 0;
    EXPECT_THAT([&] { two_.extended().update(is_first ? v : other, [](const Variable&) {}); },
                throws_error(ErrorCode::invalid_argument, "the same variable in all replicas"));
  });
}

// RED-084, RED-086
TEST_F(Extended, OnlyStrategiesWithOneValueUpdateOtherVariables) {
  const Variable plain = local_variable("p", scalar(1));
  EXPECT_THAT([&] { extended_.update(plain, [](const Variable&) {}); },
              throws_error(ErrorCode::invalid_argument, "a variable of 'mirrored', got 'p'"));
  OneDeviceStrategy one;
  for (Strategy* strategy : {static_cast<Strategy*>(&one), &default_strategy()}) {
    const auto result = strategy->extended().update(
        plain,
        [](const Variable& self, const at::Tensor& x) {
          self.assign_add(x);
          return self.read();
        },
        scalar(2));
    EXPECT_FALSE(result.is_wrapped());
  }
  EXPECT_EQ(number(plain.read()), 5);
}

// RED-089
TEST_F(Extended, UpdatesNonSlotValuesOnceForEachDevice) {
  const Variable b = two_.variable("b", scalar(5));
  const Variable a = two_.variable("a", scalar(6));
  EXPECT_THAT(extended_.non_slot_devices({b, a}), ElementsAre("CPU:0", "CPU:1"));
  const auto results = extended_.update_non_slot(
      extended_.non_slot_devices({b, a}), [](const at::Tensor& x) { return x + 10; }, one_and_two_);
  EXPECT_THAT(numbers(results), ElementsAre(11, 12));
  int calls = 0;
  extended_.update_non_slot({"CPU:0", "CPU:1"}, [&] { ++calls; });
  EXPECT_EQ(calls, 2);
  for (const std::vector<std::string>& devices : {std::vector<std::string>{}, {"CPU:1"}}) {
    EXPECT_THAT([&] { extended_.update_non_slot(devices, [] {}); },
                throws_error(ErrorCode::invalid_argument, "non_slot_devices()"));
  }
  StrategyExtended plain = default_strategy().extended();
  EXPECT_THAT([&] { plain.non_slot_devices({}); },
              throws_error(ErrorCode::invalid_argument, "at least one variable"));
  const auto one = plain.update_non_slot(plain.non_slot_devices({b}), [] { return 3; });
  EXPECT_EQ(one.value(), 3);
}

TEST_F(Extended, NonSlotValuesOfOneValueAreOnItsDevice) {
  OneDeviceStrategy one("CPU:3");
  CentralStorageStrategy central({"CPU:0", "CPU:1"}, "CPU:5");
  const auto devices_of = [](Strategy& strategy, const std::vector<Variable>& variables) {
    return strategy.extended().non_slot_devices(variables);
  };
  const auto two_of = [](Strategy& strategy) {
    return std::vector<Variable>{strategy.variable("b", scalar(1)),
                                 strategy.variable("a", scalar(1))};
  };
  EXPECT_THAT(devices_of(one, two_of(one)), ElementsAre("CPU:3"));
  EXPECT_THAT(devices_of(one, {}), ElementsAre("CPU:3"));
  EXPECT_THAT(devices_of(central, two_of(central)), ElementsAre("CPU:5"));
  EXPECT_THAT([&] { devices_of(central, {}); },
              throws_error(ErrorCode::invalid_argument, "at least one variable"));
  EXPECT_THAT(devices_of(default_strategy(), two_of(two_)), ElementsAre("CPU:0"));
}

// Regression: components that no replica has were dropped without a word.
TEST_F(Extended, ArgumentsHaveAComponentForEachReplica) {
  const Values three({scalar(1), scalar(2), scalar(3)});
  const Variable v = two_.variable("v", scalar(5));
  const auto add = [](const Variable& self, const at::Tensor& x) { self.assign_add(x); };
  const auto refused = throws_error(ErrorCode::invalid_argument, "extended.update");
  EXPECT_THAT([&] { extended_.update(v, add, three); }, refused);
  EXPECT_THAT([&] { two_.run([&] { extended_.update(v, add, three); }); }, refused);
  EXPECT_THAT(
      [&] {
        extended_.update_non_slot(
            {"CPU:0", "CPU:1"}, [](const at::Tensor&) {}, three);
      },
      refused);
  OneDeviceStrategy one("CPU:0");
  const Variable w = one.variable("w", scalar(5));
  EXPECT_THAT([&] { one.extended().update(w, add, three); }, refused);
  EXPECT_THAT([&] { one.extended().assign(w, three); },
              throws_error(ErrorCode::invalid_argument, "expected 1 values"));
  EXPECT_EQ(number(v.read()), 5);
  EXPECT_EQ(number(w.read()), 5);
}

// RED-093
TEST_F(Extended, ReadsWhatAVariablesComponentsAreTogether) {
  EXPECT_EQ(number(extended_.read_var(two_.variable("v", scalar(5)))), 5);
  const Variable read = two_.variable("r", scalar(5),
                                      {.synchronization = VariableSynchronization::on_read,
                                       .aggregation = VariableAggregation::sum});
  EXPECT_EQ(number(extended_.read_var(read)), 10);
}

// 3.2, 3.3
TEST_F(Extended, AssignsToEachComponentItsValueOrNothing) {
  const Variable v = two_.variable("v", scalar(5));
  extended_.assign(v, one_and_two_);
  EXPECT_THAT(components(v), ElementsAre(1, 2));
  extended_.assign_add(v, one_and_two_);
  EXPECT_THAT(components(v), ElementsAre(2, 4));
  extended_.assign_sub(v, one_and_two_);
  EXPECT_THAT(components(v), ElementsAre(1, 2));
  extended_.assign(v, Values::bare(scalar(7)));
  EXPECT_THAT(components(v), ElementsAre(7, 7));
  const auto refused = [&](const Variable& variable, const Values& values,
                           const std::string& words) {
    EXPECT_THAT([&] { extended_.assign(variable, values); },
                throws_error(ErrorCode::invalid_argument, words));
  };
  refused(v, Values({scalar(1), scalar(1), scalar(1)}), "expected 2 values");
  refused(v, Values({scalar(1), at::ones({2}, at::kDouble)}), "'v'");
  EXPECT_THAT(components(v), ElementsAre(7, 7)) << "nothing was assigned";
  refused(local_variable("p", scalar(1)), one_and_two_, "a variable of 'mirrored'");
  const Variable read = two_.variable("r", scalar(5),
                                      {.synchronization = VariableSynchronization::on_read,
                                       .aggregation = VariableAggregation::mean});
  refused(read, one_and_two_, "synchronized on read");
  extended_.assign(read, Values::mirrored({scalar(3), scalar(3)}));
  EXPECT_THAT(components(read), ElementsAre(3, 3));
}

// VAR-080, RUN-073
TEST_F(Extended, KnowsComponentsTheirDevicesAndTheirVariable) {
  const Variable v = two_.variable("v", scalar(5));
  const std::vector<Variable> parts = two_.local_results(v);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_TRUE(extended_.value_container(parts[1]) == v);
  EXPECT_TRUE(extended_.value_container(v) == v);
  EXPECT_THAT(extended_.devices(v), ElementsAre("CPU:0", "CPU:1"));
  EXPECT_THAT(extended_.devices(parts[1]), ElementsAre("CPU:1"));
  parts[1].assign(scalar(8));
  EXPECT_THAT(components(v), ElementsAre(5, 8));
}

// VAR-069
TEST_F(Extended, ColocatesWithVariablesOfItsOwn) {
  MirroredStrategy other({"CPU:2", "CPU:3"});
  const Variable v = two_.variable("v", scalar(1));
  const Variable foreign = other.variable("q", scalar(1));
  EXPECT_THAT([&] { const ColocationScope scope = extended_.colocate_vars_with(v); },
              throws_error(ErrorCode::failed_precondition, "to be current, got 'default'"));
  const StrategyScope scope = two_.scope();
  for (const Variable& each : {foreign, local_variable("p", scalar(1))}) {
    EXPECT_THAT([&] { const ColocationScope colocated = extended_.colocate_vars_with(each); },
                throws_error(ErrorCode::invalid_argument, "a variable of 'mirrored'"));
  }
  const ColocationScope colocated = extended_.colocate_vars_with(v);
  EXPECT_THAT(extended_.devices(two_.variable("w", scalar(1))), ElementsAre("CPU:0", "CPU:1"));
}

// CTX-023 to CTX-037; 1.3.8
TEST_F(Extended, MethodsNeedCrossReplicaContextOfTheirStrategy) {
  MirroredStrategy other({"CPU:1", "CPU:2"});
  const Variable v = two_.variable("v", scalar(1));
  const std::vector<std::function<void()>> calls = {
      [&] { extended_.reduce_to("sum", one_and_two_, "cpu:0"); },
      [&] { extended_.reduce_to("mean", v, "cpu:0"); },
      [&] { extended_.batch_reduce_to("sum", {}); },
      [&] { extended_.broadcast_to(scalar(1), "cpu:0"); },
      [&] {
        extended_.update_non_slot({"CPU:0", "CPU:1"}, [] {});
      },
      [&] { extended_.read_var(v); },
      [&] { extended_.assign(v, one_and_two_); },
      [&] { extended_.call_for_each_replica([] {}); },
      [&] { two_.reduce("mean", scalar(1)); },
      [&] { two_.gather(scalar(1), 0); },
  };
  {
    const StrategyScope scope = other.scope();
    for (const auto& call : calls)
      EXPECT_THAT(call, throws_error(ErrorCode::failed_precondition, "mixing"));
    EXPECT_THAT([&] { extended_.update(v, [](const Variable&) {}); },
                throws_error(ErrorCode::failed_precondition, "mixing"));
  }
  std::atomic<int> refusals = 0;
  two_.run([&] {
    for (const auto& call : calls) {
      EXPECT_THAT(call, throws_error(ErrorCode::failed_precondition, "use merge_call"));
      ++refusals;
    }
  });
  EXPECT_EQ(refusals, 2 * static_cast<int>(calls.size()));
  const StrategyScope scope = two_.scope();
  EXPECT_EQ(number(extended_.reduce_to("sum", one_and_two_, "cpu:0")), 3);
}

// CTX-069, CTX-072
TEST_F(Extended, TellsTheStrategysProperties) {
  EXPECT_FALSE(extended_.in_multi_worker_mode());
  EXPECT_TRUE(extended_.should_init());
  EXPECT_TRUE(extended_.should_checkpoint());
  EXPECT_TRUE(extended_.should_save_summary());
  EXPECT_FALSE(extended_.between_graph());
  EXPECT_EQ(two_.cluster_resolver(), nullptr);
  EXPECT_THAT([] { default_strategy().extended().between_graph(); },
              throws_error(ErrorCode::unimplemented, "'default'"));
  InProcessWorkers workers(2);
  MultiWorkerMirroredStrategy second(workers.group(1), {.devices = {"CPU:0"}});
  EXPECT_TRUE(second.extended().in_multi_worker_mode());
  EXPECT_TRUE(second.extended().should_init());
  EXPECT_FALSE(second.extended().should_checkpoint());
  EXPECT_FALSE(second.extended().should_save_summary());
  EXPECT_TRUE(second.extended().between_graph());
}

TEST_F(Extended, RunsByTheOlderName) {
  EXPECT_THAT(extended_.call_for_each_replica([](int x) { return x * 2; }, PerReplica<int>({1, 2}))
                  .local_results(),
              ElementsAre(2, 4));
}

// CTX-039; 1.3.5
TEST_F(Extended, AScopeCannotBeLeftBeforeACreatorScopeInside) {
  StrategyScope scope = two_.scope();
  {
    const VariableCreatorScope creator(
        [](VariableRequest request, const VariableCreatorScope::Next& next) {
          return next(std::move(request));
        });
    EXPECT_THAT([&] { scope.exit(); }, throws_error(ErrorCode::failed_precondition, "creator"));
    expect_cross(two_);
  }
  scope.exit();
  expect_default();
  scope.exit();
}

TEST_F(Extended, CreatorsChangeRequestsAlsoInReplicas) {
  const VariableCreatorScope outer(
      [](VariableRequest request, const VariableCreatorScope::Next& next) {
        request.name = "outer/" + request.name;
        return next(std::move(request));
      });
  const VariableCreatorScope inner(
      [](VariableRequest request, const VariableCreatorScope::Next& next) {
        if (request.initializer) request.initial_value = scalar(7);
        request.name = "inner/" + request.name;
        return next(std::move(request));
      });
  EXPECT_EQ(two_.variable("v", scalar(1)).name(), "outer/inner/v");
  const Variable made = two_.run([&] {
    return two_.variable("w", TensorSpec{at::kDouble, {{}}}, Initializer::ones());
  });
  EXPECT_EQ(made.name(), "outer/inner/w");
  EXPECT_EQ(number(made.read()), 7);
  EXPECT_THAT([] { VariableCreatorScope scope(nullptr); },
              throws_error(ErrorCode::invalid_argument, "a function"));
}

}  // namespace
}  // namespace cohort
