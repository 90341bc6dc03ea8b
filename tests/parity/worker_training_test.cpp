// SPDX-License-Identifier: Apache-2.0
// Several processes that train together have the weights of one process.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/rpc/reserved_port.h"
#include "cohort/testing/mpirun.h"
#include "cohort/testing/running_program.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/worker_config.h"
#include "cohort/variable/saved_values.h"

namespace cohort {
namespace {

using testing::RunningProgram;

class DigitsOnWorkers : public testing::LeavesNoProcess,
                        public ::testing::WithParamInterface<std::string> {
 protected:
  SavedValues trained(int workers, const std::string& backend, const std::string& mode) const {
    const std::string file =
        folder_.file(backend + std::to_string(workers) + mode + ".safetensors");
    if (backend == "mpi") {
      RunningProgram job = testing::mpi_job(workers, {DIGITS_WORKER, backend, mode, file});
      EXPECT_EQ(job.wait().to_string(), "exit code 0") << job.err();
      return SavedValues(file);
    }
    const std::vector<rpc::ReservedPort> ports(static_cast<std::size_t>(workers));
    std::vector<std::unique_ptr<RunningProgram>> programs;
    for (int i = 0; i < workers; ++i) {
      const std::string config = testing::tf_config_of(testing::loopback_addresses(ports), i);
      programs.push_back(std::make_unique<RunningProgram>(
          std::vector<std::string>{DIGITS_WORKER, backend, mode, file},
          std::vector<std::pair<std::string, std::string>>{{"TF_CONFIG", config},
                                                           {"OMP_NUM_THREADS", "1"}}));
    }
    for (const auto& program : programs)
      EXPECT_EQ(program->wait().to_string(), "exit code 0") << program->err();
    return SavedValues(file);
  }

  static void expect_bits(const SavedValues& got, const SavedValues& expected, int workers) {
    EXPECT_EQ(got.keys(), expected.keys()) << workers;
    for (const std::string& key : expected.keys())
      EXPECT_TRUE(at::equal(expected.value(key), got.value(key))) << key << ", " << workers;
  }

  // The largest difference of a weight; NaN if one is.
  static double distance(const SavedValues& a, const SavedValues& b) {
    EXPECT_EQ(a.keys(), b.keys());
    EXPECT_FALSE(a.keys().empty());
    at::Tensor largest = at::zeros({});
    for (const std::string& key : a.keys())
      largest = at::maximum(largest, (a.value(key) - b.value(key)).abs().max());
    return largest.item<double>();
  }

 private:
  testing::TemporaryFolder folder_;
};

TEST_P(DigitsOnWorkers, AreThoseOfOneProcess) {
  const SavedValues alone = trained(1, GetParam(), "mean");
  for (const int workers : {2, 3}) {
    const SavedValues together = trained(workers, GetParam(), "mean");
    EXPECT_LT(distance(alone, together), 1e-5) << workers;
    expect_bits(trained(workers, GetParam(), "mean_shards"), together, workers);
  }
}

TEST_P(DigitsOnWorkers, InPartsAreThoseOfOneProcessToTheBit) {
  const SavedValues alone = trained(1, GetParam(), "parts");
  for (const int workers : {2, 4}) {
    expect_bits(trained(workers, GetParam(), "parts"), alone, workers);
    expect_bits(trained(workers, GetParam(), "parts_shards"), alone, workers);
  }
}

std::vector<std::string> backends() {
  std::vector<std::string> all = {"shared_memory", "tcp"};
  if (testing::has_mpirun()) all.emplace_back("mpi");
  return all;
}

INSTANTIATE_TEST_SUITE_P(Backends, DigitsOnWorkers, ::testing::ValuesIn(backends()));

}  // namespace
}  // namespace cohort
