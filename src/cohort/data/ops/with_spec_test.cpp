// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/graph/nest_codec.h"
#include "cohort/data/sharding/graph_edit.h"

namespace cohort::data {
namespace {

// No method of Dataset makes this op.
Dataset with_spec(const Dataset& input) {
  const ElementSpec spec = ElementSpec::tuple({{at::kLong, std::nullopt}});
  return Dataset(make_node("with_spec", {input.node()}, {{"spec", nest_of(spec)}}));
}

INSTANTIATE_TEST_SUITE_P(
    WithSpec, DatasetOp,
    ::testing::Values(DatasetOpCase{"Rows", [] { return with_spec(rows(5)).batch(2); }},
                      DatasetOpCase{"Tensors", [] { return with_spec(tensors(5)); }}));

TEST(WithSpec, HasThatSpec) {
  EXPECT_EQ(with_spec(rows(2)).element_spec().to_string(), "int64[...]");
}

}  // namespace
}  // namespace cohort::data
