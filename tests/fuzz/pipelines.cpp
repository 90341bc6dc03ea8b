// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/pipelines.h"

#include <ATen/TensorOperators.h>

#include "cohort/core/string_tensor.h"

namespace cohort::fuzz {

const std::vector<Dataset>& pipelines() {
  static const std::vector<Dataset> kPipelines = [] {
    const auto plus = [](at::Tensor x) { return x + 1; };
    const auto odd = [](at::Tensor x) { return (x & 1) == 1; };
    const auto some = [](std::int64_t n) { return Dataset::range(n); };
    const Dataset range = Dataset::range(20);
    return std::vector<Dataset>{
        range.shuffle(5, {.seed = 1}).repeat(2).batch(3),
        range.map(plus).shuffle(5, {.seed = 1}).shard(2, 1).repeat(2),
        range.filter(odd).take(5).concatenate(range.skip(18)).enumerate(),
        range.flat_map(some).unique(),
        range.interleave(some, {.cycle_length = 3, .block_length = 2}),
        range.map(plus).cache().repeat(2),
        range.batch(3).rebatch({1, 4}).unbatch(),
        range.batch(3).rebatch_split(2),
        Dataset::zip({range, range.map(plus).padded_batch(2)}).ignore_errors(),
        Dataset::from_tensor_slices(StringTensor({3}, {"a", "b", ""})).shuffle(2, {.seed = 1}),
    };
  }();
  return kPipelines;
}

}  // namespace cohort::fuzz
