// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/workers/gathered_rows.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <vector>

#include "cohort/variable/row_gradient.h"

namespace cohort::internal {
namespace {

// The rows of each worker begin with this id.
constexpr std::int64_t kBegin = -1;

}  // namespace

void prepare_to_gather(Reduction::Parts& parts) {
  const auto rows = variable::rows_of(variable::sum_rows(gradient_of_sum(parts)));
  const at::Tensor ids = rows.ids.cpu();
  parts.indices = at::cat({at::full({1, 1}, kBegin, ids.options()), ids}, 1);
  parts.value = rows.values;
}

void add_gathered_rows(Reduction::Parts& parts) {
  const at::Tensor ids = parts.indices[0];
  const auto* const id = ids.data_ptr<std::int64_t>();
  std::vector<at::Tensor> of_workers;
  std::int64_t values = 0;
  for (std::int64_t begin = 1; begin <= ids.numel();) {
    std::int64_t end = begin;
    while (end < ids.numel() && id[end] != kBegin) ++end;
    of_workers.push_back(variable::summed_row_gradient(
        ids.slice(0, begin, end), parts.value.slice(0, values, values + end - begin), parts.sizes));
    values += end - begin;
    begin = end + 1;
  }
  const auto sum = variable::rows_of(variable::add_all_rows(of_workers));
  parts.indices = sum.ids;
  parts.value = sum.values;
}

}  // namespace cohort::internal
