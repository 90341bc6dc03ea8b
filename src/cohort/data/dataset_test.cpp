// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/dataset.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/testing/test_seed.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Values = std::vector<std::int64_t>;

Dataset pairs(std::int64_t count) {
  return Dataset::from_tensor_slices(Nest::tuple({at::arange(count), at::arange(count) + 10}));
}

TEST(Dataset, IsReadInALoop) {
  std::int64_t sum = 0;
  for (Nest& element : Dataset::range(5)) sum += element.tensor().item<std::int64_t>();
  EXPECT_EQ(sum, 10);
}

TEST(Dataset, StartsAnewInEachLoop) {
  const Dataset dataset = rows(8).batch(2);
  for (const Nest& element : dataset) {
    EXPECT_EQ(show(element), "[0, 1]");
    break;
  }
  EXPECT_EQ(elements_of(dataset).size(), 4U);
}

TEST(Dataset, IsSharedByItsCopies) {
  const Dataset copy = rows(3);
  EXPECT_EQ(scalars_of(copy.repeat(2)), (Values{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(scalars_of(copy), (Values{0, 1, 2}));
}

TEST(Dataset, MayGoBeforeItsIterator) {
  Iterator iterator = tensors(4).shuffle(2, {.seed = 1}).repeat(2).batch(3).prefetch(1).iterator();
  EXPECT_EQ(drain(iterator).size(), 3U);
}

TEST(DatasetIterator, GivesTheFieldsOfAnElement) {
  Iterator iterator = pairs(2).iterator();
  const auto [x, y] = iterator.next<at::Tensor, at::Tensor>();
  EXPECT_EQ(show(x), "0");
  EXPECT_EQ(show(y), "10");
  Iterator single = rows(1).iterator();
  EXPECT_EQ(show(single.next<at::Tensor>()), "0");
}

TEST(DatasetIterator, NamesAWrongNumberOfFields) {
  Iterator iterator = pairs(2).iterator();
  const Error error = error_of([&] { iterator.next<at::Tensor>(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(),
              HasSubstr("expected elements of 1 fields (the types of next<…>()), got 2: (int64[], "
                        "int64[]); write at::Tensor once for each field"));
}

TEST(DatasetIterator, TakesTheFieldsOfAMapInTheOrderOfTheirNames) {
  const Nest rows = Nest::map({{"x", at::arange(2)}, {"label", at::arange(10, 12)}});
  Iterator iterator = Dataset::from_tensor_slices(rows).iterator();
  const auto [label, x] = iterator.next<at::Tensor, at::Tensor>();
  EXPECT_EQ(show(label), "10");
  EXPECT_EQ(show(x), "0");
  const Error error = error_of([&] { iterator.next<at::Tensor>(); });
  EXPECT_THAT(error.message(), HasSubstr("got 2: {label: int64[], x: int64[]}"));
}

TEST(DatasetIterator, ThrowsOutOfRangeAtTheEnd) {
  Iterator iterator = rows(0).iterator();
  EXPECT_EQ(error_of([&] { iterator.get_next(); }).code(), ErrorCode::out_of_range);
  EXPECT_EQ(error_of([&] { iterator.next<at::Tensor>(); }).code(), ErrorCode::out_of_range);
  EXPECT_FALSE(iterator.try_next().has_value());
}

TEST(DatasetIterator, IsAnArgumentOfFunctions) {
  const auto iterator = std::make_shared<Iterator>(rows(2).iterator());
  Function draw([](Iterator& it) { return it.next<at::Tensor>(); });
  const std::shared_ptr<Handle> handle = iterator;
  EXPECT_EQ(show(draw(handle)), "0");
  EXPECT_EQ(show(draw(handle)), "1");
  const Error error = error_of([&] { draw(7); });
  EXPECT_EQ(error.cause(), ErrorCause::wrong_type);
  EXPECT_THAT(error.message(), HasSubstr("expected an iterator, got int"));
}

TEST(DatasetElementSpec, IsPrintedAsItsNest) {
  const ElementSpec spec = ElementSpec::of(
      Nest::tuple({at::arange(3), Nest::map({{"a", at::arange(2).to(at::kByte)}})}));
  EXPECT_EQ(spec.to_string(), "(int64[3], {a: uint8[2]})");
  EXPECT_EQ(ElementSpec::tuple({spec.fields[0]}).to_string(), "int64[3]");
}

// CTX-074
TEST(DatasetInputContext, DividesTheGlobalBatch) {
  const InputContext input{
      .num_input_pipelines = 4, .input_pipeline_id = 2, .num_replicas_in_sync = 8};
  EXPECT_EQ(input.get_per_replica_batch_size(16), 2);
  EXPECT_EQ(input.to_string(), "tf.distribute.InputContext(input pipeline id 2, total: 4)");
}

TEST(DatasetInputContext, RefusesARemainderAndNamesBothNumbers) {
  const InputContext input{
      .num_input_pipelines = 1, .input_pipeline_id = 0, .num_replicas_in_sync = 3};
  const Error error = error_of([&] { input.get_per_replica_batch_size(16); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), ::testing::AllOf(HasSubstr("16"), HasSubstr("3")));
}

TEST(DatasetOps, AreSourcesOrHaveInputs) {
  for (const Op& op : op_registry()) {
    EXPECT_EQ(&known_op(op.name), &op) << op.name << " is there twice";
    EXPECT_EQ(op.shard_rule == ShardRule::source, op.input_count == 0) << op.name;
  }
  EXPECT_THROW(known_op("no such op"), Error);
}

// A reference implementation of the ops on plain vectors.
struct Model {
  Values values;

  void shard(std::int64_t count, std::int64_t index) {
    Values kept;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (static_cast<std::int64_t>(i) % count == index) kept.push_back(values[i]);
    }
    values = kept;
  }
  void repeat(std::int64_t count) {
    Values repeated;
    for (std::int64_t i = 0; i < count; ++i)
      repeated.insert(repeated.end(), values.begin(), values.end());
    values = repeated;
  }
  std::vector<std::string> batch(std::size_t size, bool drop_remainder) const {
    std::vector<std::string> batches;
    for (std::size_t at = 0; at < values.size(); at += size) {
      const std::size_t end = std::min(at + size, values.size());
      if (drop_remainder && end - at < size) break;
      std::string text;
      for (std::size_t i = at; i < end; ++i)
        text += (i > at ? ", " : "") + std::to_string(values[i]);
      batches.push_back("[" + text + "]");
    }
    return batches;
  }
};

// A random chain of shards, repeats and prefetches, on both kinds of stages.
void compare_with_model(std::mt19937& random) {
  const std::int64_t count = random() % 40;
  const bool is_rows = random() % 2 == 0;
  Dataset dataset = is_rows ? rows(count) : tensors(count);
  Model model{.values = scalars_of(rows(count))};
  std::string built = (is_rows ? "rows " : "tensors ") + std::to_string(count);
  for (auto left = random() % 4; left > 0; --left) {
    const std::int64_t n = 1 + random() % 4;
    switch (random() % 3) {
      case 0: {
        const std::int64_t index = random() % n;
        dataset = dataset.shard(n, index);
        model.shard(n, index);
        built += " shard " + std::to_string(n) + " " + std::to_string(index);
        break;
      }
      case 1:
        dataset = dataset.repeat(n);
        model.repeat(n);
        built += " repeat " + std::to_string(n);
        break;
      default:
        dataset = dataset.prefetch(n);
        built += " prefetch";
    }
  }
  const std::int64_t size = 1 + random() % 7;
  const BatchOptions options{.drop_remainder = random() % 2 == 0};
  SCOPED_TRACE(built + " batch " + std::to_string(size));
  ASSERT_EQ(elements_of(dataset.batch(size, options)),
            model.batch(static_cast<std::size_t>(size), options.drop_remainder));
  ASSERT_EQ(dataset.cardinality(), static_cast<std::int64_t>(model.values.size()));
}

TEST(DatasetChain, DoesAsANaiveModel) {
  const testing::TestSeed seed;
  std::mt19937 random(seed.value());
  for (int round = 0; round < 300 && !HasFatalFailure(); ++round) compare_with_model(random);
}

TEST(DatasetChain, ShardsAreDisjointAndComplete) {
  for (std::int64_t pipelines = 1; pipelines <= 8; ++pipelines) {
    Values all;
    for (std::int64_t id = 0; id < pipelines; ++id) {
      const InputContext input{
          .num_input_pipelines = pipelines, .input_pipeline_id = id, .num_replicas_in_sync = 1};
      const Values part = scalars_of(rows(21).shard(input).shuffle(5));
      all.insert(all.end(), part.begin(), part.end());
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, scalars_of(rows(21)));
  }
}

}  // namespace
}  // namespace cohort::data
