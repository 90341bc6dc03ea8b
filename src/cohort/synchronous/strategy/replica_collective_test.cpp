// SPDX-License-Identifier: Apache-2.0
// all_reduce() and all_gather() of replicas. The comment above a test names the rows of the
// specification.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <optional>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/strategy/context_fixture.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::throws_error;

class Collectives : public testing::ContextFixture {
 protected:
  static int id() { return get_replica_context()->replica_id_in_sync_group(); }
  static ReplicaContext& here() { return *get_replica_context(); }
  static at::Tensor scalar(double value) { return at::full({}, value, at::kDouble); }
  static at::Tensor rows(const std::vector<std::int64_t>& indices, const at::Tensor& values) {
    return at::sparse_coo_tensor(at::tensor(indices, at::kLong).unsqueeze(0), values, {5, 2});
  }
  static std::vector<double> numbers(const at::Tensor& tensor) {
    std::vector<double> result;
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      result.push_back(tensor.flatten()[i].item<double>());
    return result;
  }
  static std::vector<double> numbers(const PerReplica<at::Tensor>& scalars) {
    std::vector<double> result;
    for (const at::Tensor& each : scalars.local_results()) result.push_back(each.item<double>());
    return result;
  }
  // The gradient of y(x) with respect to x = 2, in each replica.
  template <class Y>
  static PerReplica<at::Tensor> gradients(Strategy& strategy, const Y& y) {
    return strategy.run([&] {
      at::Tensor x = scalar(2).requires_grad_(true);
      y(x).sum().backward();
      return x.grad();
    });
  }
  static MirroredStrategy mirrored(int replicas) {
    return MirroredStrategy(testing::cpu_devices(replicas));
  }
  // Runs `body` in the three replicas; all of them must throw the error.
  template <class F>
  void expect_all_refuse(const F& body, ErrorCode code, const std::string& words) {
    std::atomic<int> refusals = 0;
    three_.run([&] {
      EXPECT_THAT([&] { body(); }, throws_error(code, words));
      ++refusals;
      EXPECT_EQ(here().all_reduce("sum", scalar(1)).item<double>(), 3) << "the next call works";
    });
    EXPECT_EQ(refusals, 3);
  }
  // At least one replica fails by itself; the run must end with this error.
  template <class F>
  void expect_run_fails(const F& body, ErrorCode code, const std::string& words) {
    EXPECT_THAT([&] { three_.run([&] { body(); }); }, throws_error(code, words));
    EXPECT_THAT(three_.run([] { return id(); }).local_results(), ElementsAre(0, 1, 2));
  }
  MirroredStrategy three_{{"CPU:0", "CPU:1", "CPU:2"}};
};

// ARD-01, ARD-02, COL-003
TEST_F(Collectives, SumAndMeanInMemoryOfEachReplica) {
  for (const int replicas : {1, 2, 3}) {
    MirroredStrategy strategy = mirrored(replicas);
    const auto results = strategy.run([] {
      at::Tensor sum = here().all_reduce(ReduceOp::sum, scalar(id() + 1));
      at::Tensor mean = here().all_reduce("Mean", scalar(id() + 1));
      sum.add_(100 * id());  // the others do not see it
      here().merge_call([](Strategy&) {});
      return at::tensor({sum.item<double>() - 100 * id(), mean.item<double>()});
    });
    for (const at::Tensor& each : results.local_results()) {
      EXPECT_THAT(numbers(each),
                  ElementsAre(replicas * (replicas + 1) / 2.0, (replicas + 1) / 2.0));
    }
  }
}

// Regression: sums of narrow integers wrapped without a word.
TEST_F(Collectives, ASumThatItsTypeCannotHoldIsRefusedInAllReplicas) {
  expect_all_refuse([] { here().all_reduce("sum", at::full({2}, 100, at::kByte)); },
                    ErrorCode::invalid_argument,
                    "a sum that uint8 can hold, from 0 to 255, got 300");
}

TEST_F(Collectives, OfOneReplicaAreCopiesOfAnyValue) {
  OneDeviceStrategy one;
  for (Strategy* strategy : {static_cast<Strategy*>(&one), &default_strategy()}) {
    strategy->run([] {
      const at::Tensor own = at::full({}, 3, at::kInt);
      const at::Tensor copy = here().all_reduce("mean", own);
      EXPECT_EQ(copy.scalar_type(), at::kInt);
      EXPECT_FALSE(copy.is_alias_of(own));
      EXPECT_EQ(here().all_gather(own, 0).dim(), 0);
      EXPECT_THAT(
          [] {
            here().all_gather(rows({1}, at::ones({1, 2})), 0);
          },
          throws_error(ErrorCode::unimplemented, "dense"));
    });
  }
}

// ARD-07; 2.5
TEST_F(Collectives, AnswerInTheStructureOfTheValue) {
  three_.run([] {
    const Nest result = here().all_reduce(
        "sum", Nest::map({{"a", Nest::list({scalar(id()), Nest(2)})}, {"b", at::full({2}, 0.5)}}));
    EXPECT_EQ(result.structure(), "{a: [tensor, tensor], b: tensor}");
    EXPECT_EQ(result.entry("a").items()[0].tensor().item<double>(), 3);
    EXPECT_EQ(result.entry("a").items()[1].tensor().item<std::int64_t>(), 6);
    EXPECT_THAT(numbers(result.entry("b").tensor()), Each(1.5));
  });
}

// ARD-06
TEST_F(Collectives, AddValuesThatAreTheSameInAllReplicas) {
  const at::Tensor shared = scalar(2);
  const Variable v = three_.variable("v", scalar(2));
  three_.run([&] {
    EXPECT_EQ(here().all_reduce("sum", shared).item<double>(), 6);
    EXPECT_EQ(here().all_reduce("sum", v).item<double>(), 6);
    EXPECT_EQ(here().all_reduce("mean", v).item<double>(), 2);
    EXPECT_THAT([&] { here().all_gather(v, 0); },
                throws_error(ErrorCode::invalid_argument, "an axis of float64[], got 0"));
  });
}

// COL-015
TEST_F(Collectives, TheMeanOfIntegersIsExact) {
  three_.run([] {
    const auto mean = [](at::ScalarType type) {
      return here().all_reduce("mean", at::full({}, id() == 0 ? 5 : 4, type));
    };
    EXPECT_EQ(mean(at::kLong).scalar_type(), at::kDouble);
    EXPECT_EQ(mean(at::kInt).item<double>(), 13.0 / 3);
    EXPECT_EQ(mean(at::kChar).scalar_type(), at::kFloat);
    EXPECT_EQ(mean(at::kHalf).scalar_type(), at::kHalf);
    EXPECT_EQ(here().all_reduce("sum", at::full({}, id(), at::kShort)).scalar_type(), at::kShort);
  });
}

TEST_F(Collectives, HalfPrecisionIsRoundedOnce) {
  three_.run([] {
    const at::Tensor own = at::full({}, id() == 0 ? 2048 : 1, at::kHalf);
    EXPECT_EQ(here().all_reduce("sum", own).item<double>(), 2050);
  });
}

// ARD-08, COL-024
TEST_F(Collectives, CollectTheRowsOfSparseTensors) {
  three_.run([] {
    const at::Tensor own = id() == 0   ? rows({1}, at::full({1, 2}, 3.0))
                           : id() == 1 ? rows({1, 3}, at::full({2, 2}, 6.0))
                                       : rows({}, at::zeros({0, 2}));
    const auto dense = [&](const char* op) {
      return numbers(here().all_reduce(op, own).to_dense());
    };
    EXPECT_THAT(dense("sum"), ElementsAre(0, 0, 9, 9, 0, 0, 6, 6, 0, 0));
    EXPECT_THAT(dense("mean"), ElementsAre(0, 0, 3, 3, 0, 0, 2, 2, 0, 0));
    EXPECT_THAT([&] { here().all_gather(own, 0); },
                throws_error(ErrorCode::unimplemented, "dense"));
  });
}

// COL-023
TEST_F(Collectives, ValuesThatDifferAreRefusedInEveryReplica) {
  const auto refused = [&](const auto& value, const std::string& words) {
    expect_all_refuse([&] { here().all_reduce("sum", value()); }, ErrorCode::invalid_argument,
                      words);
  };
  refused([] { return Nest(at::zeros({id() == 1 ? 2 : 1})); }, "one shape and dtype");
  refused([] { return Nest(at::zeros({1}, id() == 2 ? at::kDouble : at::kFloat)); },
          "got float32[1] and float64[1] of replica 2");
  refused(
      [] {
        return Nest(id() == 1 ? rows({}, at::zeros({0, 2})) : at::zeros({5, 2}));
      },
      "and sparse float32[5, 2] of replica 1");
  refused(
      [] {
        return id() == 1 ? Nest::list({at::zeros({})}) : Nest::list({at::zeros({}), at::zeros({})});
      },
      "the value of local replica 1");
  refused([] { return Nest(at::ones({1}, id() == 1 ? at::kBool : at::kFloat)); }, "got bool");
  refused([] { return Nest("text"); }, "tensors or numbers, got text");
  refused([] { return Nest(at::Tensor()); }, "undefined");
  expect_all_refuse([] { here().all_reduce(id() == 1 ? "sum" : "mean", scalar(1)); },
                    ErrorCode::invalid_argument, "all_reduce(mean) in local replica 0");
  expect_all_refuse(
      [] {
        if (id() == 1) {
          here().all_gather(at::zeros({1}), 0);
        } else {
          here().all_reduce("sum", at::zeros({1}));
        }
      },
      ErrorCode::invalid_argument, "all_gather(axis 0) in 1");
}

// COL-016, MWM-04: these do not even meet.
TEST_F(Collectives, ArgumentsAreCheckedFirst) {
  three_.run([] {
    EXPECT_THAT([] { here().all_reduce("max", scalar(1)); },
                throws_error(ErrorCode::invalid_argument, "got \"max\""));
    EXPECT_THAT([] { here().all_gather(at::ones({1}), 0, {.bytes_per_pack = -1}); },
                throws_error(ErrorCode::invalid_argument, "bytes_per_pack"));
  });
}

// GAT-10, GAT-11; 2.6
TEST_F(Collectives, GatherPartsOfUnevenSizesAlongAnAxis) {
  three_.run([] {
    const at::Tensor own = at::full({id(), 1}, id(), at::kLong);
    EXPECT_THAT(numbers(here().all_gather(own, 0)), ElementsAre(1, 2, 2)) << "replica 0 has none";
    const at::Tensor column = at::full({2, 1}, id());
    EXPECT_THAT(numbers(here().all_gather(column, 1)), ElementsAre(0, 1, 2, 0, 1, 2));
    const Nest nest = here().all_gather(Nest::tuple({at::full({1}, id() > 0, at::kBool),
                                                     StringTensor({1}, {std::to_string(id())})}),
                                        0);
    EXPECT_THAT(numbers(nest.items()[0].tensor()), ElementsAre(0, 1, 1));
    EXPECT_THAT(nest.items()[1].strings().values(), ElementsAre("0", "1", "2"));
  });
}

// COL-057
TEST_F(Collectives, PartsThatDoNotFitAreNotGathered) {
  const auto refused = [&](const auto& value, std::int64_t axis, const std::string& words) {
    expect_all_refuse([&] { here().all_gather(value(), axis); }, ErrorCode::invalid_argument,
                      words);
  };
  refused([] { return at::zeros({1, id() + 1}); }, 0, "but axis 0, got float32[1, 1]");
  refused([] { return at::zeros({1, 1}, id() == 1 ? at::kInt : at::kFloat); }, 0, "int32[1, 1]");
  refused([] { return at::zeros({1}); }, 1, "an axis of float32[1], got 1");
  refused([] { return at::zeros({1}); }, -1, "got -1");
  refused([] { return at::zeros({}); }, 0, "an axis of float32[], got 0");
  expect_all_refuse(
      [] {
        here().all_gather(StringTensor({1, 1}, {"a"}).tensor(), 1);
      },
      ErrorCode::unimplemented, "axis 0 for strings");
}

// ARD-03, ARD-04, ARD-05
TEST_F(Collectives, TheGradientOfASumIsTheSumOfTheGradients) {
  for (const int replicas : {1, 2, 3}) {
    MirroredStrategy strategy = mirrored(replicas);
    const double sum = replicas * replicas;  // of the coefficients 1, 3, 5
    EXPECT_THAT(numbers(gradients(strategy,
                                  [](const at::Tensor& x) {
                                    return here().all_reduce("sum", x) * (2 * id() + 1);
                                  })),
                Each(sum));
    EXPECT_THAT(numbers(gradients(strategy,
                                  [](const at::Tensor& x) {
                                    return here().all_reduce("mean", x) * (2 * id() + 1);
                                  })),
                Each(sum / replicas));
  }
}

// GAT-13
TEST_F(Collectives, TheGradientOfAConcatenationIsTheReplicasOwnPart) {
  three_.run([] {
    at::Tensor x = at::zeros({2, id()}, at::kDouble).requires_grad_(true);
    const at::Tensor all = here().all_gather(x, 1);  // of widths 0, 1 and 2
    const at::Tensor weights = at::arange(6, at::kDouble).view({2, 3});
    (all * weights * (id() + 1)).sum().backward();
    EXPECT_THAT(numbers(x.grad()),
                id() == 0   ? ElementsAre()
                : id() == 1 ? ElementsAre(0, 18)
                            : ::testing::Matcher<std::vector<double>>(ElementsAre(6, 12, 24, 30)));
  });
}

TEST_F(Collectives, GradientsOfGradientsFlow) {
  // y = (x1 + x2 + x3)^3, so d2y/dx2 summed over the replicas' backward passes is known.
  const auto second = three_.run([] {
    at::Tensor x = scalar(id()).requires_grad_(true);
    const at::Tensor sum = here().all_reduce("sum", x);
    const at::Tensor first = torch::autograd::grad({sum.pow(3)}, {x}, {}, /*retain_graph=*/true,
                                                   /*create_graph=*/true)[0];
    EXPECT_EQ(first.item<double>(), 3 * 3 * 9);
    return torch::autograd::grad({first}, {x})[0];
  });
  EXPECT_THAT(numbers(second), Each(3 * 3 * 6 * 3));
}

TEST_F(Collectives, SeveralCallsAndOutputsWithoutAGradientStayInStep) {
  three_.run([] {
    at::Tensor x = scalar(1).requires_grad_(true);
    at::Tensor y = scalar(1).requires_grad_(true);
    const Nest sums = here().all_reduce("sum", Nest::list({x * 2, y}));
    const at::Tensor again = here().all_reduce("mean", sums.items()[0].tensor() * x);
    const at::Tensor counts = here().all_reduce("sum", at::full({}, 1, at::kLong));
    EXPECT_FALSE(counts.requires_grad());
    again.backward();  // sums[1] has no gradient
    EXPECT_EQ(x.grad().item<double>(), 2 * 3 + 6);
    EXPECT_EQ(y.grad().item<double>(), 0);
  });
}

// 2.5: the replicas decide together.
TEST_F(Collectives, AReplicaWithoutAGradientTakesPartInTheBackwardPass) {
  three_.run([] {
    at::Tensor x = scalar(1);
    if (id() == 1) x.requires_grad_(true);
    const at::Tensor sum = here().all_reduce("sum", x);
    EXPECT_TRUE(sum.requires_grad());
    (sum * (id() + 1)).backward();
    if (id() == 1) {
      EXPECT_EQ(x.grad().item<double>(), 1 + 2 + 3);
    }
  });
}

TEST_F(Collectives, HaveNoGraphWhereNoneIsRequired) {
  three_.run([] {
    EXPECT_FALSE(here().all_reduce("sum", scalar(1)).requires_grad());
    const c10::NoGradGuard no_grad;
    const at::Tensor x = scalar(1).requires_grad_(true);
    EXPECT_FALSE(here().all_reduce("sum", x).requires_grad());
    EXPECT_FALSE(here().all_gather(x.view({1}), 0).requires_grad());
  });
}

TEST_F(Collectives, AGradientThatAnotherReplicaHasSwitchedOffIsRefused) {
  expect_all_refuse(
      [] {
        std::optional<c10::NoGradGuard> guard;
        if (id() == 1) guard.emplace();
        here().all_reduce("sum", scalar(1).requires_grad_(id() == 2));
      },
      ErrorCode::invalid_argument, "a NoGradGuard in replica 1");
  expect_all_refuse(
      [] {
        here().all_reduce("sum", rows({1}, at::ones({1, 2})).requires_grad_(id() == 2));
      },
      ErrorCode::unimplemented, "where a gradient is required");
}

TEST_F(Collectives, ABackwardPassThatAnotherReplicaLeavesOutIsReleased) {
  expect_run_fails(
      [] {
        at::Tensor x = scalar(1).requires_grad_(true);
        const at::Tensor sum = here().all_reduce("sum", x);
        if (id() != 1) sum.backward();
      },
      ErrorCode::failed_precondition, "the same calls in which replicas meet");
  expect_run_fails(
      [] {
        at::Tensor x = scalar(1).requires_grad_(true);
        const at::Tensor sum = here().all_reduce("sum", x);
        if (id() == 1) internal::throw_error(ErrorCode::data_loss, "torn");
        sum.backward();
      },
      ErrorCode::data_loss, "torn");
}

TEST_F(Collectives, BackwardPassesInAnotherOrderAreRefused) {
  expect_run_fails(
      [] {
        at::Tensor x = scalar(1).requires_grad_(true);
        const at::Tensor first = here().all_reduce("sum", x);
        const at::Tensor second = here().all_reduce("sum", x);
        (id() == 1 ? second : first).backward();
      },
      ErrorCode::invalid_argument, "in the same order");
  expect_run_fails(
      [] {
        at::Tensor x = scalar(1).requires_grad_(true);
        const at::Tensor first = here().all_reduce("sum", x);
        if (id() == 1) {
          here().all_reduce("sum", scalar(1));
        } else {
          first.backward();
        }
      },
      ErrorCode::invalid_argument, "gradient of all_reduce(sum)");
}

TEST_F(Collectives, ABackwardPassAfterTheRunIsRefused) {
  const auto sums =
      three_.run([] { return here().all_reduce("sum", scalar(1).requires_grad_(true)); });
  EXPECT_THAT([&] { sums[0].backward(); },
              throws_error(ErrorCode::failed_precondition, "whose run may have ended"));
  three_.run([&] {
    EXPECT_THAT([&] { sums[0].backward({}, /*retain_graph=*/true); },
                throws_error(ErrorCode::failed_precondition, "another replica context"));
  });
}

// RED-29, COL-022
TEST_F(Collectives, NeedTheCurrentReplicaContext) {
  std::optional<ReplicaContext> kept;
  three_.run([&] {
    if (id() == 0) kept = here();
    here().merge_call([&](Strategy&) {
      EXPECT_THAT([&] { kept->all_reduce("sum", scalar(1)); },
                  throws_error(ErrorCode::failed_precondition,
                               "[strategy.all_reduce] expected a "
                               "replica context"));
      EXPECT_THAT([&] { kept->all_gather(at::ones({1}), 0); },
                  throws_error(ErrorCode::failed_precondition, "[strategy.all_gather]"));
    });
  });
  EXPECT_THAT([&] { kept->all_reduce("sum", scalar(1)); },
              throws_error(ErrorCode::failed_precondition, "whose run may have ended"));
}

TEST_F(Collectives, IncludeTheReplicasOfOtherWorkers) {
  InProcessWorkers workers(2);
  const auto gradients_of_all = testing::on_workers<std::vector<double>>(2, [&](int rank) {
    MultiWorkerMirroredStrategy strategy(
        workers.group(rank), {.devices = rank == 0 ? std::vector<std::string>{"CPU:0", "CPU:1"}
                                                   : std::vector<std::string>{"CPU:0", "CPU:1"}});
    return numbers(strategy.run([] {
      at::Tensor x = at::full({1}, id(), at::kDouble).requires_grad_(true);
      const at::Tensor sum = here().all_reduce("sum", x);
      EXPECT_THAT(numbers(sum), ElementsAre(0 + 1 + 2 + 3));
      const at::Tensor all = here().all_gather(x, 0);
      EXPECT_THAT(numbers(all), ElementsAre(0, 1, 2, 3));
      EXPECT_THAT(numbers(here().all_reduce("sum", rows({id()}, at::ones({1, 2}))).to_dense()),
                  ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 0, 0));
      (sum + (all * at::arange(4)).sum()).sum().backward();
      return x.grad().sum();
    }));
  });
  EXPECT_THAT(gradients_of_all[0], ElementsAre(4, 4 + 4));
  EXPECT_THAT(gradients_of_all[1], ElementsAre(4 + 8, 4 + 12));
}

}  // namespace
}  // namespace cohort
