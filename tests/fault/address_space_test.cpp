// SPDX-License-Identifier: Apache-2.0
// Tasks whose address space is limited (ulimit -v). Each must work, or say what it lacks.
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/rpc/reserved_port.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/running_program.h"
#include "cohort/testing/worker_config.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they reserve terabytes

testing::TestClusterOptions with_limited_worker(int kibibytes) {
  return {.command = {"/bin/sh", "-c",
                      "case $TF_CONFIG in *task*worker*) ulimit -v $0;; esac; exec \"$1\" server",
                      std::to_string(kibibytes), COHORT_COMMAND}};
}

// Two steps that multiply matrices on the worker. Returns the error of the cluster or of the epoch.
std::optional<Error> train(int kibibytes, std::int64_t rows, std::int64_t columns) {
  try {
    const testing::TestCluster cluster(with_limited_worker(kibibytes));
    ParameterServerStrategy strategy(cluster.resolver());
    ClusterCoordinator coordinator(strategy, {.progress_timeout = std::chrono::seconds(20)});
    Variable weights = strategy.variable("weights", at::zeros({columns, 300}));
    const Function step([&](Iterator& it) {
      const at::Tensor product = at::mm(it.next<at::Tensor>(), weights.read());
      weights.assign_add(at::ones({columns, 300}));
      return product.sum();
    });
    const Dataset data = Dataset::from_tensor_slices(at::ones({rows, columns})).batch(rows / 2);
    EXPECT_EQ(coordinator.run_epoch(step, data).steps, 2U);
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

// It was silent until the progress timeout, in a product of matrices for which OpenBLAS waited for
// memory, or gRPC aborted it.
TEST(AddressSpace, AWorkerWithTooLittleSaysSoAtItsStart) {
  int successes = 0;
  for (const int kibibytes : {700'000, 800'000, 900'000, 1'000'000, 1'200'000, 1'400'000}) {
    const std::optional<Error> error = train(kibibytes, 20, 300);
    if (error) {
      EXPECT_THAT(error->message(), HasSubstr("ulimit -v")) << kibibytes;
    } else {
      ++successes;
    }
  }
  EXPECT_GE(successes, 2);
}

// gRPC crashed the worker, and the coordinator only saw that it was lost.
TEST(AddressSpace, DataThatAWorkerCannotTakeIsRefusedByIt) {
  const std::optional<Error> error = train(1'200'000, 800, 100'000);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::resource_exhausted) << error->what();
  EXPECT_EQ(error->origin(), "worker:0");
  EXPECT_THAT(error->message(), HasSubstr("ulimit -v"));
}

// How a training ends whose chief has so many kibibytes.
testing::RunningProgram train_with_limited_chief(const std::string& kibibytes) {
  const std::string digits = std::string(COHORT_SOURCE_DIR) + "/examples/data/digits";
  return testing::RunningProgram(
      {COHORT_COMMAND, "launch", "--workers", "1", "--ps", "1", "--data", digits, "--", "/bin/sh",
       "-c", "case $TF_CONFIG in *task*chief*) ulimit -v $0;; esac; exec \"$@\"", kibibytes,
       EXAMPLE_PROGRAM, "--data", "digits", "--data-dir", digits});
}

// gRPC aborted the program, or it waited in its first trace for memory of OpenBLAS.
TEST(AddressSpace, AChiefWithTooLittleSaysSoAtItsStart) {
  testing::RunningProgram launch =
      train_with_limited_chief(TORCH_VERSION_MAJOR >= 2 ? "550000" : "850000");
  EXPECT_EQ(launch.wait().to_string(), "exit code 75") << launch.err();
  EXPECT_THAT(launch.err(), HasSubstr("ulimit -v"));
}

// It printed its error and waited for ever in exit(), for threads that OpenBLAS starts with the
// program. How it ends is not tested: with the least, libraries end it before main().
TEST(AddressSpace, AChiefWithoutRoomForThreadsOfOpenBlasEnds) {
  for (const char* kibibytes : {"500000", "620000", "650000"}) {
    testing::RunningProgram launch = train_with_limited_chief(kibibytes);
    launch.wait();  // fails after a minute
  }
}

// It was silent in its first product of matrices, in which OpenBLAS waited for memory; or already
// when it looked for room, since threads of OpenBLAS had taken what there was.
TEST(AddressSpace, AWorkerOfASynchronousStrategyWithTooLittleSaysSo) {
  const std::vector<rpc::ReservedPort> ports(1);
  const std::string cluster = testing::tf_config_of(testing::loopback_addresses(ports), 0);
  int successes = 0;
  for (const char* kibibytes : {"700000", "850000", "900000", "1000000", "1100000", "1400000"}) {
    for (const char* threads : {"1", "2", "4"}) {
      for (const char* replicas : {"1", "2"}) {
        SCOPED_TRACE(std::string(kibibytes) + " KiB, " + threads + " threads, " + replicas);
        testing::RunningProgram worker(
            {"/bin/sh", "-c", "ulimit -v $0; exec \"$@\"", kibibytes, TRAINING_WORKER, "10", "3000",
             "tcp"},
            {{"TF_CONFIG", cluster}, {"OMP_NUM_THREADS", threads}, {"REPLICAS", replicas}});
        const std::string end = worker.wait().to_string();  // fails after a minute
        if (end == "exit code 0") {
          ++successes;
        } else {
          EXPECT_EQ(end, "exit code 75") << worker.out() << worker.err();
          EXPECT_THAT(worker.err(),
                      ::testing::AnyOf(HasSubstr("ulimit -v"), HasSubstr("resource_exhausted")));
        }
      }
    }
  }
  EXPECT_GE(successes, 6);
}

#endif

}  // namespace
}  // namespace cohort
