// SPDX-License-Identifier: Apache-2.0
// merge_call() of several replicas. The comment above a test names the rows of the specification.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "cohort/function/function.h"
#include "cohort/strategy/context_fixture.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

class MergeCall : public testing::ContextFixture {
 protected:
  // The replica's own id, from inside a run.
  static int id() { return get_replica_context()->replica_id_in_sync_group(); }
  static ReplicaContext& here() { return *get_replica_context(); }

  MirroredStrategy three_{{"CPU:0", "CPU:1", "CPU:2"}};
};

TEST_F(MergeCall, GivesTheArgumentsOfAllReplicasAndEachItsComponentOfTheResult) {
  std::atomic<int> merges = 0;
  const PerReplica<int> results = three_.run([&] {
    const int doubled = here().merge_call(
        [&](Strategy& strategy, const PerReplica<int>& ids) {
          ++merges;
          EXPECT_EQ(&strategy, &three_);
          expect_cross(three_);
          EXPECT_THAT(ids.local_results(), ElementsAre(0, 1, 2));
          return PerReplica<int>({0, 2, 4});
        },
        id());
    EXPECT_EQ(doubled, 2 * id());
    return here().merge_call(
        [](Strategy&, const PerReplica<int>& parts) { return parts[0] + parts[1] + parts[2]; },
        doubled);
  });
  EXPECT_THAT(results.local_results(), ElementsAre(6, 6, 6));
  EXPECT_EQ(merges, 1);
}

// 2.2
TEST_F(MergeCall, TheFunctionOfReplicaZeroIsCalled) {
  const auto results =
      three_.run([&] { return here().merge_call([own = id()](Strategy&) { return own; }); });
  EXPECT_THAT(results.local_results(), ElementsAre(0, 0, 0));
}

// RUN-11, RUN-12, RUN-13; decision 0065.
TEST_F(MergeCall, InATracedStepAsksForRun) {
  const auto sum = [](const at::Tensor& x) {
    return here().merge_call(
        [](Strategy& strategy, const PerReplica<at::Tensor>& all) {
          return strategy.reduce(ReduceOp::sum, all);
        },
        x + 1);
  };
  const auto twice = [&](const at::Tensor& x) {
    at::Tensor result = x;
    for (int i = 0; i < 2; ++i) result = sum(result);
    return result;
  };
  const Function inner([&](at::Tensor x) { return sum(x); });
  const auto nested = [&](const at::Tensor& x) { return inner(x).tensor(); };
  const at::Tensor one = at::ones({});
  const auto check = [&](const auto& step, double expected) {
    EXPECT_THAT([&] { three_.function(step)(one); },
                throws_error(ErrorCode::unimplemented, "call run() in place of function()"));
    EXPECT_EQ(three_.run(step, one)[0].template item<double>(), expected);
  };
  check(sum, 6);
  check(twice, 21);
  check(nested, 6);
}

TEST_F(MergeCall, ReducesTensors) {
  const auto sums = three_.run([&] {
    return here().merge_call(
        [](Strategy& strategy, const PerReplica<at::Tensor>& values) {
          return strategy.reduce(ReduceOp::sum, values);
        },
        at::full({}, id()));
  });
  EXPECT_FALSE(sums.is_wrapped()) << "all replicas have the same tensor";
  EXPECT_EQ(sums.value().item<double>(), 3);
}

TEST_F(MergeCall, ATensorOfAllReplicasArrivesUnwrapped) {
  const at::Tensor shared = at::ones({});
  std::atomic<int> merges = 0;
  three_.run([&] {
    here().merge_call(
        [&](Strategy&, const PerReplica<at::Tensor>& value, const PerReplica<at::Tensor>& other) {
          ++merges;
          EXPECT_FALSE(value.is_wrapped());
          EXPECT_EQ(value.size(), 1U);
          EXPECT_EQ(other.size(), 3U) << "equal, but not the same object";
        },
        shared, at::ones({}));
  });
  EXPECT_EQ(merges, 1);
}

// RUN-16
TEST_F(MergeCall, RunReturnsATensorOfAllReplicasUnwrapped) {
  const at::Tensor shared = at::ones({});
  EXPECT_EQ(three_.run([&] { return shared; }).local_results().size(), 1U);
  EXPECT_EQ(three_.run([&] { return at::ones({}); }).local_results().size(), 3U);
}

// RUN-07, RUN-08: the error of a nested run inside the function that merges.
TEST_F(MergeCall, ItsErrorIsThrownInEveryReplicaAndFromRun) {
  std::atomic<int> caught = 0;
  const auto fails = [](Strategy& strategy) {
    strategy.run([] {
      if (id() == 1) internal::throw_error(ErrorCode::data_loss, "torn");
    });
  };
  const auto step = [&](bool catches) {
    try {
      here().merge_call(fails);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data_loss);
      ++caught;
      if (!catches) throw;
    }
  };
  EXPECT_THAT([&] { three_.run([&] { step(false); }); },
              throws_error(ErrorCode::data_loss, "torn"));
  EXPECT_EQ(caught, 3);
  const PerReplica<int> afterwards = three_.run([&] {
    step(true);
    return here().merge_call([](Strategy&, const PerReplica<int>& ids) { return ids[2]; }, id());
  });
  EXPECT_THAT(afterwards.local_results(), ElementsAre(2, 2, 2)) << "later calls work";
}

// RUN-06
TEST_F(MergeCall, AnErrorInOneReplicaReleasesTheOthersAndIsTheErrorOfTheRun) {
  for (int failing = 0; failing < 3; ++failing) {
    std::atomic<int> released = 0;
    try {
      three_.run([&] {
        if (id() == failing) internal::throw_error(ErrorCode::out_of_range, "mine");
        try {
          here().merge_call([](Strategy&) {});
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::cancelled);
          ++released;
          throw;
        }
      });
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_range);
      EXPECT_THAT(error.context(), ElementsAre("running replica " + std::to_string(failing)));
    }
    EXPECT_EQ(released, 2);
  }
  EXPECT_THAT(three_.run([] { return id(); }).local_results(), ElementsAre(0, 1, 2));
}

TEST_F(MergeCall, OtherExceptionsPassUnchanged) {
  EXPECT_THROW(three_.run([] { throw std::domain_error("mine"); }), std::domain_error);
}

// RUN-10
TEST_F(MergeCall, ThatOneReplicaLeavesOutIsRefused) {
  for (int calling = 0; calling < 3; ++calling) {
    EXPECT_THAT(
        ([&] {
          three_.run([&] {
            if (id() == calling) here().merge_call([](Strategy&) {});
          });
        }),
        throws_error(ErrorCode::failed_precondition, "the same calls in which replicas meet"));
  }
}

TEST_F(MergeCall, OfOtherTypesIsRefused) {
  EXPECT_THAT(([&] {
                three_.run([&] {
                  if (id() == 1)
                    here().merge_call([](Strategy&, PerReplica<int>) {}, 1);
                  else
                    here().merge_call([](Strategy&, PerReplica<double>) {}, 1.0);
                });
              }),
              throws_error(ErrorCode::invalid_argument, "in replica 1 than in replica 0"));
}

TEST_F(MergeCall, ANestedRunHasReplicasOfItsOwn) {
  const auto sums = three_.run([&] {
    return here().merge_call(
        [](Strategy& strategy, const PerReplica<int>& ids) {
          return strategy.run([](int outer) { return 10 * outer + id(); }, ids);
        },
        id());
  });
  EXPECT_THAT(sums.local_results(), ElementsAre(0, 11, 22));
}

TEST_F(MergeCall, ManyInALoopStayInStep) {
  const auto counts = three_.run([&] {
    int count = 0;
    for (int i = 0; i < 1000; ++i) {
      count = here().merge_call(
          [](Strategy&, const PerReplica<int>& all) {
            EXPECT_EQ(all[0], all[1]);
            EXPECT_EQ(all[0], all[2]);
            return all[0] + 1;
          },
          count);
    }
    return count;
  });
  EXPECT_THAT(counts.local_results(), ElementsAre(1000, 1000, 1000));
}

// RUN-039
TEST_F(MergeCall, NestsArriveUnwrappedIfEveryLeafIsOneObject) {
  const at::Tensor shared = at::ones({});
  const Variable v = three_.variable("v", at::full({}, 3.0));
  three_.run([&] {
    here().merge_call(
        [&](Strategy&, const PerReplica<Nest>& number, const PerReplica<Nest>& same,
            const PerReplica<Nest>& mixed, const PerReplica<Variable>& variable) {
          EXPECT_TRUE(number.is_wrapped()) << "a number is one of each replica";
          EXPECT_FALSE(same.is_wrapped());
          EXPECT_EQ(mixed.size(), 3U);
          EXPECT_TRUE(variable.value() == v);
        },
        Nest(2.5), Nest::list({shared, Nest("text"), Nest()}), Nest::list({shared, Nest(id())}), v);
  });
  EXPECT_THAT(
      ([&] {
        three_.run([&] {
          here().merge_call([](Strategy&, const PerReplica<Nest>&) {},
                            id() == 2 ? Nest(1) : Nest::list({Nest(1)}));
        });
      }),
      throws_error(ErrorCode::invalid_argument, "[strategy.merge_call] the value of replica 2"));
}

// CTX-16, CTX-058, CTX-060; 1.3.9
TEST_F(MergeCall, AContextIsRefusedAfterItsRun) {
  std::vector<ReplicaContext> kept;
  const ReplicaContext* place = nullptr;
  {
    MirroredStrategy two({"CPU:0", "CPU:1"});
    two.run([&] {
      here().merge_call(
          [&](Strategy&, const PerReplica<ReplicaContext*>& contexts) {
            for (const ReplicaContext* each : contexts.local_results()) kept.push_back(*each);
          },
          get_replica_context());
      if (id() == 0) place = get_replica_context();
    });
    two.run([&] {
      for (const ReplicaContext& each : kept) {
        EXPECT_THAT([&] { each.merge_call([](Strategy&) {}); },
                    throws_error(ErrorCode::failed_precondition, "another replica context"));
      }
    });
    const StrategyScope scope = two.scope();
    EXPECT_THAT([&] { kept[0].merge_call([](Strategy&) {}); },
                throws_error(ErrorCode::failed_precondition, "got cross-replica context"));
  }
  // The strategy does not exist any more.
  EXPECT_THAT([&] { kept[1].merge_call([](Strategy&) {}); },
              throws_error(ErrorCode::failed_precondition, "of another strategy"));
  EXPECT_THAT([&] { place->merge_call([](Strategy&) {}); },
              throws_error(ErrorCode::failed_precondition, "of another strategy"))
      << "a pointer still points to a context";
}

TEST_F(MergeCall, AContextOfAnOuterRunIsRefusedInANestedOne) {
  three_.run([&] {
    here().merge_call(
        [&](Strategy& strategy, const PerReplica<ReplicaContext*>& outer) {
          strategy.run([&] {
            EXPECT_THAT([&] { outer[0]->merge_call([](Strategy&) {}); },
                        throws_error(ErrorCode::failed_precondition, "another replica context"));
          });
        },
        get_replica_context());
    here().merge_call([](Strategy&) {});
  });
}

}  // namespace
}  // namespace cohort
