// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/shipped_dataset.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/rand_like.h>
#include <gmock/gmock.h>

#include "cohort/core/log.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Policy = std::optional<ExternalStatePolicy>;

// Uses LibTorch's generator, whose state is not serialized.
Dataset noisy(const Dataset& dataset) {
  return dataset.map(
      Function([](at::Tensor x) { return at::rand_like(x, at::kFloat); }, {.name = "noise"}));
}
Dataset noisily_kept() {
  return rows(4).filter(
      Function([](at::Tensor x) { return at::rand_like(x, at::kFloat).gt(2); }, {.name = "keep"}));
}
Dataset inside() {
  return rows(4).flat_map([](const at::Tensor& x) { return noisy(Dataset::from_tensors(x)); });
}

class ExternalState : public ::testing::Test {
 protected:
  ExternalState() {
    set_log_sink([this](LogLevel, std::string_view line) { lines.emplace_back(line); });
  }
  ~ExternalState() override { set_log_sink(nullptr); }

  static Dataset under(const Dataset& dataset, Policy policy) {
    DatasetOptions options;
    options.external_state_policy = policy;
    return dataset.with_options(options);
  }
  static void save(const Dataset& dataset, Policy policy) {
    under(dataset, policy).iterator().save();
  }
  static void ship(const Dataset& dataset, Policy policy) { under(dataset, policy).serialize(); }

  std::vector<std::string> lines;
};

TEST_F(ExternalState, IsRefusedUnderFail) {
  const Policy fail = ExternalStatePolicy::fail;
  for (const Dataset& dataset : {noisy(rows(4)), noisily_kept(), inside()}) {
    for (const auto& use : {&ship, &save}) {
      const Error error = error_of([&] { use(dataset, fail); });
      EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
      EXPECT_THAT(error.message(), HasSubstr("which draws random numbers"));
    }
  }
  EXPECT_THAT(error_of([&] { ship(noisy(rows(4)), fail); }).message(),
              AllOf(HasSubstr("[data.serialize]"), HasSubstr("'noise' of map"), HasSubstr("warn")));
  EXPECT_THAT(lines, IsEmpty());
}

TEST_F(ExternalState, IsWarnedOfOnceUnderWarn) {
  ship(noisy(noisy(rows(4))), ExternalStatePolicy::warn);
  EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr("[data.serialize]"), HasSubstr("'noise' of map"),
                                       HasSubstr("::ignore"))));
  lines.clear();
  ship(noisy(rows(4)), {});
  EXPECT_THAT(lines, ElementsAre(HasSubstr("draws random numbers")));
  lines.clear();
  save(noisy(rows(4)), ExternalStatePolicy::warn);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("[data.save]")));
}

TEST_F(ExternalState, IsDroppedInSilenceUnderIgnore) {
  ship(noisy(rows(4)), ExternalStatePolicy::ignore);
  save(noisy(rows(4)), ExternalStatePolicy::ignore);
  EXPECT_THAT(lines, IsEmpty());
}

// As in tf, the state of a shuffle or a cache is part of its position.
TEST_F(ExternalState, IsNoneOfOpsAndPlainFunctions) {
  const auto twice = Function([](at::Tensor x) { return x + x; });
  for (const Dataset& dataset : {rows(4).shuffle(4), rows(4).cache(), rows(4).map(twice)}) {
    ship(dataset, ExternalStatePolicy::fail);
    save(dataset, ExternalStatePolicy::fail);
  }
  EXPECT_THAT(lines, IsEmpty());
}

TEST_F(ExternalState, MayBeInWhatCannotBeLookedInto) {
  const Dataset words = Dataset::from_tensor_slices(StringTensor({2}, {"a", "b"}));
  const Dataset mapped = words.map(Function([](at::Tensor word) { return word; }));
  const Error error = error_of([&] { save(mapped, ExternalStatePolicy::fail); });
  EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
  EXPECT_THAT(error.message(), HasSubstr("cannot be looked into"));
}

TEST_F(ExternalState, IsOnlyWarnedOfWhereWorkersOfOneJobGetIt) {
  const Dataset dataset = under(noisy(rows(4)), ExternalStatePolicy::fail);
  const auto shipped = ship_to_workers({rows(2), dataset, dataset});
  ASSERT_EQ(shipped.size(), 3U);
  EXPECT_EQ(Dataset::deserialize(shipped[0]->bytes()).cardinality(), 2);
  EXPECT_EQ(Dataset::deserialize(shipped[2]->bytes()).cardinality(), 4);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("draws random numbers"))) << "once";
}

TEST_F(ExternalState, LeavesPositionsAsTheyAre) {
  const Dataset dataset = under(rows(4), ExternalStatePolicy::fail);
  Iterator first = dataset.iterator();
  first.try_next();
  Iterator second = dataset.iterator();
  second.restore(first.save());
  EXPECT_EQ(second.try_next()->tensor().item().toLong(), 1);
}

}  // namespace
}  // namespace cohort::data
