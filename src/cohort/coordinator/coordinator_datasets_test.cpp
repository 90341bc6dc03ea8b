// SPDX-License-Identifier: Apache-2.0
// The datasets that a coordinator makes for its workers.
#include <ATen/ops/ones.h>
#include <ATen/ops/rand_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/testing/coordinator_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class CoordinatorDatasetsTest : public testing::CoordinatorFixture {};

// Spec 1.3: distribute_dataset() has no option for the state of a dataset's functions.
TEST_F(CoordinatorDatasetsTest, WorkersGetDatasetsWhoseFunctionsHaveState) {
  const Dataset data = Dataset::range(3)
                           .map([](at::Tensor x) { return at::rand_like(x, at::kFloat); })
                           .with_options({.external_state_policy = ExternalStatePolicy::fail});
  EXPECT_THAT([&] { data.serialize(); }, throws_error(ErrorCode::failed_precondition, "random"));
  ClusterCoordinator coordinator(strategy());
  coordinator.create_per_worker_dataset(data);
  coordinator.create_per_worker_dataset([&](const InputContext&) { return data; });
}

// Spec 5.6: a dataset function may return a distributed dataset, or be one.
TEST_F(CoordinatorDatasetsTest, DatasetFunctionsMayBeThoseOfTheStrategy) {
  ClusterCoordinator coordinator(strategy());
  std::vector<std::int64_t> workers;
  const auto make = [&](const InputContext& context) {
    workers.push_back(context.input_pipeline_id);
    return Dataset::range(3);
  };
  int calls = 0;
  coordinator.create_per_worker_dataset([&] {
    ++calls;
    return strategy().distribute_datasets_from_function(make);
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(workers, std::vector<std::int64_t>{0});
  coordinator.create_per_worker_dataset(strategy().distribute_datasets_from_function(make));
  EXPECT_EQ(workers.size(), 2U);
  EXPECT_THAT([&] { strategy().distribute_datasets_from_function({}); },
              throws_error(ErrorCode::invalid_argument, "expected a function, got an empty one"));
  EXPECT_THAT([&] { coordinator.create_per_worker_dataset([] { return DatasetFunction(); }); },
              throws_error(ErrorCode::invalid_argument, "got an empty one"));
  EXPECT_THAT(
      [&] {
        strategy().distribute_datasets_from_function(
            make, {.fetch_to_device = true, .place_dataset_on_device = true});
      },
      throws_error(ErrorCode::invalid_argument, "place_dataset_on_device"));
}

// Regression: the call for each worker created another variable, with the same name or not.
TEST_F(CoordinatorDatasetsTest, AFunctionThatMakesADatasetMakesNoVariables) {
  ClusterCoordinator coordinator(strategy());
  const auto make = [&](const InputContext&) {
    strategy().variable("v", at::ones({}));
    return Dataset::range(3);
  };
  EXPECT_THAT([&] { coordinator.create_per_worker_dataset(make); },
              throws_error(ErrorCode::invalid_argument, "got 'v' made inside one"));
  EXPECT_NO_THROW(strategy().variable("v", at::ones({}))) << "afterwards";
}

}  // namespace
}  // namespace cohort
