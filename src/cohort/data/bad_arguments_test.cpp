// SPDX-License-Identifier: Apache-2.0
// Every argument that an op can refuse: the error is thrown when the graph is built, and names the
// op, the argument and the value.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <limits>

#include "cohort/data/auto_shard.h"
#include "cohort/data/example.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/rebatch.h"

namespace cohort::data {
namespace {

using ::testing::HasSubstr;

struct BadArgument {
  const char* name;
  std::function<void()> build;
  const char* op;
  std::vector<std::string> words;  // argument and value
};

void PrintTo(const BadArgument& argument, std::ostream* out) { *out << argument.name; }

class BadArguments : public ::testing::TestWithParam<BadArgument> {};

TEST_P(BadArguments, AreRefusedWhenTheGraphIsBuilt) {
  const Error error = error_of(GetParam().build);
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr(GetParam().op));
  for (const std::string& word : GetParam().words) EXPECT_THAT(error.what(), HasSubstr(word));
}

std::string name_of_case(const ::testing::TestParamInfo<BadArgument>& info) {
  return info.param.name;
}

StringTensor missing_files() { return StringTensor({1}, {"no such file"}); }
Dataset words() { return Dataset::from_tensor_slices(StringTensor({2}, {"a", "b"})); }
Dataset pairs() { return Dataset::zip({rows(4), rows(4)}); }
Dataset one_row(std::int64_t) { return rows(1); }
at::Tensor same(at::Tensor x) { return x; }
ElementSpec number() { return ElementSpec::tuple({{at::kLong, {{}}}}); }
Generator no_items() {
  return [](Nest&) { return false; };
}
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

INSTANTIATE_TEST_SUITE_P(
    MadeUp, BadArguments,
    ::testing::Values(
        BadArgument{
            "RangeStep", [] { Dataset::range(4, {.step = 0}); }, "range", {"step != 0", "got 0"}},
        BadArgument{"RangeCount",
                    [] { Dataset::range(kMost, {.start = -2}); },
                    "range",
                    {"start = -2", "stop = 9223372036854775807"}},
        BadArgument{"RangeDtype",
                    [] { Dataset::range(4, {.dtype = at::kBool}); },
                    "range",
                    {"dtype", "bool"}},
        BadArgument{"RangeOverflow",
                    [] { Dataset::range(300, {.dtype = at::kByte}); },
                    "range",
                    {"uint8", "0 to 299"}},
        BadArgument{"SlicesOfAScalar",
                    [] { Dataset::from_tensor_slices(at::full({}, 7)); },
                    "from_tensor_slices",
                    {"int64[]", "field 0"}},
        BadArgument{"SlicesOfOtherLengths",
                    [] {
                      Dataset::from_tensor_slices(Nest::tuple({at::arange(3), at::arange(2)}));
                    },
                    "from_tensor_slices",
                    {"expected 3 rows", "int64[2]", "field 1"}},
        BadArgument{"SlicesOfNothing",
                    [] { Dataset::from_tensor_slices(Nest::tuple({})); },
                    "from_tensor_slices",
                    {"empty"}},
        BadArgument{"SlicesOfANumber",
                    [] { Dataset::from_tensor_slices(7); },
                    "from_tensor_slices",
                    {"field 0"}},
        BadArgument{"TensorsOfNothing",
                    [] { Dataset::from_tensors(Nest::list({})); },
                    "from_tensors",
                    {"empty"}},
        BadArgument{"NoGenerator",
                    [] { Dataset::from_generator({}, number()); },
                    "from_generator",
                    {"makes a generator", "empty"}},
        BadArgument{"GeneratorOfNoFields",
                    [] { Dataset::from_generator(&no_items, ElementSpec()); },
                    "from_generator",
                    {"spec"}},
        BadArgument{"ListFilesThatAreNot",
                    [] { Dataset::list_files({"/no such folder/*"}); },
                    "list_files",
                    {"no files matched pattern", "/no such folder/*"}},
        BadArgument{
            "ListFilesOfNoPattern", [] { Dataset::list_files({}); }, "list_files", {"pattern"}},
        BadArgument{"ZipOfNone",
                    [] { Dataset::zip(std::vector<Dataset>{}); },
                    "zip",
                    {"at least one dataset"}}),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(
    OfFiles, BadArguments,
    ::testing::Values(
        BadArgument{"RecordsOfNumbers",
                    [] { Dataset::tf_record(rows(3)); },
                    "tf_record",
                    {"file names", "int64[]"}},
        BadArgument{"LinesOfPairs",
                    [] { Dataset::text_line(pairs()); },
                    "text_line",
                    {"file names", "(int64[], int64[])"}},
        BadArgument{"ParallelReads",
                    [] { Dataset::tf_record(missing_files(), {.num_parallel_reads = -2}); },
                    "tf_record",
                    {"num_parallel_reads", "got -2"}},
        BadArgument{"BufferBytes",
                    [] { Dataset::text_line(missing_files(), {.buffer_bytes = 0}); },
                    "text_line",
                    {"buffer_bytes > 0", "got 0"}},
        BadArgument{"NoRecordBytes",
                    [] { Dataset::fixed_length_record(missing_files(), {}); },
                    "fixed_length_record",
                    {"record_bytes > 0", "got 0"}},
        BadArgument{"HeaderBytes",
                    [] {
                      Dataset::fixed_length_record(missing_files(),
                                                   {.record_bytes = 4, .header_bytes = -1});
                    },
                    "fixed_length_record",
                    {"header_bytes", "-1"}},
        BadArgument{
            "NoColumns", [] { Dataset::csv(missing_files(), {}); }, "csv", {"at least one column"}},
        BadArgument{"ColumnDtype",
                    [] { Dataset::csv(missing_files(), {.columns = {{at::kBool}}}); },
                    "csv",
                    {"bool", "column 0"}},
        BadArgument{"ColumnDefault",
                    [] {
                      Dataset::csv(missing_files(), {.columns = {{at::kLong, Nest("x")}}});
                    },
                    "csv",
                    {"int64", "column 0"}},
        BadArgument{"Delimiter",
                    [] { Dataset::csv(missing_files(), {.columns = {{}}, .delimiter = '"'}); },
                    "csv",
                    {"delimiter", "34"}},
        BadArgument{"SelectedColumns",
                    [] {
                      Dataset::csv(missing_files(), {.columns = {{}}, .select_columns = {0, 2}});
                    },
                    "csv",
                    {"select_columns", "2", "got 1"}},
        BadArgument{
            "OrderOfColumns",
            [] {
              Dataset::csv(missing_files(), {.columns = {{}, {}}, .select_columns = {2, 1}});
            },
            "csv",
            {"select_columns", "1 behind 2"}}),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(
    Counts, BadArguments,
    ::testing::Values(
        BadArgument{"BatchOfZero", [] { rows(4).batch(0); }, "batch", {"batch_size > 0", "got 0"}},
        BadArgument{"BatchOfLess", [] { rows(4).batch(-3); }, "batch", {"batch_size", "got -3"}},
        BadArgument{"BatchCalls",
                    [] { rows(4).batch(2, {.num_parallel_calls = -2}); },
                    "batch",
                    {"num_parallel_calls", "got -2"}},
        BadArgument{"PaddedBatchOfZero",
                    [] { rows(4).padded_batch(0); },
                    "padded_batch",
                    {"batch_size > 0", "got 0"}},
        BadArgument{"RebatchOfNone",
                    [] { rows(4).batch(2).rebatch({}); },
                    "rebatch",
                    {"at least one size", "got 0"}},
        BadArgument{"RebatchOfZeros",
                    [] {
                      rows(4).batch(2).rebatch({0, 0});
                    },
                    "rebatch",
                    {"at least one size", "got 2"}},
        BadArgument{"RebatchOfLess",
                    [] {
                      rows(4).batch(2).rebatch({2, -1});
                    },
                    "rebatch",
                    {"sizes >= 0", "got -1"}},
        BadArgument{"RebatchOfScalars",
                    [] { rows(4).rebatch({2}); },
                    "rebatch",
                    {"expected batches", "int64[]", "batch() first"}},
        BadArgument{"SplitInNone",
                    [] { rows(4).batch(2).rebatch_split(0); },
                    "rebatch_split",
                    {"parts > 0", "got 0"}},
        BadArgument{"SplitOfScalars",
                    [] { rows(4).rebatch_split(2); },
                    "rebatch_split",
                    {"expected batches", "int64[]"}},
        BadArgument{
            "ShuffleOfZero", [] { rows(4).shuffle(0); }, "shuffle", {"buffer_size > 0", "got 0"}},
        BadArgument{"ShuffleOfAllForEver",
                    [] { rows(4).repeat().shuffle(kUnknownCardinality); },
                    "shuffle",
                    {"infinite", "shuffle() before repeat()"}},
        BadArgument{
            "ShardsOfZero", [] { rows(4).shard(0, 0); }, "shard", {"num_shards > 0", "got 0"}},
        BadArgument{
            "ShardsOfLess", [] { rows(4).shard(-3, 0); }, "shard", {"num_shards > 0", "got -3"}},
        BadArgument{"ShardIndex",
                    [] { rows(4).shard(5, 5); },
                    "shard",
                    {"index < num_shards = 5", "got 5"}},
        BadArgument{"ShardIndexBelow", [] { rows(4).shard(5, -1); }, "shard", {"got -1"}},
        BadArgument{
            "Prefetch", [] { rows(4).prefetch(-2); }, "prefetch", {"buffer_size >= -1", "got -2"}},
        BadArgument{"Cardinality",
                    [] { rows(4).assert_cardinality(-2); },
                    "assert_cardinality",
                    {"number of elements", "got -2"}}),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(
    Functions, BadArguments,
    ::testing::Values(
        BadArgument{"MapCalls",
                    [] { rows(4).map(&same, {.num_parallel_calls = -2}); },
                    "map",
                    {"num_parallel_calls", "got -2"}},
        BadArgument{"MapOfNothing",
                    [] { rows(4).map([] { return at::zeros({}); }); },
                    "map",
                    {"without parameters"}},
        BadArgument{"MapOfWrongArity",
                    [] { pairs().map(&same).element_spec(); },
                    "map",
                    {"expected a tensor as argument 0 of 'map function', got (tensor, tensor)"}},
        BadArgument{"TypedMapOfWrongType",
                    [] { rows(4).map([](float x) { return x; }); },
                    "map",
                    {"float32[]", "parameter 0", "int64[]"}},
        BadArgument{
            "FilterOfNoBool", [] { rows(4).filter(&same); }, "filter", {"scalar bool", "int64[]"}},
        BadArgument{"InterleaveCycle",
                    [] { rows(4).interleave(&one_row, {.cycle_length = 0}); },
                    "interleave",
                    {"cycle_length > 0", "got 0"}},
        BadArgument{"InterleaveBlock",
                    [] { rows(4).interleave(&one_row, {.cycle_length = 1, .block_length = 0}); },
                    "interleave",
                    {"block_length > 0", "got 0"}},
        BadArgument{
            "InterleaveCalls",
            [] { rows(4).interleave(&one_row, {.cycle_length = 2, .num_parallel_calls = 3}); },
            "interleave",
            {"num_parallel_calls", "cycle_length, 2", "got 3"}},
        BadArgument{"FlatMapOfNothing",
                    [] { rows(4).flat_map([] { return rows(1); }); },
                    "flat_map",
                    {"without parameters"}}),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(
    Specs, BadArguments,
    ::testing::Values(
        BadArgument{"ConcatenateDtypes",
                    [] { rows(2).concatenate(Dataset::range(2, {.dtype = at::kInt})); },
                    "concatenate",
                    {"int64", "int32", "concatenate(other) of int64[] and int32[]"}},
        BadArgument{"ConcatenateStructures",
                    [] { rows(2).concatenate(pairs()); },
                    "concatenate",
                    {"concatenate(other) of int64[] and (int64[], int64[])"}},
        BadArgument{"UnbatchOfScalars", [] { rows(4).unbatch(); }, "unbatch", {"int64[]"}},
        BadArgument{"UniqueOfPairs", [] { pairs().unique(); }, "unique", {"(int64[], int64[])"}},
        BadArgument{"UniqueOfReals",
                    [] { Dataset::range(4, {.dtype = at::kFloat}).unique(); },
                    "unique",
                    {"float32[]"}},
        BadArgument{"ExamplesOfNumbers",
                    [] {
                      rows(4).parse_example({{"a", FeatureSpec{}}});
                    },
                    "parse_example",
                    {"int64[]"}},
        BadArgument{"FeatureSizes",
                    [] {
                      words().parse_example({{"a", {.dtype = at::kLong, .sizes = {-1}}}});
                    },
                    "parse_example",
                    {"'a'", "got -1"}},
        BadArgument{"PaddedRank",
                    [] { rows(4).padded_batch(2, {.padded_shapes = Nest::list({3})}); },
                    "padded_batch",
                    {"field 0", "int64[]", "[3]"}},
        BadArgument{"PaddedSize",
                    [] { rows(4).batch(2).padded_batch(2, {.padded_shapes = Nest::list({-2})}); },
                    "padded_batch",
                    {"sizes >= -1", "[-2]"}},
        BadArgument{"PaddingValue",
                    [] { rows(4).batch(2).padded_batch(2, {.padding_values = "x"}); },
                    "padded_batch",
                    {"int64", "padding value of field 0"}},
        BadArgument{"Policy",
                    [] {
                      DatasetOptions options;
                      options.auto_shard_policy = AutoShardPolicy(9);
                      rows(4).with_options(options);
                    },
                    "options",
                    {"auto_shard_policy", "got 9"}},
        BadArgument{"Threads",
                    [] {
                      DatasetOptions options;
                      options.private_threadpool_size = -1;
                      rows(4).with_options(options);
                    },
                    "options",
                    {"private_threadpool_size", "got -1"}},
        BadArgument{"Workers",
                    [] { auto_shard(rows(4), {.num_workers = 0}); },
                    "auto_shard",
                    {"num_workers", "got 0"}},
        BadArgument{"Worker",
                    [] { auto_shard(rows(4), {.num_workers = 2, .index = 2}); },
                    "auto_shard",
                    {"index", "got 2"}},
        BadArgument{"BatchForReplicas", [] { infer_batch_size(rows(4)); }, "rebatch", {"int64[]"}}),
    name_of_case);

TEST(GoodArguments, AreTheBordersOfBad) {
  EXPECT_EQ(scalars_of(Dataset::range(256, {.dtype = at::kLong}).take(-1)).size(), 256u);
  EXPECT_EQ(rows(4).skip(-1).cardinality(), 0);
  EXPECT_EQ(elements_of(rows(2).enumerate(-3)), (std::vector<std::string>{"(-3, 0)", "(-2, 1)"}));
  EXPECT_EQ(elements_of(Dataset::tf_record(StringTensor(std::vector<std::string>{}))).size(), 0u);
}

}  // namespace
}  // namespace cohort::data
