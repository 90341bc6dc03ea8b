// SPDX-License-Identifier: Apache-2.0
// The random numbers that C++ functions of a pipeline draw. decisions/0115
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cohort/data/ahead_reader.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using Numbers = std::vector<double>;

at::Tensor noise() { return at::rand({}, at::kDouble); }
double drawn() { return noise().item<double>(); }
at::Tensor noise_for(at::Tensor) { return noise(); }
Dataset made_of_noise(std::int64_t) { return Dataset::from_tensors(noise()); }
bool is_heads(at::Tensor) { return drawn() < 0.5; }

Dataset generated_noise(std::int64_t count) {
  const ElementSpec spec = ElementSpec::tuple({{at::kDouble, std::vector<std::int64_t>{}}});
  return Dataset::from_generator(
      [count]() -> Generator {
        return [left = count](Nest& element) mutable { return element = noise(), left-- > 0; };
      },
      spec);
}

void seed(std::uint64_t value) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(value);
}

Numbers rest_of(ElementSource& source) {
  Numbers numbers;
  Fields fields;
  while (source.next(fields)) numbers.push_back(fields[0].sum().item<double>());
  return numbers;
}
Numbers numbers_of(const Dataset& dataset) { return rest_of(*dataset.source({})); }

// Each calls a function for several elements in a thread of its own.
std::vector<std::pair<std::string, Dataset>> all_ahead() {
  const auto inner = [](std::int64_t) { return rows(2).map(&noise_for); };
  return {
      {"map", rows(8).map(&noise_for).prefetch(2)},
      {"parallel map", rows(8).map(&noise_for, {.num_parallel_calls = 3})},
      {"typed map", rows(8).map([](std::int64_t) { return drawn(); }).prefetch(2)},
      {"filter", rows(32).filter(&is_heads).prefetch(2)},
      {"flat_map", rows(8).flat_map(&made_of_noise).prefetch(2)},
      {"interleave", rows(8).interleave(&made_of_noise, {.cycle_length = 2}).prefetch(2)},
      {"parallel interleave",
       rows(8).interleave(&made_of_noise, {.cycle_length = 2, .num_parallel_calls = 2})},
      {"inner map", rows(4).flat_map(inner).prefetch(2)},
      {"generator", generated_noise(8).prefetch(2)},
      {"batches", rows(8).map(&noise_for).batch(2).prefetch(2)},
      {"epochs", rows(4).map(&noise_for).repeat(2).prefetch(2)},
      {"threads of an epoch", rows(4).map(&noise_for).prefetch(2).repeat(2)},
  };
}

// Regression: such a function drew from LibTorch's default generator at the same time as the thread
// that trains, so both got other numbers in each run of a program.
TEST(OwnRandomNumbers, LeaveThoseOfTheConsumerAlone) {
  for (const auto& [name, dataset] : all_ahead()) {
    SCOPED_TRACE(name);
    seed(3);
    const double first = drawn(), second = drawn();
    seed(3);
    const std::unique_ptr<ElementSource> source = dataset.source({});
    EXPECT_EQ(drawn(), first);
    rest_of(*source);
    EXPECT_EQ(drawn(), second);
  }
}

TEST(OwnRandomNumbers, FollowFromTheSeedOfTheDefaultGenerator) {
  const auto with_seed = [](std::uint64_t value) {
    seed(value);
    std::vector<Numbers> all;
    for (const auto& [name, dataset] : all_ahead()) all.push_back(numbers_of(dataset));
    return all;
  };
  const std::vector<Numbers> first = with_seed(3), other = with_seed(4);
  EXPECT_EQ(with_seed(3), first);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_NE(first[i], other[i]) << i;
}

TEST(OwnRandomNumbers, DifferInEachElementEpochAndIteration) {
  for (const auto& [name, dataset] : all_ahead()) {
    if (name == "filter") continue;  // its numbers are those of the rows
    SCOPED_TRACE(name);
    Numbers all = numbers_of(dataset);
    const Numbers next = numbers_of(dataset);
    EXPECT_EQ(next.size(), all.size());
    all.insert(all.end(), next.begin(), next.end());
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
  }
}

TEST(OwnRandomNumbers, OfARunAheadOfItsConsumerAreThoseOfAThread) {
  seed(3);
  const double first = drawn();
  seed(3);
  const auto source = source_ahead(rows(4).map(&noise_for), {}, {});
  const Numbers numbers = rest_of(*source);
  EXPECT_EQ(drawn(), first);
  EXPECT_EQ(numbers.size(), 4);
}

TEST(OwnRandomNumbers, OfTheConsumersThreadAreThoseOfThePlainProgram) {
  for (const Dataset& dataset : {rows(3).map(&noise_for), rows(3).map(&noise_for).prefetch(0),
                                 rows(3).flat_map(&made_of_noise), generated_noise(3).take(3)}) {
    seed(3);
    const Numbers plain = {drawn(), drawn(), drawn()};
    seed(3);
    EXPECT_EQ(numbers_of(dataset), plain);
  }
}

// Regression: a function that is called to find the spec of its elements drew numbers of the
// program.
TEST(OwnRandomNumbers, APreviewDrawsNothing) {
  seed(3);
  const double first = drawn();
  seed(3);
  EXPECT_EQ(rows(3).map(&noise_for).map(&noise_for).element_spec().fields[0].dtype, at::kDouble);
  rows(3).map(&noise_for).filter(&is_heads);
  rows(3).flat_map(&made_of_noise).element_spec();
  EXPECT_EQ(drawn(), first);
}

TEST(OwnRandomNumbers, GoOnBehindARestoredPosition) {
  for (const Dataset& dataset :
       {rows(6).map(&noise_for).prefetch(2), rows(6).map(&noise_for, {.num_parallel_calls = 2})}) {
    seed(3);
    const auto source = dataset.source({});
    Fields fields;
    source->next(fields);
    ByteWriter writer;
    source->save(writer);
    const Bytes position = writer.take();
    seed(4);
    const auto restored = dataset.source({});
    ByteReader reader(position, "a position");
    restored->restore(reader);
    EXPECT_EQ(rest_of(*restored), rest_of(*source));
  }
}

}  // namespace
}  // namespace cohort::data
