// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;

INSTANTIATE_TEST_SUITE_P(
    IgnoreErrors, DatasetOp,
    ::testing::Values(DatasetOpCase{"Rows", [] { return rows(4).ignore_errors(); }},
                      DatasetOpCase{"Tensors", [] { return tensors(4).ignore_errors(); }},
                      DatasetOpCase{"Failing", [] { return failing_at(2, 4).ignore_errors(); },
                                    /*can_ship=*/false}));

TEST(IgnoreErrors, PassesOverElementsThatFail) {
  EXPECT_THAT(scalars_of(failing_at(1, 4).ignore_errors()), ElementsAre(0, 2, 3));
  EXPECT_THAT(elements_of(failing_at(1, 6).batch(2).ignore_errors()),
              ElementsAre("[2, 3]", "[4, 5]"));
  EXPECT_THAT(elements_of(failing_at(1, 4).ignore_errors().batch(2)), ElementsAre("[0, 2]", "[3]"));
}

// Records that are read by number were once treated as rows that cannot fail.
TEST(IgnoreErrors, PassesOverBadRecordsOfAnIndexedFile) {
  const ScratchDirectory directory;
  const std::string path = directory.write_records("f", {"r0", "r1", "r2"});
  write_record_index(path);
  std::string bytes = bytes_of_file(path);
  bytes[bytes.size() / 3 + 12] = 'x';
  directory.write("f", bytes);
  const Dataset records = Dataset::tf_record(StringTensor(path));
  EXPECT_THAT(elements_of(records.ignore_errors()), ElementsAre("'r0'", "'r2'"));
  EXPECT_THAT(elements_of(records.repeat(2).ignore_errors().batch(3)),
              ElementsAre("['r0', 'r2', 'r0']", "['r2']"));
}

TEST(IgnoreErrors, DoesNotKnowItsCardinality) {
  EXPECT_EQ(rows(4).ignore_errors().cardinality(), kUnknownCardinality);
  EXPECT_EQ(rows(4).repeat().ignore_errors().cardinality(), kInfiniteCardinality);
}

TEST(IgnoreErrors, DoesNotPassOverAnEndOfTheWork) {
  const Dataset dataset = rows(2).map([](at::Tensor x) {
    COHORT_CHECK(false, ErrorCode::cancelled, "stop");
    return x;
  });
  Iterator iterator = dataset.ignore_errors().iterator();
  EXPECT_EQ(error_of([&] { iterator.try_next(); }).code(), ErrorCode::cancelled);
}

// Regression: elements in the buffers of a position became errors behind ignore_errors(), since a
// bad second element hid what the first one looks like.
TEST(IgnoreErrors, GoesOnFromAPositionWithElementsInBuffers) {
  const auto make = [] { return failing_at(1, 9).prefetch(3).ignore_errors().batch(2); };
  Iterator whole = make().iterator();
  whole.try_next();
  const Bytes position = whole.save();
  Iterator restored = make().iterator();
  restored.restore(position);
  while (const std::optional<Nest> expected = whole.try_next()) {
    const std::optional<Nest> got = restored.try_next();
    ASSERT_TRUE(got.has_value());
    EXPECT_TRUE(got->tensor().equal(expected->tensor()));
  }
  EXPECT_FALSE(restored.try_next().has_value());
}

// The error did not say why ignore_errors() was of no use, nor what was.
TEST(IgnoreErrors, AfterAMapWhoseFirstElementIsBadNamesOutputSpec) {
  EXPECT_THAT(error_of([] { failing_at(0, 3).ignore_errors().element_spec(); }).what(),
              ::testing::HasSubstr("set MapOptions::output_spec"));
}

}  // namespace
}  // namespace cohort::data
