// SPDX-License-Identifier: Apache-2.0
// Steps of strategy.function(): their results, when they are traced, and what is refused.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "cohort/core/log.h"
#include "cohort/function/inspection.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/replicas/step_call.h"
#include "cohort/strategy/replica_trace.h"
#include "cohort/synchronous/mirrored/variable_fixture.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::throws_error;

// A call that returns with how many threads each replica computes.
class ThreadsCall final : public internal::StepCall {
 public:
  std::string text() const override { return "threads"; }
  std::unique_ptr<const internal::JoinedCall> join(
      const std::vector<const internal::StepCall*>&) const override {
    return std::make_unique<Joined>();
  }

 private:
  class Joined final : public internal::JoinedCall {
    std::vector<at::Tensor> run(internal::StepReplica&, std::vector<at::Tensor>) const override {
      return {at::full({}, at::get_num_threads(), at::TensorOptions(at::kDouble))};
    }
  };
};

using StrategyFunctionTest = testing::TwoReplicas<MirroredStrategy>;

TEST_F(StrategyFunctionTest, ReturnsTheResultsOfEachReplica) {
  const auto square = two_.function([](const at::Tensor& x) { return x * x; });
  EXPECT_THAT(numbers_of(square(values(2, 3))), ElementsAre(4, 9));
  EXPECT_THAT(numbers_of(square(values(4, 5))), ElementsAre(16, 25));
  EXPECT_EQ(square.traces(), 1U);
  EXPECT_THAT(square.program(), HasSubstr("aten::mul"));
}

TEST_F(StrategyFunctionTest, ReturnsWhateverAStepMay) {
  const PerReplica<at::Tensor> x = values(2, 3);
  const auto pair = two_.function([](const at::Tensor& a) { return std::pair(a + 1, 5); });
  EXPECT_EQ(number(pair(x)[1].first), 4);
  EXPECT_EQ(pair(x)[1].second, 5);
  const auto list = two_.function([](const at::Tensor& a) { return std::vector{a, a + 1}; });
  EXPECT_EQ(number(list(x)[0].at(1)), 3);
  const auto nest = two_.function([](const at::Tensor& a) { return Nest::map({{"a", a + 1}}); });
  EXPECT_EQ(number(nest(x)[1].entry("a").tensor()), 4);
  const auto nothing = two_.function([](const at::Tensor&) {});
  EXPECT_EQ(nothing(x).size(), 2U);
  const auto text = two_.function([](const at::Tensor&) { return std::string("a"); });
  EXPECT_EQ(text(x)[0], "a");
}

TEST_F(StrategyFunctionTest, TakesTheElementsOfADataset) {
  const Dataset data =
      Dataset::from_tensor_slices(Nest::tuple({at::ones({4}), at::full({4}, 2.0)})).batch(4);
  const auto step = [](const at::Tensor& x, const at::Tensor& y) { return (x * y).sum(); };
  const auto traced = two_.function(step);
  int batches = 0;
  for (const auto& batch : two_.distribute_dataset(data)) {
    EXPECT_THAT(numbers_of(traced(batch)), ElementsAre(4, 4));
    EXPECT_THAT(numbers_of(two_.run(step, batch)), ElementsAre(4, 4));
    ++batches;
  }
  EXPECT_EQ(batches, 1);
}

TEST_F(StrategyFunctionTest, RegroupsAsRunDoes) {
  const at::Tensor outside = scalar(7);
  const at::Tensor same = scalar(8);
  const auto constant = [&](const at::Tensor&) { return outside; };
  const auto argument = [](const at::Tensor& x) { return x; };
  EXPECT_FALSE(two_.function(constant)(same).is_wrapped());
  EXPECT_TRUE(two_.function(constant)(same).value().is_same(two_.run(constant, same).value()));
  EXPECT_FALSE(two_.function(argument)(same).is_wrapped());
  EXPECT_TRUE(two_.function(argument)(same).value().is_same(same));
  EXPECT_TRUE(two_.function(argument)(values(1, 2)).is_wrapped());
  const auto number_alone = [](const at::Tensor&) { return Nest(3); };
  EXPECT_TRUE(two_.function(number_alone)(same).is_wrapped());
  EXPECT_TRUE(two_.run(number_alone, same).is_wrapped());
}

TEST_F(StrategyFunctionTest, ResultsHaveMemoryOfTheirOwn) {
  const auto step = two_.function([](const at::Tensor& x) { return x.view({1}); });
  const at::Tensor x = scalar(1);
  const PerReplica<at::Tensor> result = step(x);
  EXPECT_FALSE(result[0].is_alias_of(x));
  EXPECT_FALSE(result[0].is_alias_of(result[1]));
}

TEST_F(StrategyFunctionTest, TracesOnceForEachSignature) {
  const auto step = two_.function([](const at::Tensor& x, double factor) { return x * factor; });
  for (int i = 0; i < 3; ++i) step(scalar(i), 2.0);
  EXPECT_EQ(step.traces(), 1U);
  EXPECT_EQ(number(step(scalar(3), 4.0)[0]), 12);
  EXPECT_EQ(step.traces(), 2U);
  // Parts of other shapes have programs of their own, and the same for both replicas counts once.
  step(PerReplica<at::Tensor>({row({1, 2}), row({1})}), 2.0);
  EXPECT_EQ(step.traces(), 4U);
  step(PerReplica<at::Tensor>({row({1}), row({1, 2})}), 2.0);
  EXPECT_EQ(step.traces(), 4U);
}

TEST_F(StrategyFunctionTest, WarnsOnceOfManyTraces) {
  std::string log;
  set_log_sink([&](LogLevel, std::string_view line) { log += line; });
  const auto step = two_.function([](const at::Tensor& x, double factor) { return x * factor; },
                                  {.name = "scaled"});
  for (double i = 0; i < 80; ++i) EXPECT_EQ(number(step(scalar(2), i)[1]), 2 * i);
  set_log_sink({});
  EXPECT_THAT(log, HasSubstr("'scaled' was traced 5 times"));
  EXPECT_THAT(log, HasSubstr("argument 1 was 3 and is now 4"));
  EXPECT_EQ(log.find("was traced"), log.rfind("was traced"));
  const std::size_t before = step.traces();
  step(scalar(2), 79.0);  // kept
  EXPECT_EQ(step.traces(), before);
  step(scalar(2), 0.0);  // the programs of the first calls were not
  EXPECT_EQ(step.traces(), before + 1);
}

TEST_F(StrategyFunctionTest, FollowsTensorsThatItCaptures) {
  at::Tensor outside = scalar(2);
  const auto step = two_.function([&](const at::Tensor& x) { return x * outside; });
  EXPECT_THAT(numbers_of(step(values(1, 2))), ElementsAre(2, 4));
  outside.fill_(3);
  EXPECT_THAT(numbers_of(step(values(1, 2))), ElementsAre(3, 6));
}

TEST_F(StrategyFunctionTest, GivesEachReplicaItsOwnConstants) {
  const std::vector<at::Tensor> outside = {scalar(2), scalar(5)};
  const auto step = two_.function([&](const at::Tensor& x) {
    const int id = get_replica_context()->replica_id_in_sync_group();
    return x * outside.at(static_cast<std::size_t>(id)) + id;
  });
  EXPECT_THAT(numbers_of(step(scalar(1))), ElementsAre(2, 6));
}

TEST_F(StrategyFunctionTest, ReadsVariables) {
  const Variable v = make(3);
  const auto step = two_.function([&](const at::Tensor& x) { return v.tensor() + v.read() + x; });
  EXPECT_THAT(numbers_of(step(values(0, 1))), ElementsAre(6, 7));
  v.assign(5.0);
  EXPECT_THAT(numbers_of(step(values(0, 1))), ElementsAre(10, 11));
  EXPECT_EQ(step.traces(), 1U);
  const auto itself = [&] { return v.tensor(); };
  EXPECT_TRUE(two_.function(itself)()[1].is_same(two_.run(itself)[1]));
}

TEST_F(StrategyFunctionTest, AssignsItsOwnComponent) {
  const Variable v = make(3);
  const auto step = two_.function([&](const at::Tensor& x) {
    v.assign(x);
    v.assign_add(x);
    const at::Tensor between = v.read();
    v.assign_sub(scalar(1));
    return between;
  });
  EXPECT_THAT(numbers_of(step(values(1, 2))), ElementsAre(2, 4));
  EXPECT_THAT(components(v), ElementsAre(1, 3));
}

TEST_F(StrategyFunctionTest, AssignsTogetherWhatIsAggregated) {
  const Variable sum = make(1, Aggregation::sum), mean = make(1, Aggregation::mean);
  const Variable first = make(1, Aggregation::only_first_replica);
  const auto step = two_.function([&](const at::Tensor& x) {
    sum.assign(x);
    mean.assign_add(x);
    first.assign(x);
    return sum.read() + mean.tensor();
  });
  EXPECT_THAT(numbers_of(step(values(2, 4))), ElementsAre(10, 10));
  EXPECT_THAT(components(sum), ElementsAre(6, 6));
  EXPECT_THAT(components(mean), ElementsAre(4, 4));
  EXPECT_THAT(components(first), ElementsAre(2, 2));
}

TEST_F(StrategyFunctionTest, KnowsWhatIsOneValueInAllReplicas) {
  const Variable sum = make(1, Aggregation::sum), mean = make(1, Aggregation::mean);
  const at::Tensor outside = scalar(4);
  two_.function([&] { mean.assign(outside); })();
  EXPECT_THAT(components(mean), ElementsAre(4, 4));
  two_.function([&] { mean.assign(2.0); })();
  EXPECT_THAT(components(mean), ElementsAre(2, 2));
  EXPECT_THAT([&] { two_.function([&] { sum.assign(outside); })(); },
              throws_error(ErrorCode::invalid_argument, "got one tensor that is the same in all"));
  EXPECT_THAT([&] { two_.function([&] { sum.assign(2.0); })(); },
              throws_error(ErrorCode::invalid_argument, "got one number that is the same in all"));
  const auto assigns = two_.function([&](const at::Tensor& x) { sum.assign(x); });
  assigns(values(1, 2));
  EXPECT_THAT(components(sum), ElementsAre(3, 3));
  EXPECT_THAT([&] { assigns(outside); },
              throws_error(ErrorCode::invalid_argument, "got one tensor that is the same in all"));
  EXPECT_THAT(components(sum), ElementsAre(3, 3));
}

TEST_F(StrategyFunctionTest, WritesVariablesThatAreSynchronizedOnRead) {
  const Variable count =
      two_.variable("count", scalar(0),
                    {.synchronization = Synchronization::on_read, .aggregation = Aggregation::sum});
  const auto step = two_.function([&](const at::Tensor& x) { count.assign_add(x); });
  for (int i = 0; i < 3; ++i) step(values(1, 2));
  EXPECT_THAT(components(count), ElementsAre(3, 6));
  EXPECT_EQ(number(count.read()), 9);
}

TEST_F(StrategyFunctionTest, ChangesRows) {
  const Variable own = two_.variable("own", row({0, 0, 0}));
  const Variable sum = two_.variable("sum", row({0, 0, 0}), {.aggregation = Aggregation::sum});
  const auto step = two_.function([&](const at::Tensor& at, const at::Tensor& x) {
    own.scatter_update(at, x);
    sum.scatter_add(at, x);
    return sum.read();
  });
  const PerReplica<at::Tensor> at({index({0}), index({2})}), x({row({1}), row({2})});
  EXPECT_THAT(numbers(step(at, x)[0]), ElementsAre(1, 0, 2));
  EXPECT_THAT(numbers(two_.local_results(own)[0].tensor()), ElementsAre(1, 0, 0));
  EXPECT_THAT(numbers(two_.local_results(own)[1].tensor()), ElementsAre(0, 0, 2));
  EXPECT_THAT(
      [&] {
        step(PerReplica<at::Tensor>({index({0}), index({5})}), x);
      },
      throws_error(ErrorCode::invalid_argument, "[variable.scatter_update]"));
}

TEST_F(StrategyFunctionTest, CombinesValuesWithGradients) {
  const Variable v = make(3);
  const SGD sgd({v}, {.learning_rate = 0.5});
  const auto step = [&](const at::Tensor& x) {
    ReplicaContext& replica = *get_replica_context();
    const at::Tensor total = replica.all_reduce("sum", v.tensor() * x);
    const at::Tensor mean =
        replica.all_reduce(ReduceOp::mean, Nest::list({x, 4})).items()[0].tensor();
    const at::Tensor all = replica.all_gather((v.tensor() * x).view({1}), 0);
    const at::Tensor loss = total * total + (all * all).sum() * mean;
    sgd.minimize(loss);
    return std::tuple(loss.detach(), all.detach());
  };
  const auto traced = two_.function(step);
  std::vector<double> got, wanted;
  for (const bool is_traced : {false, true}) {
    std::vector<double>& out = is_traced ? got : wanted;
    v.assign(3.0);
    for (int i = 0; i < 5; ++i) {
      const PerReplica<at::Tensor> x = values(0.01 * i, 0.02);
      const auto results = is_traced ? traced(x) : two_.run(step, x);
      for (const auto& [loss, all] : results.local_results()) {
        out.push_back(number(loss));
        out.push_back(number(all.sum()));
      }
      for (const double component : components(v)) out.push_back(component);
    }
  }
  EXPECT_EQ(got, wanted);
}

TEST_F(StrategyFunctionTest, GathersPartsOfDifferentSizes) {
  const Variable v = make(3);
  const SGD sgd({v}, {.learning_rate = 0.125});
  const auto step = [&](const at::Tensor& x) {
    const at::Tensor all = get_replica_context()->all_gather(x * v.tensor(), 0);
    sgd.minimize(all.square().sum() * x.sum());
    return all.detach() * at::ones({all.size(0)});
  };
  const auto traced = two_.function(step);
  std::vector<double> got, wanted;
  for (const bool is_traced : {false, true}) {
    std::vector<double>& out = is_traced ? got : wanted;
    v.assign(3.0);
    for (const auto& [a, b] :
         {std::pair(row({0.5, 0.25}), row({1})), std::pair(row({0.5}), row({1})),
          std::pair(row({}), row({1, 0.5, 0.25})), std::pair(row({1, 2}), row({1}))}) {
      const PerReplica<at::Tensor> x({a, b});
      const auto result = is_traced ? traced(x) : two_.run(step, x);
      EXPECT_EQ(result[0].size(0), a.size(0) + b.size(0));
      for (const at::Tensor& each : result.local_results()) out.push_back(number(each.sum()));
      for (const double component : components(v)) out.push_back(component);
    }
  }
  EXPECT_EQ(got, wanted);
}

TEST_F(StrategyFunctionTest, CountsTheLossesOfAllReplicas) {
  const Variable v = make(3);
  const SGD sgd({v}, {.learning_rate = 0.1});
  const auto step = [&](const at::Tensor& x) {
    const at::Tensor loss = average_loss(x * v.tensor());
    sgd.minimize(loss);
    return loss.detach();
  };
  const auto traced = two_.function(step);
  const PerReplica<at::Tensor> uneven({row({1, 2}), row({4})});
  EXPECT_THAT(numbers_of(traced(uneven)), ElementsAre(3, 4));
  EXPECT_THAT(
      [&] {
        traced(PerReplica<at::Tensor>({row({}), row({})}));
      },
      throws_error(ErrorCode::invalid_argument, "at least one example, got 0"));
}

TEST_F(StrategyFunctionTest, UsesTheLearningRateOfEachCall) {
  const Variable v = make(0);
  SGD sgd({v}, {.learning_rate = 1.0});
  const auto step = two_.function([&](const at::Tensor& x) { sgd.minimize(v.tensor() * x); });
  step(values(1, 1));
  EXPECT_THAT(components(v), ElementsAre(-2, -2));
  sgd.set_learning_rate(0.5);
  step(values(1, 1));
  EXPECT_THAT(components(v), ElementsAre(-3, -3));
  EXPECT_EQ(sgd.iterations(), 2);
  sgd.set_learning_rate(LearningRateSchedule([](std::int64_t i) { return i == 2 ? 0.25 : 4.0; }));
  step(values(1, 1));
  step(values(1, 1));
  EXPECT_THAT(components(v), ElementsAre(-11.5, -11.5));
  EXPECT_EQ(step.traces(), 1U);
}

TEST_F(StrategyFunctionTest, UpdatesWithGradientsOfSomeReplicas) {
  const Variable v = make(0), w = make(0);
  const SGD sgd({v, w}, {.learning_rate = 1.0});
  const auto step = two_.function([&](const at::Tensor& x) {
    const bool is_first = get_replica_context()->replica_id_in_sync_group() == 0;
    sgd.minimize((is_first ? v : w).tensor() * x);
  });
  step(values(1, 2));
  EXPECT_THAT(components(v), ElementsAre(-1, -1));
  EXPECT_THAT(components(w), ElementsAre(-2, -2));
}

TEST_F(StrategyFunctionTest, PutsBackWhatATraceChanges) {
  const Variable v = make(3);
  const Adam adam({v}, {.learning_rate = 0.1});
  std::atomic<int> runs = 0;
  const auto step = two_.function([&](const at::Tensor& x) {
    ++runs;
    v.assign_add(x);
    adam.minimize(v.tensor() * x);
    x.sum().item<double>();  // refused
  });
  EXPECT_THAT([&] { step(values(1, 2)); },
              throws_error(ErrorCode::invalid_argument, "_local_scalar_dense"));
  EXPECT_GT(runs, 0);
  EXPECT_THAT(components(v), ElementsAre(3, 3));
  EXPECT_EQ(adam.iterations(), 0);
}

TEST_F(StrategyFunctionTest, NamesTheReplicaThatFails) {
  const Variable v = make(1, Aggregation::sum);
  const auto step = two_.function([&](const at::Tensor& rows, const at::Tensor& at) {
    const at::Tensor taken = rows.index_select(0, at);
    v.assign(taken.sum());
  });
  const PerReplica<at::Tensor> rows({row({1, 2}), row({3, 4})});
  step(rows, PerReplica<at::Tensor>({index({0}), index({1})}));
  EXPECT_THAT(components(v), ElementsAre(5, 5));
  try {
    step(rows, PerReplica<at::Tensor>({index({0}), index({7})}));
    ADD_FAILURE() << "there is no row 7";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("running replica 1"));
  }
  EXPECT_THAT(components(v), ElementsAre(5, 5));
  step(rows, PerReplica<at::Tensor>({index({1}), index({1})}));
  EXPECT_THAT(components(v), ElementsAre(6, 6));
}

TEST_F(StrategyFunctionTest, RefusesOtherCallsInOtherReplicas) {
  const Variable v = make(1, Aggregation::sum);
  const auto is_first = [] { return get_replica_context()->replica_id_in_sync_group() == 0; };
  EXPECT_THAT(
      [&] {
        two_.function([&](const at::Tensor& x) {
          if (is_first()) v.assign(x);
        })(values(1, 2));
      },
      throws_error(ErrorCode::failed_precondition, "the same number of calls"));
  EXPECT_THAT(
      [&] {
        two_.function([&](const at::Tensor& x) { is_first() ? v.assign(x) : v.assign_add(x); })(
            values(1, 2));
      },
      throws_error(ErrorCode::invalid_argument, "assign_add("));
  const Variable w = make(1);
  const SGD sgd({w}, {.learning_rate = 1.0});
  EXPECT_THAT(
      [&] {
        two_.function([&](const at::Tensor& x) {
          const ReplicaContext replica = *get_replica_context();
          const at::Tensor first = replica.all_reduce(ReduceOp::sum, w.tensor() * x);
          const at::Tensor second = replica.all_reduce(ReduceOp::sum, w.tensor() * x * x);
          sgd.minimize(is_first() ? first : second);
        })(values(1, 2));
      },
      throws_error(ErrorCode::invalid_argument, "gradient of all_reduce(sum)"));
}

TEST_F(StrategyFunctionTest, RefusesWhatATraceCannotRecord) {
  const Variable v = make(1);
  const auto refusal_of = [&](auto step) {
    try {
      two_.function(step)(values(1, 2));
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("run() in")) << error.what();
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(
      refusal_of([](const at::Tensor& x) {
        return get_replica_context()->merge_call(
            [](Strategy& s, const PerReplica<at::Tensor>& all) { return s.reduce("sum", all); }, x);
      }),
      HasSubstr("merge_call() in one of function()"));
  EXPECT_THAT(refusal_of([&](const at::Tensor& x) { return two_.reduce("sum", x); }),
              HasSubstr("use merge_call"));
  EXPECT_THAT(refusal_of([](const at::Tensor& x) { return x.item<double>(); }),
              HasSubstr("_local_scalar_dense"));
  EXPECT_THAT(refusal_of([&](const at::Tensor& x) { return two_.variable("new", x).tensor(); }),
              HasSubstr("made before a step"));
  EXPECT_THAT(refusal_of([&](const at::Tensor& x) {
                two_.local_results(v)[1].assign(x);
                return x;
              }),
              HasSubstr("its own component"));
}

TEST_F(StrategyFunctionTest, IsCalledWhereRunIs) {
  const auto step = two_.function([](const at::Tensor& x) { return x + 1; });
  {
    const auto scope = two_.scope();
    EXPECT_EQ(number(step(scalar(1))[0]), 2);
  }
  OneDeviceStrategy other;
  const auto scope = other.scope();
  EXPECT_THAT([&] { step(scalar(1)); },
              throws_error(ErrorCode::failed_precondition, "mixing strategies"));
}

TEST_F(StrategyFunctionTest, IsNotCalledInAReplicaOrInAnotherTrace) {
  const auto step = two_.function([](const at::Tensor& x) { return x + 1; });
  EXPECT_THAT([&] { two_.run([&] { step(scalar(1)); }); },
              throws_error(ErrorCode::failed_precondition, "function() of 'mirrored' inside"));
  const auto outer = two_.function([&](const at::Tensor& x) { return step(x)[0]; });
  EXPECT_THAT([&] { outer(scalar(1)); },
              throws_error(ErrorCode::unimplemented, "outside a traced step"));
}

TEST_F(StrategyFunctionTest, DividesTheThreadsOfTheCaller) {
  const int before = at::get_num_threads();
  at::set_num_threads(8);
  const auto step = two_.function([] {
    const auto example = [] { return std::vector{scalar(0)}; };
    return internal::ReplicaTrace::current()
        ->record(std::make_shared<ThreadsCall>(), {}, {}, example)
        .at(0);
  });
  for (int repeat = 0; repeat < 2; ++repeat) EXPECT_THAT(numbers_of(step()), ElementsAre(4, 4));
  EXPECT_EQ(at::get_num_threads(), 8);
  at::set_num_threads(before);
}

// Each size depends on the one before, in a way that no other size happens to give.
TEST_F(StrategyFunctionTest, RefusesSizesThatDependOnEachOtherTooOften) {
  const auto step = two_.function([](at::Tensor x) {
    const auto& replica = *get_replica_context();
    for (int i = 0; i < 12; ++i) {
      const std::int64_t rows = replica.all_gather(x, 0).size(0);
      const std::int64_t next = (rows * rows + 5 * i) % 101 + 1;
      x = at::ones({next + replica.replica_id_in_sync_group()}, at::kDouble);
    }
    return x;
  });
  EXPECT_THAT(
      [&] {
        step(PerReplica<at::Tensor>({row({1}), row({1, 2})}));
      },
      throws_error(ErrorCode::unimplemented, "calls one after the other"));
}

TEST_F(StrategyFunctionTest, HasNoWorkerIndex) {
  EXPECT_THAT(
      [] {
        const auto step = default_strategy().function([] { return current_worker_index(); });
        step();
      },
      throws_error(ErrorCode::failed_precondition, "where no worker runs"));
}

TEST_F(StrategyFunctionTest, RunsOnOtherStrategies) {
  OneDeviceStrategy one;
  const Variable v = one.variable("v", scalar(3), {.aggregation = Aggregation::sum});
  const auto step = one.function([&](const at::Tensor& x) {
    v.assign_add(x);
    return v.read();
  });
  EXPECT_EQ(number(step(scalar(1))), 4);
  EXPECT_FALSE(step(scalar(1)).is_wrapped());
  const auto alone = default_strategy().function([](const at::Tensor& x) { return x * 2; });
  EXPECT_EQ(number(alone(scalar(2))), 4);
}

TEST_F(StrategyFunctionTest, SharesOneValueInCentralStorage) {
  CentralStorageStrategy central(testing::cpu_devices(2));
  const Variable v = central.variable("v", scalar(1), {.aggregation = Aggregation::sum});
  const Variable none = central.variable("none", scalar(1));
  const SGD sgd({v}, {.learning_rate = 1.0});
  const auto step = central.function([&](const at::Tensor& x) {
    v.assign(x);
    sgd.minimize(v.tensor() * x);
    return v.read();
  });
  EXPECT_THAT(numbers_of(step(values(2, 3))), ElementsAre(0, 0));
  EXPECT_THAT([&] { central.function([&](const at::Tensor& x) { none.assign(x); })(values(2, 3)); },
              throws_error(ErrorCode::invalid_argument, "expected an aggregation"));
}

// Regression: sums of narrow integers wrapped without a word. A trace adds no real values.
TEST_F(StrategyFunctionTest, RefusesASumThatItsTypeCannotHold) {
  const auto step = two_.function([](const at::Tensor& x) {
    return get_replica_context()->all_reduce("sum", x.to(at::kByte));
  });
  EXPECT_THAT(numbers_of(step(values(200, 3))), ElementsAre(203, 203));
  EXPECT_THAT([&] { step(values(200, 100)); },
              throws_error(ErrorCode::invalid_argument, "uint8 can hold, from 0 to 255, got 300"));
}

TEST_F(StrategyFunctionTest, RunsOnSeveralThreadsAtOnce) {
  const Variable v = make(3);
  const auto step = two_.function([&](const at::Tensor& x) {
    return get_replica_context()->all_reduce("sum", x * v.tensor());
  });
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const at::NoGradGuard no_grad;
      for (int i = 0; i < 50; ++i) wrong += number(step(values(t, i))[1]) == 3.0 * (t + i) ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(StrategyFunctionTest, RunsThatWriteComeOneAfterTheOther) {
  const Variable v = make(0, Aggregation::sum);
  const auto step = two_.function([&](const at::Tensor& x) {
    const at::Tensor before = v.read();
    v.assign_add(x);
    return v.read() - before;
  });
  step(scalar(0));
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      const at::NoGradGuard no_grad;
      for (int i = 0; i < 100; ++i) {
        for (const double added : numbers_of(step(values(1, 2)))) wrong += added == 3 ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(number(v.read()), 900);
}

}  // namespace
}  // namespace cohort
