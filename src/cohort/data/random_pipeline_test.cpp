// SPDX-License-Identifier: Apache-2.0
// Pipelines of random ops: from any saved position, an iterator yields exactly the elements that
// would have followed.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <random>

#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using Items = std::vector<std::string>;

constexpr std::size_t kItemsMax = 48;  // of a pipeline; a position is tested at each

// Makes a random pipeline. Two makers with the same seed and files make the same one.
class Maker {
 public:
  Maker(unsigned seed, const Items& files) : random_(seed), files_(files) {}

  // Its last op may make batches or pairs.
  Dataset pipeline() {
    Dataset dataset = numbers(static_cast<int>(drawn(1, 6)));
    switch (drawn(0, 4)) {
      case 0:
        return noted("batch", dataset.batch(drawn(1, 4), {.drop_remainder = coin()}));
      case 1:
        return noted("padded_batch", dataset.map(&vector_of).padded_batch(drawn(1, 4)));
      case 2:
        return noted("enumerate", dataset.enumerate());
      default:
        return dataset;
    }
  }

  const std::string& text() const { return text_; }
  // Whether two pipelines of the same seed yield the same elements.
  bool is_reproducible() const { return is_reproducible_; }

 private:
  using Step = Dataset (Maker::*)(const Dataset&);

  std::int64_t drawn(std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random_);
  }
  bool coin() { return drawn(0, 1) == 1; }
  Dataset noted(const char* op, Dataset dataset) {
    text_ += (text_.empty() ? "" : " ") + std::string(op);
    return dataset;
  }
  // Deterministic, since the test compares orders.
  std::int64_t calls() { return std::array<std::int64_t, 4>{0, 1, 3, kAutotune}[drawn(0, 3)]; }

  static at::Tensor next(at::Tensor x) { return x + 1; }
  static at::Tensor vector_of(at::Tensor x) {
    const std::int64_t value = x.item().toLong();
    return at::full({value % 4}, value, at::kLong);
  }
  static at::Tensor unlucky(at::Tensor x) {
    COHORT_CHECK(x.item().toLong() % 5 != 3, ErrorCode::data_loss, "bad element");
    return x;
  }
  static at::Tensor sum(at::Tensor a, at::Tensor b) { return a + b; }
  static at::Tensor second(at::Tensor, at::Tensor x) { return x; }
  static at::Tensor length(StringTensor line) {
    return at::scalar_tensor(static_cast<std::int64_t>(line.value().size()), at::kLong);
  }
  static at::Tensor rest_of_three(at::Tensor x) { return x % 3; }

  // A dataset of scalars; all later ops but the last make scalars from scalars.
  Dataset source() {
    const std::int64_t count = drawn(0, 14);
    switch (drawn(0, 3)) {
      case 0:
        return noted("range", Dataset::range(count));
      case 1:
        return noted("slices", Dataset::from_tensor_slices(at::full({count}, 4, at::kLong)));
      case 2:
        return noted("lines", Dataset::text_line(StringTensor(files_)).map(&length));
      default:
        return noted("records", Dataset::tf_record(StringTensor(record_files()),
                                                   {.num_parallel_reads = drawn(0, 2)})
                                    .map(&length));
    }
  }
  Items record_files() const { return {files_.begin() + 3, files_.end()}; }

  Dataset numbers(int ops) {
    Dataset dataset = source();
    for (; ops > 0; --ops) {
      const Step step =
          kSteps[static_cast<std::size_t>(drawn(0, static_cast<std::int64_t>(kSteps.size()) - 1))];
      dataset = (this->*step)(dataset);
    }
    return dataset;
  }

  Dataset map(const Dataset& d) {
    return noted("map", d.map(&next, {.num_parallel_calls = calls()}));
  }
  Dataset typed_map(const Dataset& d) {
    return noted("typed_map", d.map([](std::int64_t x) { return x + 7; }));
  }
  Dataset failing_map(const Dataset& d) {
    return noted("failing_map", d.map(&unlucky, {.num_parallel_calls = calls()}));
  }
  Dataset ignore_errors(const Dataset& d) { return noted("ignore_errors", d.ignore_errors()); }
  Dataset filter(const Dataset& d) {
    return noted("filter", d.filter([](at::Tensor x) { return x % 4 != 1; }));
  }
  Dataset shuffle(const Dataset& d) {
    ShuffleOptions options{.reshuffle_each_iteration = coin()};
    if (coin()) options.seed = drawn(0, 99);
    is_reproducible_ = is_reproducible_ && options.seed.has_value();
    return noted("shuffle", d.shuffle(drawn(1, 9), options));
  }
  Dataset repeat(const Dataset& d) { return noted("repeat", d.repeat(drawn(0, 3))); }
  Dataset take(const Dataset& d) { return noted("take", d.take(drawn(-1, 12))); }
  Dataset skip(const Dataset& d) { return noted("skip", d.skip(drawn(0, 5))); }
  Dataset shard(const Dataset& d) { return noted("shard", d.shard(2, drawn(0, 1))); }
  Dataset prefetch(const Dataset& d) { return noted("prefetch", d.prefetch(drawn(-1, 5))); }
  Dataset cache(const Dataset& d) { return noted("cache", d.cache()); }
  Dataset unique(const Dataset& d) { return noted("unique", d.unique()); }
  Dataset unbatch(const Dataset& d) {
    return noted("batch unbatch", d.batch(drawn(1, 5), {.num_parallel_calls = calls()}).unbatch());
  }
  Dataset rebatch(const Dataset& d) {
    return noted("batch rebatch unbatch",
                 d.batch(drawn(1, 5)).rebatch({drawn(1, 3), drawn(0, 3)}).unbatch());
  }
  Dataset rebatch_split(const Dataset& d) {
    return noted("batch rebatch_split unbatch",
                 d.batch(drawn(1, 5)).rebatch_split(drawn(1, 3)).unbatch());
  }
  Dataset flat_map(const Dataset& d) {
    return noted("flat_map", d.map(&rest_of_three).flat_map([](std::int64_t x) {
      return Dataset::range(x + 1);
    }));
  }
  Dataset interleave(const Dataset& d) {
    const std::int64_t cycle = drawn(1, 4);
    return noted("interleave", d.map(&rest_of_three)
                                   .interleave(
                                       [](std::int64_t x) {
                                         return Dataset::range(4 * x).map(&next).shuffle(
                                             3, {.seed = 5});
                                       },
                                       {.cycle_length = cycle,
                                        .block_length = drawn(1, 3),
                                        .num_parallel_calls = coin() ? drawn(1, cycle) : 0}));
  }
  Dataset zip(const Dataset& d) {
    const Dataset other = numbers(static_cast<int>(drawn(0, 2)));
    return noted("zip", Dataset::zip({d, other}).map(&sum));
  }
  Dataset concatenate(const Dataset& d) {
    return noted("concatenate", d.concatenate(numbers(static_cast<int>(drawn(0, 2)))));
  }
  Dataset enumerate(const Dataset& d) { return noted("enumerate map", d.enumerate().map(&second)); }
  Dataset options(const Dataset& d) {
    DatasetOptions options;
    options.slack = true;
    return noted("options", d.with_options(options));
  }

  static constexpr std::array<Step, 22> kSteps{
      &Maker::map,       &Maker::typed_map,  &Maker::failing_map, &Maker::ignore_errors,
      &Maker::filter,    &Maker::shuffle,    &Maker::repeat,      &Maker::take,
      &Maker::skip,      &Maker::shard,      &Maker::prefetch,    &Maker::cache,
      &Maker::unique,    &Maker::unbatch,    &Maker::rebatch,     &Maker::rebatch_split,
      &Maker::flat_map,  &Maker::interleave, &Maker::zip,         &Maker::concatenate,
      &Maker::enumerate, &Maker::options};

  std::mt19937 random_;
  const Items& files_;
  std::string text_;
  bool is_reproducible_ = true;
};

class RandomPipeline : public ::testing::TestWithParam<unsigned> {
 protected:
  RandomPipeline() {
    for (int i = 0; i < 3; ++i) files_.push_back(directory_.write(std::to_string(i), kLines[i]));
    for (int i = 0; i < 2; ++i) {
      files_.push_back(directory_.write_records("r" + std::to_string(i), {"a", "", "ccc"}));
    }
  }
  Maker maker() const { return Maker(GetParam(), files_); }
  Dataset made() const { return maker().pipeline(); }

 private:
  static constexpr const char* kLines[] = {"a\nbb\n", "", "cccc\n\nd"};
  ScratchDirectory directory_;
  Items files_;
};

// The other iterator's pipeline is built again, as in another process.
TEST_P(RandomPipeline, GoesOnFromEveryPosition) {
  Maker maker = this->maker();
  const Items whole = elements_of(maker.pipeline(), kItemsMax);
  SCOPED_TRACE("seed " + std::to_string(GetParam()) + ": " + maker.text());
  for (std::size_t taken = 0; taken <= whole.size(); ++taken) {
    Iterator first = made().iterator();
    Items all = drain(first, taken);
    const Bytes position = first.save();
    const Items rest = drain(first, kItemsMax);
    Iterator second = made().iterator();
    second.restore(position);
    ASSERT_EQ(drain(second, kItemsMax), rest) << "after " << taken << " elements";
    if (!maker.is_reproducible()) continue;
    all.insert(all.end(), rest.begin(), rest.end());
    all.resize(std::min(all.size(), whole.size()));
    ASSERT_EQ(all, whole) << "stopped after " << taken << " elements";
  }
}

// Restores positions in an iterator that is at another position, before or after it.
TEST_P(RandomPipeline, IsTakenUpByAnIteratorThatIsElsewhere) {
  Maker maker = this->maker();
  const Dataset dataset = maker.pipeline();
  SCOPED_TRACE("seed " + std::to_string(GetParam()) + ": " + maker.text());
  Iterator first = dataset.iterator();
  drain(first, 3);
  const Bytes position = first.save();
  const Items rest = drain(first, kItemsMax);
  Iterator second = made().iterator();
  for (const std::size_t before : {std::size_t{5}, std::size_t{0}, kItemsMax}) {
    drain(second, before);
    second.restore(position);
    ASSERT_EQ(drain(second, kItemsMax), rest) << "after " << before << " others";
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPipeline, ::testing::Range(0u, 60u));

}  // namespace
}  // namespace cohort::data
