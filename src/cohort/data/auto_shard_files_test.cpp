// SPDX-License-Identifier: Apache-2.0
// auto_shard over files (rows E13-E45 of the behavioural specification).
#include <gmock/gmock.h>

#include "cohort/data/auto_shard.h"
#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/raw_readers.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

using Strings = std::vector<std::string>;

Dataset read(std::string name) { return Dataset::tf_record(StringTensor(Strings{name})); }
Dataset read_twice_nested(std::string name) {
  return Dataset::from_tensor_slices(StringTensor(Strings{name, name})).flat_map(&read);
}

// "'r1f0'": record 1 of file 0, as show() formats it.
std::string record(std::int64_t number, std::int64_t file) {
  return "'r" + std::to_string(number) + "f" + std::to_string(file) + "'";
}

// Records 0..count-1 of each file, file by file.
Strings records_of(const std::vector<std::int64_t>& files, std::int64_t count) {
  Strings all;
  for (const std::int64_t file : files) {
    for (std::int64_t i = 0; i < count; ++i) all.push_back(record(i, file));
  }
  return all;
}

Strings alone(const Strings& records) {
  Strings batches;
  for (const std::string& text : records) batches.push_back("[" + text + "]");
  return batches;
}

Dataset with_policy(const Dataset& dataset, AutoShardPolicy policy) {
  DatasetOptions options;
  options.auto_shard_policy = policy;
  return dataset.with_options(options);
}

class AutoShardOfFiles : public ::testing::Test {
 protected:
  // Writes `count` files of `records` records each; returns their names.
  Strings write_files(std::int64_t count, std::int64_t records) const {
    Strings names;
    for (std::int64_t f = 0; f < count; ++f) {
      Strings content;
      for (std::int64_t r = 0; r < records; ++r) {
        content.push_back("r" + std::to_string(r) + "f" + std::to_string(f));
      }
      names.push_back(directory_.write_records("f" + std::to_string(f), content));
    }
    return names;
  }
  Dataset list(std::int64_t count, std::int64_t records, bool shuffle = false) const {
    write_files(count, records);
    return Dataset::list_files({directory_.path() + "/f*"}, {.shuffle = shuffle});
  }
  static Strings shard_of(const Dataset& dataset, AutoShardOptions options) {
    return elements_of(auto_shard(dataset, options));
  }

  ScratchDirectory directory_;
};

TEST_F(AutoShardOfFiles, GivesEachWorkerItsFiles) {
  const Dataset records = Dataset::tf_record(StringTensor(write_files(10, 4)));
  EXPECT_THAT(shard_of(records, {.num_workers = 2}),
              ElementsAreArray(records_of({0, 2, 4, 6, 8}, 4)));
  EXPECT_THAT(shard_of(records, {.num_workers = 2, .index = 1}),
              ElementsAreArray(records_of({1, 3, 5, 7, 9}, 4)));
}

// Rule 7 of spec 3.5.2 applies, since no other rule names csv. Once its files were sharded.
TEST_F(AutoShardOfFiles, RowsOfCsvFilesAreDealtOutByNumber) {
  directory_.write("a", "1\n2\n3\n");
  directory_.write("b", "4\n");
  const auto read_csv = [](StringTensor names) {
    return Dataset::csv(std::move(names), {.columns = {{at::kLong}}});
  };
  const std::string a = directory_.path() + "/a";
  const std::string b = directory_.path() + "/b";
  const Dataset plain = read_csv(StringTensor(Strings{a, b}));
  const Dataset inner = Dataset::from_tensor_slices(StringTensor(Strings{a, b}))
                            .flat_map([read_csv](const std::string& name) {
                              return read_csv(StringTensor(Strings{name}));
                            });
  for (const Dataset& rows : {plain, inner}) {
    EXPECT_THAT(shard_of(rows, {.num_workers = 2}), ElementsAre("(1)", "(3)"));
    EXPECT_THAT(shard_of(rows, {.num_workers = 2, .index = 1}), ElementsAre("(2)", "(4)"));
    const Error error =
        error_of([&] { shard_of(with_policy(rows, AutoShardPolicy::file), {.num_workers = 2}); });
    EXPECT_EQ(error.code(), ErrorCode::not_found);
  }
}

TEST_F(AutoShardOfFiles, ShardsBelowTheShuffleOfNames) {
  const Dataset records = list(10, 10, true).flat_map(&read);
  EXPECT_THAT(shard_of(records, {.num_workers = 5, .index = 3}),
              UnorderedElementsAreArray(records_of({3, 8}, 10)));
}

TEST_F(AutoShardOfFiles, ShardsEveryInputOfAZip) {
  const Dataset records =
      list(10, 3).interleave(&read, {.cycle_length = 10, .num_parallel_calls = 2});
  Strings expected;
  for (std::int64_t r = 0; r < 3; ++r) {
    for (const std::int64_t f : {3, 8}) {
      expected.push_back("(" + record(r, f) + ", " + record(r, f) + ")");
    }
  }
  EXPECT_THAT(shard_of(Dataset::zip({records, records}), {.num_workers = 5, .index = 3}),
              ElementsAreArray(expected));
}

TEST_F(AutoShardOfFiles, FallsBackToDataForAListInTheReader) {
  const StringTensor files(write_files(4, 10));
  const Dataset raw = raw_reader(Dataset::tf_record(files), files);
  Strings expected;
  for (std::int64_t f = 0; f < 4; ++f) {
    expected.insert(expected.end(), {record(0, f), record(5, f)});
  }
  EXPECT_THAT(shard_of(raw, {.num_workers = 5}), ElementsAreArray(expected));
  const Error error =
      error_of([&] { auto_shard(raw, {.num_workers = 5, .policy = AutoShardPolicy::file}); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
}

TEST_F(AutoShardOfFiles, FallsBackToDataWhereFileCannotPass) {
  const Dataset records = list(2, 4).flat_map(&read);
  const Strings expected{record(0, 0), record(2, 0), record(0, 1), record(2, 1)};
  EXPECT_THAT(shard_of(records.unique(), {.num_workers = 2}), ElementsAreArray(expected));
  EXPECT_EQ(shard_decision(records.unique(), {.num_workers = 2}).refused_by, "unique");
  EXPECT_EQ(shard_decision(records.enumerate(), {.num_workers = 2}).refused_by, "range");
  EXPECT_EQ(shard_decision(records.ignore_errors(), {.num_workers = 2}).refused_by,
            "ignore_errors");
}

TEST_F(AutoShardOfFiles, LeavesNothingBehindWhereItFallsBack) {
  const Dataset pairs =
      Dataset::zip({Dataset::tf_record(StringTensor(write_files(4, 2))), Dataset::range(8)});
  const Strings all = elements_of(pairs);
  EXPECT_THAT(shard_of(pairs, {.num_workers = 2}), ElementsAre(all[0], all[2], all[4], all[6]));
  EXPECT_THAT(shard_of(pairs, {.num_workers = 2, .index = 1}),
              ElementsAre(all[1], all[3], all[5], all[7]));
}

TEST_F(AutoShardOfFiles, FindsReadersInsideNestedFunctions) {
  const Dataset records = list(4, 1).interleave(&read_twice_nested, {.cycle_length = 1});
  EXPECT_THAT(shard_of(records, {.num_workers = 2, .index = 1}),
              ElementsAre(record(0, 1), record(0, 1), record(0, 3), record(0, 3)));
}

TEST_F(AutoShardOfFiles, PassesFunctionsThatReadNothing) {
  const Dataset records = list(4, 2).flat_map(&read).batch(2).interleave(
      [](StringTensor rows) { return Dataset::from_tensor_slices(rows); },
      {.cycle_length = 1, .block_length = 2});
  EXPECT_THAT(shard_of(with_policy(records, AutoShardPolicy::file), {.num_workers = 2, .index = 1}),
              ElementsAreArray(records_of({1, 3}, 2)));
}

TEST_F(AutoShardOfFiles, IsEmptyWithoutAFileAndFailsWithOne) {
  const Dataset records = list(3, 10).flat_map(&read).batch(5);
  EXPECT_THAT(shard_of(records, {.num_workers = 50, .index = 49}), IsEmpty());
  EXPECT_THAT(shard_of(records, {.num_workers = 50, .index = 3}), IsEmpty());
  EXPECT_THAT(shard_of(records, {.num_workers = 50, .index = 0}),
              ElementsAre("error invalid_argument"));
  EXPECT_THAT(shard_of(records, {.num_workers = 50, .index = 2}),
              ElementsAre("error invalid_argument"));
}

TEST_F(AutoShardOfFiles, MayFailOnEveryWorkerAlike) {
  const Dataset records = list(3, 10).flat_map(&read);
  for (std::int64_t index = 0; index < 4; ++index) {
    const AutoShardOptions options{
        .num_workers = 4, .index = index, .too_few_files = TooFewFiles::fail};
    const Error error = error_of([&] { auto_shard(records, options); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.message(), HasSubstr("3 files on 4 workers"));
  }
}

TEST_F(AutoShardOfFiles, MayDealOutRecordsWhereFilesAreTooFew) {
  const Dataset records = list(3, 4).flat_map(&read);
  EXPECT_THAT(shard_of(records, {.num_workers = 4, .index = 1, .too_few_files = TooFewFiles::data}),
              ElementsAre(record(1, 0), record(1, 1), record(1, 2)));
}

TEST_F(AutoShardOfFiles, CountsNamesThatOnlyTheirPipelineKnows) {
  const Dataset records = list(3, 1).batch(2).unbatch().flat_map(&read);
  const AutoShardOptions four{.num_workers = 4, .too_few_files = TooFewFiles::fail};
  EXPECT_THAT(error_of([&] { auto_shard(records, four); }).message(),
              HasSubstr("3 files on 4 workers"));
  const AutoShardOptions three{.num_workers = 3, .too_few_files = TooFewFiles::fail};
  EXPECT_THAT(shard_of(records, three), ElementsAre(record(0, 0)));
  EXPECT_EQ(shard_decision(records, three).file_count(), std::nullopt);
}

TEST_F(AutoShardOfFiles, SplitsBatchesOfItsFilesAlone) {
  const Dataset records = list(5, 10).flat_map(&read).batch(5).rebatch_split(5);
  EXPECT_THAT(shard_of(records, {.num_workers = 5, .index = 3, .num_replicas = 5}),
              ElementsAreArray(alone(records_of({3}, 10))));
}

TEST_F(AutoShardOfFiles, KeepsTheSizesOfARebatch) {
  const Dataset records = list(3, 5).flat_map(&read).batch(5).rebatch({2, 1, 2});
  EXPECT_THAT(shard_of(records, {.num_workers = 3, .index = 1}),
              ElementsAre("['r0f1', 'r1f1']", "['r2f1']", "['r3f1', 'r4f1']"));
}

TEST_F(AutoShardOfFiles, ReadsItsFilesInEveryEpochOfALongPipeline) {
  const Dataset records = Dataset::from_tensor_slices(StringTensor(write_files(10, 4)))
                              .shuffle(10)
                              .flat_map(&read)
                              .prefetch(2)
                              .shuffle(80)
                              .repeat(5)
                              .map([](StringTensor x) { return x; })
                              .prefetch(1);
  Strings expected;
  for (int epoch = 0; epoch < 5; ++epoch) {
    const Strings once = records_of({0, 2, 4, 6, 8}, 4);
    expected.insert(expected.end(), once.begin(), once.end());
  }
  EXPECT_THAT(shard_of(records, {.num_workers = 2}), UnorderedElementsAreArray(expected));
}

TEST_F(AutoShardOfFiles, TakesOutAnAssertionThatNoWorkerCanMeet) {
  const Dataset records = list(2, 3).flat_map(&read).assert_cardinality(6);
  EXPECT_THAT(shard_of(records, {.num_workers = 2}), ElementsAreArray(records_of({0}, 3)));
  EXPECT_EQ(shard_decision(records, {.num_workers = 2}).warnings.size(), 1u);
}

// Regression: as in tf, but without a word, workers together got other elements than one process.
TEST_F(AutoShardOfFiles, WarnOfOpsThatCountOrPairWhatOneWorkerReads) {
  const auto warnings = [](const Dataset& dataset, std::int64_t num_workers = 2) {
    return shard_decision(dataset, {.num_workers = num_workers}).warnings;
  };
  const Dataset a = list(2, 3).flat_map(&read);
  const Dataset b =
      Dataset::list_files({directory_.path() + "/f*"}, {.shuffle = false}).flat_map(&read);
  for (const Dataset& counted :
       {a.take(4), a.skip(1), a.batch(2).take(2), a.shard(2, 1), a.skip(-1)}) {
    EXPECT_THAT(warnings(counted), ElementsAre(HasSubstr("counts only the elements of the files")));
    EXPECT_THAT(warnings(counted, 1), IsEmpty());
    EXPECT_THAT(warnings(with_policy(counted, AutoShardPolicy::data)), IsEmpty());
  }
  EXPECT_THAT(warnings(Dataset::zip({a, b})),
              ElementsAre(HasSubstr("'zip' pairs elements of the")));
  for (const Dataset& whole :
       {a, a.take(-1), a.skip(0), a.shard(1, 0), a.repeat(2).batch(2).prefetch(1),
        Dataset::zip({a, a}), Dataset::zip({a, a.prefetch(1)})})
    EXPECT_THAT(warnings(whole), IsEmpty());
}

TEST_F(AutoShardOfFiles, AreDisjointAfterAJourneyUnderEitherPolicy) {
  write_files(10, 3);
  const Dataset names = Dataset::list_files({directory_.path() + "/f*"}, {.seed = 4});
  const Bytes bytes = Dataset::tf_record(names).serialize();
  for (const AutoShardPolicy policy : {AutoShardPolicy::data, AutoShardPolicy::file}) {
    Strings seen;
    for (std::int64_t index = 0; index < 2; ++index) {
      const Strings part = shard_of(Dataset::deserialize(bytes),
                                    {.num_workers = 2, .index = index, .policy = policy});
      EXPECT_EQ(part.size(), 15u);
      seen.insert(seen.end(), part.begin(), part.end());
    }
    EXPECT_THAT(seen, UnorderedElementsAreArray(records_of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 3)));
  }
}

TEST_F(AutoShardOfFiles, GoOnFromEveryPositionOfAParallelReader) {
  const Dataset records =
      list(10, 10).interleave(&read, {.cycle_length = 10, .num_parallel_calls = 10});
  const Dataset mine = auto_shard(records, {.num_workers = 5, .index = 3});
  const Strings whole = elements_of(mine);
  ASSERT_EQ(whole.size(), 20u);
  for (std::size_t taken = 0; taken <= whole.size(); ++taken) {
    Iterator first = mine.iterator();
    Strings all = drain(first, taken);
    Iterator second = mine.iterator();
    second.restore(first.save());
    for (const std::string& element : drain(second)) all.push_back(element);
    EXPECT_EQ(all, whole) << "after " << taken;
  }
}

TEST_F(AutoShardOfFiles, SaysWhatItDid) {
  const Dataset records = list(3, 1).flat_map(&read);
  const ShardDecision decision = shard_decision(records, {.num_workers = 2});
  EXPECT_EQ(decision.taken, AutoShardPolicy::file);
  EXPECT_EQ(decision.file_count(), 3);
  EXPECT_EQ(decision.files.at(0).reader, "flat_map");
  EXPECT_THAT(decision.to_string(), HasSubstr("FILE"));
}

}  // namespace
}  // namespace cohort::data
