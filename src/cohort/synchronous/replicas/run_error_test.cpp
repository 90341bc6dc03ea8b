// SPDX-License-Identifier: Apache-2.0
// The texts of errors in run(): operator, shapes, the user's line, the replica and its rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <string>

#include "cohort/core/error.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/error_of.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kLineOfView = __LINE__ + 1;
at::Tensor viewed_as_a_whole_batch(const at::Tensor& x) { return x.view({16, 4}); }

class ErrorsInRun : public ::testing::Test {
 protected:
  static PerReplica<at::Tensor> batch(std::int64_t first, std::int64_t second) {
    return PerReplica<at::Tensor>({torch::ones({first, 4}), torch::ones({second, 4})});
  }
  MirroredStrategy two_{{"CPU:0", "CPU:1"}};
  OneDeviceStrategy one_;
};

// Regression: "unknown: shape '[16, 4]' is invalid for input of size 12".
TEST_F(ErrorsInRun, OfLibTorchNameOperatorLineReplicaAndRows) {
  const Error error = error_of([&] { two_.run(viewed_as_a_whole_batch, batch(16, 3)); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error.cause(), ErrorCause::application);
  EXPECT_EQ(exit_code_of(error), 70);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("[strategy.run] 'view' failed: shape '[16, 4]' is invalid"),
                    HasSubstr("run_error_test.cpp:" + std::to_string(kLineOfView)),
                    HasSubstr("replica 1 has 3 of 19 rows (float32[3, 4])"),
                    HasSubstr("drop_remainder"), Not(HasSubstr("Exception raised"))));
}

TEST_F(ErrorsInRun, NameThemWithOneReplica) {
  const Error error = error_of([&] { one_.run(viewed_as_a_whole_batch, torch::ones({7, 4})); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("'view' failed"), HasSubstr("run_error_test.cpp:"),
                                  HasSubstr("replica 0 has 7 rows (float32[7, 4])"),
                                  Not(HasSubstr("drop_remainder"))));
}

TEST_F(ErrorsInRun, NameTheOperatorThatFailedInsideOfAnother) {
  const auto step = [](const at::Tensor& x) { return torch::linear(x, torch::ones({3, 5})); };
  const Error error = error_of([&] { two_.run(step, batch(2, 2)); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("'mm' failed: mat1 and mat2 shapes"),
                                  HasSubstr("replica 0 has 2 of 4 rows (float32[2, 4])")));
}

// Regression: "at _Unwind_RaiseException in libgcc_s.so.1+0x16e36" was the innermost line.
TEST_F(ErrorsInRun, HaveNoLineOfTheRuntime) {
  for (const Error& error :
       {error_of([&] { two_.run(viewed_as_a_whole_batch, batch(16, 3)); }), error_of([&] {
          one_.run(viewed_as_a_whole_batch, torch::ones({7, 4}));
        })}) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("run_error_test.cpp:"), Not(HasSubstr("_Unwind_")),
                                    Not(HasSubstr("libgcc_s")), Not(HasSubstr("libstdc++"))));
  }
}

// Regression: function() had the code unknown, and neither of them a remedy.
TEST_F(ErrorsInRun, OfAnUpdateBeforeTheBackwardPassAreThoseOfFunction) {
  const auto net = one_.replicate(
      [] { return torch::nn::Sequential(torch::nn::Linear(4, 3), torch::nn::Linear(3, 1)); });
  const SGD first({net.parameters().at(0)}, {.learning_rate = 0.1});
  const SGD last({net.parameters().at(2)}, {.learning_rate = 0.1});
  const auto step = [&](const at::Tensor& x) {
    const at::Tensor loss = average_loss(net->forward(x).sum(1));
    last.minimize(loss);
    first.minimize(loss);
  };
  const auto traced = one_.function(step);
  for (const Error& error : {error_of([&] {
                               one_.run(step, torch::ones({2, 4}));
                             }),
                             error_of([&] {
                               traced(torch::ones({2, 4}));
                             })}) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error.cause(), ErrorCause::application);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("has been modified by an inplace operation"),
                                    HasSubstr("compute the gradients of all optimizers before "
                                              "the first update")));
  }
}

// Regression: it ended ordinary models at the end of the first epoch, without a word of why.
TEST_F(ErrorsInRun, OfALastBatchWithFewerRowsThanReplicasHaveTheRemedies) {
  struct NormalizedNetImpl : torch::nn::Module {
    torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(4))};
  };
  const auto net = two_.replicate([] { return std::make_shared<NormalizedNetImpl>(); });
  const auto step = [&](const at::Tensor& x) { return net->norm->forward(x); };
  two_.run(step, batch(4, 4));
  const auto of_one_row =
      AllOf(HasSubstr("Expected more than 1 value per channel"),
            HasSubstr("replica 0 has 1 of 1 rows (float32[1, 4])"), HasSubstr("drop_remainder"),
            HasSubstr("SyncBatchNorm"), HasSubstr("leaves a larger one"));
  EXPECT_THAT(error_of([&] { two_.run(step, batch(1, 0)); }).what(), of_one_row);
  EXPECT_THAT(error_of([&] { two_.function(step)(batch(1, 0)); }).what(), of_one_row);
  const auto flat = [](const at::Tensor& x) { return x.view({x.size(0), -1}); };
  const Error of_none = error_of([&] { two_.run(flat, batch(1, 0)); });
  EXPECT_THAT(of_none.what(), AllOf(HasSubstr("replica 1 has 0 of 1 rows (float32[0, 4])"),
                                    HasSubstr("drop_remainder")));
}

TEST_F(ErrorsInRun, OfTheUsersOwnCodePassUnchanged) {
  const auto failing = [](const at::Tensor&) { throw std::runtime_error("mine"); };
  for (SynchronousStrategy* const strategy :
       {static_cast<SynchronousStrategy*>(&two_), static_cast<SynchronousStrategy*>(&one_)}) {
    try {
      strategy->run(failing, torch::ones({2}));
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "mine");
    }
  }
}

// Regression: "unknown: mine" was all that a program printed.
TEST_F(ErrorsInRun, OfTheUsersOwnCodeNameTheReplicaAsAnError) {
  const auto failing = [](const at::Tensor& x) {
    if (x.size(0) == 3) throw std::runtime_error("mine");
  };
  const auto text = [&](Strategy& strategy, const auto& rows) {
    try {
      strategy.run(failing, rows);
    } catch (...) {
      return std::string(current_error().what());
    }
    return std::string();
  };
  EXPECT_EQ(
      text(two_, batch(4, 3)),
      "unknown: mine\n  while running replica 1: replica 1 has 3 of 7 rows (float32[3, 4]); a "
      "last batch may have too few rows: leave it out (batch() with drop_remainder), use "
      "SyncBatchNorm in place of BatchNorm, or choose a batch size that leaves a larger one");
  EXPECT_EQ(text(one_, torch::ones({3, 4})),
            "unknown: mine\n  while running replica 0: replica 0 has 3 rows (float32[3, 4])");
  try {
    throw std::runtime_error("another");
  } catch (...) {
    EXPECT_STREQ(current_error().what(), "unknown: another");
  }
}

TEST_F(ErrorsInRun, OfCohortNameTheReplicaAndWhatAllReplicasGet) {
  const auto step = [](const at::Tensor&) {
    if (get_replica_context()->local_replica_id() == 1) throw Error(ErrorCode::data_loss, "bad");
  };
  const Error error = error_of([&] { two_.run(step, torch::ones({2, 3})); });
  EXPECT_EQ(error.code(), ErrorCode::data_loss);
  EXPECT_THAT(error.context(),
              ::testing::ElementsAre("running replica 1: replica 1 has float32[2, 3]"));
}

}  // namespace
}  // namespace cohort
