// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>

#include <set>

#include "cohort/data/dataset_traits.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

Dataset trained() { return rows(10).shuffle(4, {.seed = 1}).batch(2); }

at::Tensor opposite(const at::Tensor& x) { return -x; }

// The numbers are part of the format of cache files, so they may never change. These two were
// computed by another program, from the description in docs/formats/cache.md.
TEST(GraphFingerprint, IsTheSameInEveryBuild) {
  EXPECT_EQ(graph_fingerprint(trained()), 3669926650704919285U);
  EXPECT_EQ(graph_fingerprint(Dataset::from_tensor_slices(at::arange(4))), 18051238484192441100U);
}

TEST(GraphFingerprint, CountsEveryAttributeSeedsIncluded) {
  const std::vector<Dataset> different{
      trained(),
      rows(10).shuffle(4, {.seed = 2}).batch(2),
      rows(10).shuffle(4, {.seed = 1, .reshuffle_each_iteration = false}).batch(2),
      rows(11).shuffle(4, {.seed = 1}).batch(2),
      rows(10).shuffle(4, {.seed = 1}).batch(3),
      rows(10).shard(2, 0).shuffle(4, {.seed = 1}).batch(2),
      rows(10).shard(2, 1).shuffle(4, {.seed = 1}).batch(2),
      rows(10).concatenate(rows(2)),
      rows(2).concatenate(rows(10)),
      Dataset::from_tensor_slices(at::arange(10)),
      Dataset::from_tensor_slices(at::arange(10) + 1),
      Dataset::from_tensor_slices(at::arange(10).view({10, 1})),
      Dataset::text_line(StringTensor(std::vector<std::string>{"a"})),
      Dataset::text_line(StringTensor(std::vector<std::string>{"b"})),
  };
  std::set<std::uint64_t> found;
  for (const Dataset& dataset : different) found.insert(graph_fingerprint(dataset));
  EXPECT_EQ(found.size(), different.size());
}

TEST(GraphFingerprint, IsTheSameForAGraphThatWasShipped) {
  const Dataset dataset =
      trained().map(opposite).filter([](at::Tensor x) { return x.sum() < 100; }).prefetch(2);
  EXPECT_EQ(graph_fingerprint(shipped(dataset)), graph_fingerprint(dataset));
}

TEST(GraphFingerprint, NeitherCallsNorTracesFunctions) {
  int calls = 0;
  const Dataset mapped = rows(4).map([&calls](at::Tensor x) { return ++calls, x; });
  const Dataset generated_rows = generated({at::arange(2)}, ElementSpec::of(at::arange(2)));
  const auto refuse = [](at::Tensor) -> Dataset {
    throw Error(ErrorCode::internal, "the function was called");
  };
  const std::vector<Dataset> datasets{mapped, mapped.flat_map(refuse),
                                      generated_rows.interleave(refuse)};
  const int calls_before = calls;
  for (const Dataset& dataset : datasets) graph_fingerprint(dataset);
  EXPECT_EQ(calls, calls_before);
}

TEST(GraphFingerprint, TellsFunctionsApartByTheirNames) {
  const auto named = [](const std::string& name) {
    return graph_fingerprint(rows(4).map(Function(opposite, {.name = name})));
  };
  EXPECT_EQ(named("a"), named("a"));
  EXPECT_NE(named("a"), named("b"));
}

TEST(GraphFingerprint, LeavesOutWhatChangesNoElement) {
  const auto built = [](std::int64_t calls, std::int64_t buffer) {
    const auto files = StringTensor(std::vector<std::string>{"a"});
    return graph_fingerprint(Dataset::text_line(files, {.buffer_bytes = buffer})
                                 .map(opposite, {.num_parallel_calls = calls})
                                 .prefetch(buffer));
  };
  EXPECT_EQ(built(0, 100), built(2, 200));
}

}  // namespace
}  // namespace cohort::data
