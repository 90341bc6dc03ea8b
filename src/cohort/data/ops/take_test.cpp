// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;

INSTANTIATE_TEST_SUITE_P(
    Take, DatasetOp,
    ::testing::Values(DatasetOpCase{"Rows", [] { return rows(9).take(5); }},
                      DatasetOpCase{"Tensors", [] { return tensors(9).take(5); }},
                      DatasetOpCase{"More", [] { return tensors(3).take(5); }},
                      DatasetOpCase{"All", [] { return rows(3).take(-1); }},
                      DatasetOpCase{"OfAnEndlessOne", [] { return rows(3).repeat().take(7); }},
                      DatasetOpCase{"Batched", [] { return tensors(9).take(7).batch(3); }}));

class TakeOfBothKinds : public ::testing::TestWithParam<bool> {
 protected:
  static Dataset numbers(std::int64_t count) { return GetParam() ? rows(count) : tensors(count); }
};
INSTANTIATE_TEST_SUITE_P(Take, TakeOfBothKinds, ::testing::Bool());

TEST_P(TakeOfBothKinds, YieldsTheFirstElements) {
  EXPECT_THAT(scalars_of(numbers(5).take(2)), ElementsAre(0, 1));
  EXPECT_THAT(scalars_of(numbers(3).take(8)), ElementsAre(0, 1, 2));
  EXPECT_THAT(scalars_of(numbers(3).take(0)), ElementsAre());
  EXPECT_THAT(scalars_of(numbers(3).take(-5)), ElementsAre(0, 1, 2));
}

TEST_P(TakeOfBothKinds, FillsBatchesUpToItsCount) {
  EXPECT_THAT(elements_of(numbers(9).take(5).batch(3)), ElementsAre("[0, 1, 2]", "[3, 4]"));
  EXPECT_THAT(elements_of(numbers(4).take(9).batch(3)), ElementsAre("[0, 1, 2]", "[3]"));
}

TEST_P(TakeOfBothKinds, MayBeSharded) {
  EXPECT_THAT(scalars_of(numbers(20).take(7).shard(3, 1)), ElementsAre(1, 4));
}

TEST(Take, CountsItsElements) {
  EXPECT_EQ(rows(5).take(2).cardinality(), 2);
  EXPECT_EQ(rows(5).take(8).cardinality(), 5);
  EXPECT_EQ(rows(3).take(-5).cardinality(), 3);
  EXPECT_EQ(rows(5).repeat().take(2).cardinality(), 2);
  EXPECT_EQ(rows(5).repeat().take(-1).cardinality(), kInfiniteCardinality);
  EXPECT_EQ(rows(5).ignore_errors().take(2).cardinality(), kUnknownCardinality);
}

TEST(Take, DoesNotCountErrors) {
  EXPECT_THAT(elements_of(failing_at(1, 5).take(3)), ElementsAre("0", "error data_loss", "2", "3"));
  EXPECT_THAT(elements_of(failing_at(1, 9).take(4).batch(2)),
              ElementsAre("error data_loss", "[2, 3]", "[4]"));
}

// Another iterator may fill the cache once this one has taken all its elements.
TEST(Take, LetsGoOfItsInputAtTheEnd) {
  const ScratchDirectory folder;
  const Dataset dataset = tensors(4).cache(folder.file("c")).take(2);
  Iterator first = dataset.iterator();
  EXPECT_THAT(drain(first), ElementsAre("0", "1"));
  const Bytes position = first.save();
  Iterator second = dataset.iterator();
  EXPECT_THAT(drain(second), ElementsAre("0", "1"));
  Iterator third = dataset.iterator();
  third.get_next();
  const Bytes middle = third.save();
  third.restore(position);
  EXPECT_FALSE(third.try_next().has_value());
  third.restore(middle);
  EXPECT_THAT(drain(third), ElementsAre("1"));
}

}  // namespace
}  // namespace cohort::data
