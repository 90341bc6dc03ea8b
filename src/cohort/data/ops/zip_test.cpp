// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;

Dataset zipped(const std::vector<Dataset>& datasets) { return Dataset::zip(datasets); }

Dataset named(const Dataset& b, const Dataset& a) {
  return Dataset::zip(std::map<std::string, Dataset>{{"b", b}, {"a", a}});
}

INSTANTIATE_TEST_SUITE_P(
    Zip, DatasetOp,
    ::testing::Values(DatasetOpCase{"Rows",
                                    [] {
                                      return zipped({rows(4), rows(6)});
                                    }},
                      DatasetOpCase{"Tensors",
                                    [] {
                                      return zipped({tensors(4), rows(6), tensors(5)});
                                    }},
                      DatasetOpCase{"Map", [] { return named(rows(3), tensors(2)); }},
                      DatasetOpCase{"Nested",
                                    [] {
                                      return zipped({named(rows(3), rows(4)), rows(9)});
                                    }},
                      DatasetOpCase{"One", [] { return zipped({rows(3)}); }},
                      DatasetOpCase{"Batched",
                                    [] {
                                      return zipped({rows(7), rows(5)}).batch(3);
                                    }},
                      DatasetOpCase{"Enumerated", [] { return tensors(4).enumerate(3); }}));

TEST(Zip, YieldsTuples) {
  EXPECT_THAT(elements_of(zipped({rows(2), Dataset::range(9, {.start = 7})})),
              ElementsAre("(0, 7)", "(1, 8)"));
  EXPECT_EQ(zipped({rows(2), rows(2).batch(2)}).element_spec().to_string(), "(int64[], int64[?])");
}

TEST(Zip, YieldsMaps) {
  EXPECT_THAT(elements_of(named(rows(2), Dataset::range(9, {.start = 5}))),
              ElementsAre("{a: 5, b: 0}", "{a: 6, b: 1}"));
}

TEST(Zip, KeepsTheNestsOfItsInputs) {
  EXPECT_THAT(elements_of(zipped({zipped({rows(1), rows(1)}), Dataset::range(8, {.start = 7})})),
              ElementsAre("((0, 0), 7)"));
}

TEST(Zip, EndsWithTheShortest) {
  EXPECT_THAT(elements_of(zipped({rows(3), rows(1), rows(2)})), ElementsAre("(0, 0, 0)"));
  EXPECT_THAT(elements_of(zipped({tensors(3), rows(0)})), ElementsAre());
  EXPECT_THAT(elements_of(zipped({rows(5), rows(3)}).batch(2)),
              ElementsAre("([0, 1], [0, 1])", "([2], [2])"));
  EXPECT_THAT(elements_of(zipped({rows(3), rows(5)}).batch(2)),
              ElementsAre("([0, 1], [0, 1])", "([2], [2])"));
  EXPECT_THAT(elements_of(zipped({rows(4), rows(2)}).batch(2)), ElementsAre("([0, 1], [0, 1])"));
}

TEST(Zip, CountsItsElements) {
  EXPECT_EQ(zipped({rows(5), rows(3)}).cardinality(), 3);
  EXPECT_EQ(zipped({rows(5), rows(3).repeat()}).cardinality(), 5);
  EXPECT_EQ(zipped({rows(5).repeat(), rows(3).repeat()}).cardinality(), kInfiniteCardinality);
  EXPECT_EQ(zipped({rows(5), rows(3).unique()}).cardinality(), kUnknownCardinality);
}

TEST(Zip, KeepsItsInputsInStepBehindAnError) {
  EXPECT_THAT(elements_of(zipped({rows(3), failing_at(1, 3), tensors(3)})),
              ElementsAre("(0, 0, 0)", "error data_loss", "(2, 2, 2)"));
  EXPECT_THAT(elements_of(zipped({failing_at(1, 3), tensors(1)})),
              ElementsAre("(0, 0)", "error data_loss"));
}

// If a record failed while a batch was gathered, the later inputs once did not skip their rows.
TEST(Zip, KeepsRowsInStepBehindABadRecord) {
  const ScratchDirectory directory;
  const std::string path = directory.write_records("f", {"r0", "r1", "r2", "r3", "r4"});
  write_record_index(path);
  std::string bytes = bytes_of_file(path);
  bytes[bytes.size() / 5 + 12] = 'x';
  directory.write("f", bytes);
  const Dataset records = Dataset::tf_record(StringTensor(path));
  EXPECT_THAT(elements_of(zipped({records, rows(9)}).batch(2)),
              ElementsAre("error data_loss", "(['r2', 'r3'], [2, 3])", "(['r4'], [4])"));
  EXPECT_THAT(
      elements_of(zipped({rows(9), records, rows(9)}).batch(2)),
      ElementsAre("error data_loss", "([2, 3], ['r2', 'r3'], [2, 3])", "([4], ['r4'], [4])"));
}

TEST(Zip, RefusesNoDatasets) {
  EXPECT_EQ(error_of([] { zipped({}); }).code(), ErrorCode::invalid_argument);
}

TEST(Enumerate, CountsFromItsStart) {
  EXPECT_THAT(elements_of(Dataset::range(4, {.start = 2}).enumerate(5)),
              ElementsAre("(5, 2)", "(6, 3)"));
  EXPECT_EQ(rows(2).enumerate(5).cardinality(), 2);
}

TEST(Enumerate, OfSomethingInfiniteIsInfinite) {
  for (const std::int64_t start : {-5, 0, 7}) {
    EXPECT_EQ(rows(3).repeat().enumerate(start).cardinality(), kInfiniteCardinality) << start;
    EXPECT_EQ(rows(3).enumerate(start).cardinality(), 3) << start;
  }
}

// As in tf, so auto-sharding sees the range.
TEST(Enumerate, IsAZipWithARange) {
  EXPECT_EQ(rows(2).enumerate().node()->op(), "zip");
  EXPECT_EQ(rows(2).enumerate().node()->input().op(), "range");
}

TEST(Enumerate, StacksItsIndicesInBatches) {
  EXPECT_THAT(elements_of(Dataset::range(3, {.dtype = at::kFloat}).enumerate(2).batch(2)),
              ElementsAre("([2, 3], [0, 1])", "([4], [2])"));
}

}  // namespace
}  // namespace cohort::data
