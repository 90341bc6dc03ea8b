// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <fstream>

#include "cohort/data/cache/cache_file.h"
#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/graph/node.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A prefix that no other test uses, also not an earlier run of this program with the same process
// id, whose cache would be read. The folders are removed when the program ends.
std::string new_prefix() {
  static std::deque<ScratchDirectory> folders;
  return folders.emplace_back().file("c");
}

struct Counted {
  std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);

  Dataset dataset(std::int64_t count) const {
    MapOptions options{.output_spec =
                           ElementSpec::tuple({{at::kLong, std::vector<std::int64_t>{}}})};
    return rows(count).map([calls = calls](at::Tensor x) { return ++*calls, x; }, options);
  }
};

// Passes its input through; counts the calls of cardinality().
class WalkedNode final : public Node {
 public:
  WalkedNode(NodePtr input, std::atomic<int>& walks)
      : Node("options", {std::move(input)}), walks_(walks) {}
  std::int64_t cardinality() const override { return ++walks_, input().cardinality(); }
  Attributes attributes() const override { return {}; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<WalkedNode>(std::move(inputs[0]), walks_);
  }

 protected:
  std::unique_ptr<Stage> make_stage(const StageContext& context) const override {
    return input().start(context.input(0));
  }

 private:
  std::atomic<int>& walks_;
};

Dataset names() {
  return Dataset::from_tensor_slices(
      Nest::tuple({StringTensor({3}, {"a", "", "ccc"}), at::arange(6).view({3, 2})}));
}

INSTANTIATE_TEST_SUITE_P(
    Cache, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Rows", [] { return rows(5).cache(); }},
        DatasetOpCase{"Tensors", [] { return tensors(5).cache(); }},
        DatasetOpCase{"RepeatedRows", [] { return rows(4).cache().repeat(3); }},
        DatasetOpCase{"RepeatedTensors", [] { return tensors(4).cache().repeat(3).batch(3); }},
        DatasetOpCase{.name = "Shuffled",
                      .make = [] { return rows(6).shuffle(6, {.seed = 3}).cache().repeat(2); },
                      .is_independent = false},
        DatasetOpCase{"Strings", [] { return names().cache().repeat(2); }},
        DatasetOpCase{.name = "File",
                      .make = [] { return tensors(5).cache(new_prefix()); },
                      .is_independent = false},
        DatasetOpCase{.name = "RepeatedFile",
                      .make = [] { return names().cache(new_prefix()).repeat(2).batch(2); },
                      .is_independent = false},
        DatasetOpCase{.name = "Nothing",
                      .make = [] { return rows(0).cache().repeat(2); },
                      .is_empty = true}));

TEST(Cache, RunsItsInputOnce) {
  const Counted counted;
  const Dataset dataset = counted.dataset(4).cache();
  EXPECT_THAT(scalars_of(dataset), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(scalars_of(dataset.batch(2).repeat(2).unbatch()),
              ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_EQ(*counted.calls, 4);
}

TEST(Cache, ForgetsAPassThatStopsEarly) {
  const Counted counted;
  const Dataset dataset = counted.dataset(10).cache().take(5).repeat(2);
  EXPECT_THAT(scalars_of(dataset), ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
  EXPECT_EQ(*counted.calls, 10);
}

TEST(Cache, IsCompleteWithTheLastElementWhereTheirNumberIsKnown) {
  const Counted counted;
  EXPECT_EQ(scalars_of(counted.dataset(4).cache().take(4).repeat(2)).size(), 8);
  EXPECT_EQ(*counted.calls, 4);
}

TEST(Cache, RepeatsTheOrderOfItsFirstPass) {
  for (const Dataset& input : {rows(50), tensors(50)}) {
    const Dataset dataset = input.shuffle(50).cache();
    EXPECT_EQ(scalars_of(dataset), scalars_of(dataset));
  }
}

TEST(Cache, KeepsWhatItHasFromWhoeverWritesToAnElement) {
  const Dataset dataset = tensors(2).cache().map([](at::Tensor x) { return x.add_(10); });
  EXPECT_THAT(elements_of(dataset), ElementsAre("10", "11"));
  EXPECT_THAT(elements_of(dataset), ElementsAre("10", "11"));
}

TEST(Cache, KeepsElementsAndNotErrors) {
  const Dataset dataset =
      rows(4)
          .map([](at::Tensor x) {
            COHORT_CHECK(x.item<std::int64_t>() != 1, ErrorCode::data_loss, "one");
            return x;
          })
          .cache();
  EXPECT_THAT(elements_of(dataset), ElementsAre("0", "error data_loss", "2", "3"));
  EXPECT_THAT(elements_of(dataset), ElementsAre("0", "2", "3"));
}

TEST(Cache, GoesOnFillingAfterARestore) {
  const Counted counted;
  const Dataset dataset = counted.dataset(5).cache().repeat(2);
  Iterator original = dataset.iterator();
  drain(original, 3);
  const Counted other;
  const Dataset rebuilt = other.dataset(5).cache().repeat(2);
  Iterator restored = rebuilt.iterator();
  restored.restore(original.save());
  EXPECT_THAT(drain(restored), ElementsAre("3", "4", "0", "1", "2", "3", "4"));
  EXPECT_EQ(*other.calls, 2);
}

// A shuffle without a seed has another order when its pipeline is built again.
TEST(Cache, RestoresTheOrderThatWasCached) {
  const auto built = [] { return tensors(20).shuffle(20).cache().repeat(3); };
  Iterator original = built().iterator();
  drain(original, 30);
  Iterator restored = built().iterator();
  restored.restore(original.save());
  EXPECT_EQ(drain(restored), drain(original));
}

// Rows of another pipeline's position were once cached for all iterators before they were checked.
TEST(Cache, RefusesAPositionWithRowsThatTheSourceHasNot) {
  const Dataset larger = rows(9).cache();
  Iterator whole = larger.iterator();
  drain(whole);
  Iterator part = rows(9).cache().iterator();
  drain(part, 7);
  const Dataset dataset = rows(5).cache();
  for (const Iterator* other : {&whole, &part}) {
    Iterator iterator = dataset.iterator();
    EXPECT_EQ(error_of([&] { iterator.restore(other->save()); }).code(), ErrorCode::data_loss);
    EXPECT_THAT(scalars_of(dataset.take(9)), ElementsAre(0, 1, 2, 3, 4));
  }
}

// cardinality(), which walks through the pipeline, was once called for every element.
TEST(Cache, AsksOnceHowManyElementsThereAre) {
  for (const Dataset& input : {rows(50), tensors(50)}) {
    for (const std::string& file : {std::string(), new_prefix()}) {
      std::atomic<int> walks = 0;
      const Dataset dataset(std::make_shared<WalkedNode>(input.node(), walks));
      EXPECT_EQ(scalars_of(dataset.cache(file)).size(), 50U);
      EXPECT_LE(walks, 3);
    }
  }
}

TEST(FileCache, IsReadByLaterPassesOfAnyDataset) {
  const Counted counted;
  const std::string prefix = new_prefix();
  EXPECT_THAT(scalars_of(counted.dataset(4).cache(prefix)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(scalars_of(counted.dataset(4).cache(prefix).repeat(2)),
              ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_EQ(*counted.calls, 4);
}

TEST(FileCache, LeavesNothingOfAPassThatStopsEarly) {
  const std::string prefix = new_prefix();
  { Iterator(tensors(4).cache(prefix).iterator()).get_next(); }
  EXPECT_TRUE(fs::is_empty(fs::path(prefix).parent_path()));
  scalars_of(tensors(4).cache(prefix));
  EXPECT_TRUE(fs::exists(cache_path(prefix)));
  EXPECT_FALSE(fs::exists(partial_cache_path(prefix)));
}

TEST(FileCache, IsFilledByOneIteratorAtATime) {
  const Dataset dataset = tensors(4).cache(new_prefix());
  Iterator a = dataset.iterator();
  Iterator b = dataset.iterator();
  EXPECT_THAT(drain(a, 1), ElementsAre("0"));
  EXPECT_EQ(error_of([&] { b.get_next(); }).code(), ErrorCode::already_exists);
  EXPECT_THAT(drain(a), ElementsAre("1", "2", "3"));
  EXPECT_THAT(drain(b), ElementsAre("0", "1", "2", "3"));
}

TEST(FileCache, EndsThePassOfAnIteratorThatWasRefused) {
  const Dataset dataset = tensors(4).cache(new_prefix());
  Iterator a = dataset.iterator();
  a.get_next();
  EXPECT_THAT(elements_of(dataset), ElementsAre("error already_exists"));
}

TEST(FileCache, IsFilledAnewWhereTheLastWriterDied) {
  const std::string prefix = new_prefix();
  std::ofstream(partial_cache_path(prefix)) << "half an element";
  EXPECT_THAT(scalars_of(tensors(3).cache(prefix)), ElementsAre(0, 1, 2));
  EXPECT_THAT(scalars_of(tensors(3).cache(prefix)), ElementsAre(0, 1, 2));
}

TEST(FileCache, GoesOnAfterARestoreWhileItIsWritten) {
  const Dataset dataset = tensors(4).cache(new_prefix()).repeat(2);
  Iterator original = dataset.iterator();
  drain(original, 2);
  const Bytes position = original.save();
  EXPECT_THAT(drain(original), ElementsAre("2", "3", "0", "1", "2", "3"));
  Iterator restored = dataset.iterator();
  restored.restore(position);
  EXPECT_THAT(drain(restored), ElementsAre("2", "3", "0", "1", "2", "3"));
}

TEST(FileCache, RefusesTheFilesOfAnotherPipeline) {
  const std::string prefix = new_prefix();
  scalars_of(tensors(3).cache(prefix));
  EXPECT_THAT(error_of([&] {
                elements_of(names().cache(prefix));
                names().cache(prefix).iterator().get_next();
              }).message(),
              HasSubstr("expected a cache of elements (string[], int64[2]) in"));
}

// It yielded the elements that were there: shard 0's to shard 1, and five to range(3).
TEST(FileCache, RefusesTheFileOfAnotherDatasetWithTheSameSpec) {
  const auto words = [](const Dataset& first, const Dataset& second) {
    const std::string prefix = new_prefix();
    scalars_of(first.cache(prefix));
    const Error error = error_of([&] { scalars_of(second.cache(prefix)); });
    EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
    EXPECT_THAT(error.message(), HasSubstr("; remove the file, or give each pipeline files"));
    return error.message();
  };
  const auto others = HasSubstr("got those of other ops, or of the same ops with other options");
  EXPECT_THAT(words(rows(4).shard(2, 0), rows(4).shard(2, 1)), others);
  EXPECT_THAT(words(rows(5), rows(3)), HasSubstr("a cache of 3 elements in"));
  EXPECT_THAT(words(rows(4).filter([](at::Tensor x) { return x > 1; }), rows(4)),
              HasSubstr("got one of an unknown number of"));
  EXPECT_THAT(words(rows(9).shuffle(9, {.seed = 1}), rows(9).shuffle(9, {.seed = 2})), others);
  EXPECT_THAT(words(Dataset::from_tensor_slices(at::arange(4)),
                    Dataset::from_tensor_slices(at::arange(4) + 1)),
              others);
}

TEST(FileCache, ReadsTheFileOfTheSameDatasetBuiltAgainOrShipped) {
  const std::string prefix = new_prefix();
  const auto built = [&] { return tensors(6).shard(2, 1).cache(prefix); };
  EXPECT_THAT(scalars_of(built()), ElementsAre(1, 3, 5));
  EXPECT_THAT(scalars_of(built()), ElementsAre(1, 3, 5));
  EXPECT_THAT(elements_of(shipped(built())), ElementsAre("1", "3", "5"));
}

TEST(FileCache, RefusesAPositionInTheFileOfAnotherDataset) {
  const std::string prefix = new_prefix();
  const auto shard = [&](std::int64_t index) { return tensors(8).shard(2, index).cache(prefix); };
  scalars_of(shard(0));
  Iterator reading = shard(0).iterator();
  reading.get_next();
  const Bytes position = reading.save();
  std::filesystem::remove(cache_path(prefix));
  scalars_of(shard(1));
  Iterator restored = shard(0).iterator();
  EXPECT_THAT(error_of([&] { restored.restore(position); }).message(),
              HasSubstr("got those of other ops"));
}

// The header of version 1 does not name the dataset.
TEST(FileCache, RefusesAFileOfVersionOne) {
  const std::string prefix = new_prefix();
  RecordWriter writer(cache_path(prefix));
  writer.write(std::string_view("\0CHDC\1\7int64[]", 14));
  writer.close();
  const Error error = error_of([&] { scalars_of(tensors(3).cache(prefix)); });
  EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
  EXPECT_THAT(error.message(), HasSubstr("of an earlier release, which does not; remove the file"));
}

TEST(FileCache, ReportsDamageOnce) {
  const std::string prefix = new_prefix();
  scalars_of(tensors(3).cache(prefix));
  fs::resize_file(cache_path(prefix), fs::file_size(cache_path(prefix)) - 30);
  EXPECT_THAT(elements_of(tensors(3).cache(prefix)), ElementsAre("0", "1", "error data_loss"));
}

// It asked for ignore_errors(), which would have shortened every pass.
TEST(FileCache, NamesTheRemedyOfDamage) {
  const std::string prefix = new_prefix();
  scalars_of(tensors(3).cache(prefix));
  const std::string file = cache_path(prefix);
  const auto error = [&] {
    return error_of([&] { scalars_of(tensors(3).cache(prefix)); }).message();
  };
  fs::resize_file(file, fs::file_size(file) - 30);
  EXPECT_THAT(error(), HasSubstr("got a damaged one (after 2 elements); delete it"));
  fs::resize_file(file, 5);
  EXPECT_THAT(error(), HasSubstr("got a damaged one (after 0 elements); delete it"));
  fs::remove(file);
  EXPECT_EQ(scalars_of(tensors(3).cache(prefix)).size(), 3U);
}

// The pass once continued after it had destroyed its input.
TEST(FileCache, GivesOutEveryElementWhereTheDiskIsFullAtTheEnd) {
  const Counted counted;
  for (const Dataset& input : {counted.dataset(3), counted.dataset(3).ignore_errors()}) {
    const std::string prefix = new_prefix();
    fs::create_symlink("/dev/full", partial_cache_path(prefix));
    Iterator iterator = input.cache(prefix).iterator();
    EXPECT_THAT(drain(iterator), ElementsAre("0", "1", "2", "error resource_exhausted"));
    EXPECT_FALSE(iterator.try_next().has_value());
    EXPECT_TRUE(fs::is_empty(fs::path(prefix).parent_path()));
  }
}

TEST(FileCache, GoesOnWithoutACacheWhereTheDiskIsFullOnTheWay) {
  const std::string prefix = new_prefix();
  fs::create_symlink("/dev/full", partial_cache_path(prefix));
  const Dataset large = tensors(3).map([](at::Tensor x) { return x.expand({1 << 16}); });
  Iterator iterator = large.cache(prefix).iterator();
  EXPECT_TRUE(iterator.try_next().has_value());  // the element that did not fit was once lost
  EXPECT_EQ(error_of([&] { iterator.try_next(); }).code(), ErrorCode::resource_exhausted);
  EXPECT_TRUE(iterator.try_next().has_value());
  EXPECT_TRUE(iterator.try_next().has_value());
  EXPECT_FALSE(iterator.try_next().has_value());
}

TEST(FileCache, ReportsADirectoryThatIsNotThere) {
  EXPECT_THAT(elements_of(tensors(3).cache(new_prefix() + "/none/c")),
              ElementsAre("error failed_precondition"));
}

TEST(FileCache, KeepsToTheDirectoriesThatAreAllowed) {
  const std::string prefix = new_prefix();
  const std::string folder = fs::path(prefix).parent_path().string();
  const Dataset dataset = tensors(2).cache(prefix);
  EXPECT_EQ(error_of([&] { dataset.iterator({.data_dirs = {{}}}); }).code(),
            ErrorCode::permission_denied);
  Iterator iterator = dataset.iterator({.data_dirs = {{folder}}});
  EXPECT_THAT(drain(iterator), ElementsAre("0", "1"));
}

// A symbolic link was once resolved again after the access check.
TEST(FileCache, IsWhereItWasAllowedToBe) {
  const fs::path allowed = fs::path(new_prefix()).parent_path();
  const fs::path other = fs::path(new_prefix()).parent_path();
  fs::create_directory(allowed / "folder");
  fs::create_directory_symlink(allowed / "folder", allowed / "link");
  const Dataset dataset = tensors(2).cache((allowed / "link" / "c").string());
  Iterator iterator = dataset.iterator({.data_dirs = {{allowed.string()}}});
  fs::remove(allowed / "link");
  fs::create_directory_symlink(other, allowed / "link");
  EXPECT_THAT(drain(iterator), ElementsAre("0", "1"));
  EXPECT_TRUE(fs::exists(cache_path((allowed / "folder" / "c").string())));
  EXPECT_TRUE(fs::is_empty(other));
}

TEST(FileCache, RefusesAPathWithAZeroByte) {
  const Dataset dataset = tensors(2).cache(new_prefix() + std::string("\0x", 2));
  EXPECT_EQ(error_of([&] { dataset.iterator(); }).code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cohort::data
