// SPDX-License-Identifier: Apache-2.0
// Trains on a CSV file with string categories, which the workers look up in a vocabulary.
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/data/field_function.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::TestCluster;
using testing::throws_error;

// A temporary folder; the destructor removes it.
class Folder {
 public:
  Folder() {
    std::string pattern = ::testing::TempDir() + "string_features_XXXXXX";
    path = ::mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string write(const std::string& name, std::string_view text) const {
    std::ofstream(path + "/" + name) << text;
    return path + "/" + name;
  }
  std::string path;
};

// `clicked` depends only on the city, and is 0 for all other cities.
constexpr std::string_view kClicks =
    "city,plan,clicked\n"
    "Berlin,free,1\nLagos,free,0\nBerlin,pro,1\nLagos,pro,0\n"
    "Berlin,pro,1\nOslo,free,0\nBerlin,free,1\nLagos,pro,0\n";

class StringFeatures : public ::testing::Test {
 protected:
  Dataset clicks() const {
    return Dataset::csv(StringTensor(csv),
                        {.columns = {{kString}, {kString}, {kString}}, .header = true})
        .batch(4)
        .repeat();
  }
  PerWorkerIterator iterator_of(const Dataset& dataset) {
    return coordinator.create_per_worker_dataset(dataset).iterator();
  }

  const Folder folder;
  const std::string csv = folder.write("clicks.csv", kClicks);
  const data::LookupOptions cities{.file = folder.write("cities.txt", "Berlin\nLagos\n")};
  TestCluster cluster{
      {.workers = 2, .command = {COHORT_COMMAND, "server"}, .data_dirs = {folder.path}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy};
};

TEST_F(StringFeatures, TrainAStepOnTwoWorkers) {
  ASSERT_EQ(data::vocabulary_size(cities), 3);
  const Variable by_city = strategy.variable("by_city", at::zeros({3}));
  const Variable by_plan = strategy.variable("by_plan", at::zeros({8}));
  const SGD optimizer({by_city, by_plan}, {.learning_rate = 1});
  const PerWorkerIterator iterator =
      iterator_of(clicks()
                      .map(data::lookup(0, cities))
                      .map(data::to_hash_bucket_fast(1, {.num_buckets = 8}))
                      .map(data::to_number(2)));
  const Function step([&](Iterator& it) {
    const auto [city, plan, clicked] = it.next<at::Tensor, at::Tensor, at::Tensor>();
    const at::Tensor logits =
        by_city.tensor().index_select(0, city).add(by_plan.tensor().index_select(0, plan));
    const at::Tensor loss = at::binary_cross_entropy_with_logits(logits, clicked);
    optimizer.minimize(loss);
    return loss;
  });
  std::vector<RemoteValue> losses;
  for (int i = 0; i < 100; ++i) losses.push_back(coordinator.schedule(step, iterator));
  coordinator.join();
  for (const std::uint64_t ran : coordinator.statistics().closures) EXPECT_GT(ran, 0U);
  EXPECT_LT(losses.back().fetch().tensor().item<float>(), 0.2);
  const at::Tensor weights = by_city.read();
  EXPECT_GT(weights[1].item<float>(), 1) << "Berlin";
  EXPECT_LT(weights[2].item<float>(), -1) << "Lagos";
  EXPECT_LT(weights[0].item<float>(), 0) << "what is not in the vocabulary";
}

TEST_F(StringFeatures, AStringFieldThatAStepDrawsIsNamed) {
  const PerWorkerIterator iterator = iterator_of(clicks().map(data::lookup(0, cities)));
  const Function step([](Iterator& it) { return it.get_next().items().at(0).tensor().sum(); });
  const auto schedule = [&] { coordinator.schedule(step, iterator); };
  EXPECT_THAT(schedule, throws_error(ErrorCode::invalid_argument,
                                     "strings in field 1 of (int64[4], string[4], string[4]); "
                                     "turn strings into numbers in the input pipeline"));
  EXPECT_THAT(schedule, throws_error(ErrorCode::invalid_argument, "data::lookup()"));
}

TEST_F(StringFeatures, AVocabularyOutsideTheDataDirectoriesIsRefused) {
  const Folder elsewhere;
  const data::LookupOptions outside{.file = elsewhere.write("cities.txt", "Berlin\n")};
  const PerWorkerIterator iterator = iterator_of(clicks().map(data::lookup(0, outside)));
  const Function step([](Iterator& it) { return it.get_next().items().at(0).tensor().sum(); });
  EXPECT_THAT(
      [&] {
        coordinator.schedule(step, iterator);
        coordinator.join();
      },
      throws_error(ErrorCode::failed_precondition, elsewhere.path));
}

TEST(StringFeaturesEagerly, AStringFieldIsRefusedAsOnAWorker) {
  TestCluster cluster({.command = {COHORT_COMMAND, "server"}});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy, {.run_eagerly = true});
  const Dataset data = Dataset::from_tensors(StringTensor(std::string("Lima"))).repeat();
  const PerWorkerIterator iterator = coordinator.create_per_worker_dataset(data).iterator();
  const Function step([](Iterator& it) {
    it.get_next();
    return at::zeros({});
  });
  EXPECT_THAT(
      [&] { coordinator.schedule(step, iterator).fetch(); },
      throws_error(ErrorCode::invalid_argument, "strings in the element of string[]; turn"));
}

}  // namespace
}  // namespace cohort
