// SPDX-License-Identifier: Apache-2.0
// ReduceOp::max and min over replicas and workers, barrier() and broadcast().
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <future>
#include <limits>
#include <string>
#include <vector>

#include "cohort/core/string_tensor.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/synchronous/mirrored/variable_fixture.h"
#include "cohort/synchronous/workers/workers_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_workers;
using testing::text_of;
using testing::throws_error;

using Extremes = testing::TwoReplicas<MirroredStrategy>;

TEST_F(Extremes, AreThoseOfEachElementAndKeepTheDtype) {
  const PerReplica<at::Tensor> reals({row({1, -2, 5}), row({3, -4, 5})});
  EXPECT_THAT(numbers(two_.reduce(ReduceOp::max, reals)), ElementsAre(3, -2, 5));
  EXPECT_THAT(numbers(two_.reduce(ReduceOp::min, reals)), ElementsAre(1, -4, 5));
  EXPECT_EQ(number(two_.reduce(ReduceOp::max, reals, 0)), 5);
  const std::int64_t large = (std::int64_t{1} << 53) + 1;  // no float64
  const PerReplica<at::Tensor> whole({index({large, -3}), index({2, -large})});
  const at::Tensor largest = two_.reduce(ReduceOp::max, whole);
  EXPECT_EQ(largest.scalar_type(), at::kLong);
  EXPECT_EQ(largest[0].item<std::int64_t>(), large);
  EXPECT_EQ(two_.reduce(ReduceOp::min, whole)[1].item<std::int64_t>(), -large);
  const PerReplica<at::Tensor> narrow({at::full({1}, 200, at::kByte), at::full({1}, 7, at::kByte)});
  EXPECT_EQ(two_.reduce(ReduceOp::max, narrow).scalar_type(), at::kByte);
  // A value that is the same in all replicas is its own extreme.
  EXPECT_EQ(number(two_.reduce(ReduceOp::max, scalar(4))), 4);
}

TEST_F(Extremes, ANaNOfAnyReplicaIsSeen) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
    const at::Tensor result =
        two_.reduce(op, PerReplica<at::Tensor>({row({nan, 1, 2}), row({1, nan, 3})}));
    EXPECT_THAT(numbers(at::isnan(result)), ElementsAre(1, 1, 0));
    EXPECT_TRUE(std::isnan(number(two_.reduce(op, values(nan, 1)))));
  }
}

TEST_F(Extremes, AReplicaWithoutRowsLeavesThemToTheOthers) {
  const PerReplica<at::Tensor> losses({at::zeros({0}, at::kDouble), row({-3, -1})});
  EXPECT_EQ(number(two_.reduce(ReduceOp::max, losses, 0)), -1);
  const PerReplica<at::Tensor> counts({index({}), index({7, 9})});
  EXPECT_EQ(number(two_.reduce(ReduceOp::min, counts, 0)), 7);
  const PerReplica<at::Tensor> nothing({at::zeros({0}), at::zeros({0})});
  EXPECT_EQ(number(two_.reduce(ReduceOp::max, nothing, 0)),
            -std::numeric_limits<double>::infinity());
}

TEST_F(Extremes, AllReplicasGetThemInRunAndInFunction) {
  const auto step = [](const at::Tensor& x) {
    const ReplicaContext& here = *get_replica_context();
    return here.all_reduce(ReduceOp::max, x) * 10 + here.all_reduce(ReduceOp::min, x);
  };
  EXPECT_THAT(numbers_of(two_.run(step, values(1, 2))), ElementsAre(21, 21));
  auto traced = two_.function([&](at::Tensor x) { return step(x); });
  EXPECT_THAT(numbers_of(traced(values(1, 2))), ElementsAre(21, 21));
  EXPECT_THAT(numbers_of(traced(values(5, -1))), ElementsAre(49, 49));
}

TEST_F(Extremes, RefuseWhatHasNoneOfThem) {
  const auto refused = [&](const at::Tensor& value) {
    return [this, value] { two_.reduce(ReduceOp::max, PerReplica<at::Tensor>({value, value})); };
  };
  EXPECT_THAT(refused(at::ones({2}, at::kComplexFloat)),
              throws_error(ErrorCode::invalid_argument, "order for ReduceOp::max, got complex64"));
  EXPECT_THAT([&] { two_.reduce("max", values(1, 2)); },
              throws_error(ErrorCode::invalid_argument, "\"MEAN\", got \"max\"; the largest"));
  EXPECT_THAT(refused(at::ones({2}, at::kBool)),
              throws_error(ErrorCode::invalid_argument, "got bool"));
  EXPECT_THAT(refused(at::ones({2}).to_sparse()),
              throws_error(ErrorCode::unimplemented, "to_dense()"));
  const at::Tensor trained = at::ones({}).requires_grad_();
  EXPECT_THAT(
      [&] { two_.run([&] { get_replica_context()->all_reduce(ReduceOp::min, trained * 2); }); },
      throws_error(ErrorCode::unimplemented,
                   "for ReduceOp::min, got one that requires a gradient"));
  const InProcessWorkers workers(1);
  EXPECT_THAT([&] { workers.group(0)->all_reduce(at::ones({2}), ReduceOp::max, Deadline()); },
              throws_error(ErrorCode::invalid_argument, "ReduceOp::sum or mean, got max"));
}

TEST(ExtremesOfWorkers, AreThoseOfAllReplicas) {
  const auto errors = run_workers(2, {.replicas = 2}, [](auto& strategy) {
    const auto ids = strategy.run([] {
      const double id = get_replica_context()->replica_id_in_sync_group();
      return at::full({}, id, at::TensorOptions(at::kDouble));
    });
    EXPECT_EQ(strategy.reduce(ReduceOp::max, ids).template item<double>(), 3);
    EXPECT_EQ(strategy.reduce(ReduceOp::min, ids).template item<double>(), 0);
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

TEST(Barrier, LetsNobodyPassBeforeAllHaveCome) {
  std::atomic<int> arrived = 0;
  const auto errors = run_workers(3, {}, [&](auto& strategy) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      strategy.barrier("round");
      EXPECT_GE(arrived.load(), 3 * round);
      strategy.barrier("read");
    }
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

TEST(Barrier, NamesWhoIsElsewhereAndWhoDoesNotCome) {
  for (const auto& error : run_workers(2, {}, [](auto& strategy) {
         strategy.barrier(strategy.worker() == 0 ? "before the epoch" : "after the epoch");
       })) {
    EXPECT_THAT(text_of(error), HasSubstr("barrier 'before the epoch'"));
    EXPECT_THAT(text_of(error), HasSubstr("barrier 'after the epoch'"));
  }
  std::promise<void> has_waited;
  const auto errors = run_workers(2, {}, [&](auto& strategy) {
    if (strategy.worker() == 1) return has_waited.get_future().wait();
    try {
      strategy.barrier("alone", std::chrono::milliseconds(50));
    } catch (...) {
      has_waited.set_value();
      throw;
    }
    has_waited.set_value();
  });
  EXPECT_THAT(text_of(errors[0]), HasSubstr("deadline_exceeded"));
  EXPECT_THAT(text_of(errors[0]), HasSubstr("worker:1"));
}

TEST(Broadcast, GivesAllTheValueOfOne) {
  const auto errors = run_workers(3, {}, [](auto& strategy) {
    const int own = strategy.worker();
    const at::Tensor ids = strategy.broadcast(at::full({own + 1}, own), 2);
    EXPECT_TRUE(ids.equal(at::full({3}, 2)));
    const double third = own / 3.0;
    const Nest all = strategy.broadcast(
        Nest::list({Nest(own), Nest(third), Nest(own == 1), Nest("of " + std::to_string(own)),
                    Nest(StringTensor("bytes " + std::to_string(own)))}),
        1);
    EXPECT_EQ(all.items()[0].integer(), 1);
    EXPECT_EQ(all.items()[1].real(), 1 / 3.0);
    EXPECT_TRUE(all.items()[2].boolean());
    EXPECT_EQ(all.items()[3].text(), "of 1");
    EXPECT_EQ(all.items()[4].strings().value(), "bytes 1");
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

TEST(Broadcast, RefusesAWorkerThatIsNoneAndDifferentCalls) {
  for (const auto& error :
       run_workers(2, {}, [](auto& strategy) { strategy.broadcast(at::ones({}), 2); }))
    EXPECT_THAT(text_of(error), HasSubstr("the number of a worker, from 0 to 1, got 2"));
  for (const auto& error : run_workers(
           2, {}, [](auto& strategy) { strategy.broadcast(at::ones({}), strategy.worker()); }))
    EXPECT_THAT(text_of(error), HasSubstr("broadcast(from 1)"));
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const at::Tensor one = at::ones({});
  EXPECT_TRUE(two.broadcast(one).is_same(one));
  two.barrier("with nobody");
  EXPECT_THAT([&] { two.broadcast(one, 1); },
              throws_error(ErrorCode::invalid_argument, "from 0 to 0, got 1"));
  EXPECT_THAT([&] { two.run([&] { two.barrier("inside"); }); },
              throws_error(ErrorCode::failed_precondition, "inside one of its replicas"));
}

}  // namespace
}  // namespace cohort
