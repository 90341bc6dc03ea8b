// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/row_lookup.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/function/trace.h"
#include "cohort/variable/rows.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace variable {

at::Tensor rows_of(const Variable& variable, const at::Tensor& ids) {
  const VariableImpl& impl = *variable.impl();
  if (function::Trace::current() != nullptr) impl.check_tensor_is_current("variable.rows");
  if (impl.is_tensor_current()) {
    const at::Tensor& table = variable.tensor();
    const at::Tensor own = ids.to(table.device());
    return table.dim() == 2 ? at::embedding(table, own) : table.index_select(0, own);
  }
  const std::shared_ptr<VariableHome> home = impl.home();
  home->check_use("read", variable.name());
  return home->read_rows(variable, ids.cpu().to(at::kLong).contiguous());
}

void check_divided_evenly(const Variable& variable, std::string_view call) {
  const std::span<const Variable> shards = variable.impl()->shards();
  const auto count = static_cast<std::int64_t>(shards.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t all = variable.spec().sizes->front();
    const std::int64_t expected = all / count + (i < all % count ? 1 : 0);
    const std::int64_t rows = shards[static_cast<std::size_t>(i)].spec().sizes->front();
    COHORT_CHECK(rows == expected, ErrorCode::unimplemented, "[", call, "] expected the ", all,
                 " rows of variable '", variable.name(), "' divided evenly over ", count,
                 " shards, got ", rows, " rows in shard ", i,
                 "; use embedding_lookup(), or the shards themselves");
  }
}

}  // namespace variable

namespace {

using variable::rows_of;

void check_ids(std::string_view call, const Variable& variable, const at::Tensor& ids) {
  if (function::Trace::current() != nullptr) return;
  const bool has_numbers = ids.defined() && ids.layout() == at::kStrided;
  variable::check_indices(call, variable.name(), variable.spec(),
                          has_numbers ? ids.reshape({-1}) : ids);
}

// As many ones as the rows have dimensions after the first, so that it multiplies whole rows.
at::Tensor for_rows(const at::Tensor& numbers, const at::Tensor& rows) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(rows.dim()), 1);
  sizes.front() = numbers.size(0);
  return numbers.reshape(sizes);
}

at::Tensor clipped(const at::Tensor& rows, double max_norm) {
  const at::Tensor flat = rows.reshape({rows.size(0), -1});
  const at::Tensor squares = (flat * flat).sum(1);
  // The root has no gradient at 0.
  const at::Tensor is_zero = squares.eq(0);
  const at::Tensor norms = at::where(is_zero, at::ones_like(squares), squares).sqrt();
  return rows * for_rows(max_norm / norms.masked_fill(is_zero, 0).clamp_min(max_norm), rows);
}

// Sparse ids as bags.
struct Bags {
  at::Tensor ids;      // [n]
  at::Tensor bags;     // int64 [n]: the bag of each id
  at::Tensor weights;  // [n], or undefined
};

Bags bags_of(std::string_view call, const at::Tensor& ids, const SparseLookupOptions& options) {
  const bool is_sparse = ids.defined() && ids.layout() == at::kSparse && ids.dim() >= 2 &&
                         ids.sparse_dim() == ids.dim();
  COHORT_CHECK(is_sparse, ErrorCode::invalid_argument, "[", call,
               "] expected a sparse tensor of ids [bags, n], got ",
               ids.defined() ? TensorSpec::of(ids).to_string() : "an undefined tensor");
  const at::Tensor indices = ids._indices();
  at::Tensor bags = indices[0];
  for (std::int64_t axis = 1; axis + 1 < ids.dim(); ++axis)
    bags = bags * ids.size(axis) + indices[axis];
  if (!options.weights.defined()) return {ids._values(), bags, {}};
  const at::Tensor& weights = options.weights;
  const bool fits =
      weights.layout() == at::kSparse && weights.sizes() == ids.sizes() &&
      weights.is_floating_point() && weights._indices().sizes() == indices.sizes() &&
      (function::Trace::current() != nullptr || weights._indices().eq(indices).all().item<bool>());
  COHORT_CHECK(fits, ErrorCode::invalid_argument, "[", call,
               "] expected floating-point weights with the indices of the ids ",
               TensorSpec::of(ids).to_string(), ", got ", TensorSpec::of(weights).to_string());
  return {ids._values(), bags, weights._values()};
}

at::Tensor sums_of(const at::Tensor& rows, const at::Tensor& bags, std::int64_t count) {
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  sizes.front() = count;
  return at::zeros(sizes, rows.options()).index_add(0, bags, rows);
}

// One row for each bag; zeros for one without ids.
at::Tensor combined(const Variable& variable, const Bags& bags, std::int64_t count,
                    const SparseLookupOptions& options) {
  const at::Tensor rows = embedding_lookup(variable, bags.ids, options.max_norm);
  const bool has_weights = bags.weights.defined();
  const at::Tensor weights = has_weights ? bags.weights.to(rows.scalar_type()) : at::Tensor();
  const at::Tensor sums =
      sums_of(has_weights ? rows * for_rows(weights, rows) : rows, bags.bags, count);
  if (options.combiner == EmbeddingCombiner::sum) return sums;
  const at::Tensor each = has_weights ? weights : at::ones_like(bags.bags, rows.options());
  const bool is_mean = options.combiner == EmbeddingCombiner::mean;
  const at::Tensor total = sums_of(is_mean ? each : each * each, bags.bags, count);
  const at::Tensor divisor = is_mean ? total : total.sqrt();
  const at::Tensor is_zero = divisor.eq(0);
  const at::Tensor means = sums / for_rows(divisor.masked_fill(is_zero, 1), sums);
  return means.masked_fill(for_rows(is_zero, sums), 0);
}

}  // namespace

at::Tensor embedding_lookup(const Variable& variable, const at::Tensor& ids,
                            std::optional<double> max_norm) {
  check_ids("embedding_lookup", variable, ids);
  at::Tensor rows = rows_of(variable, ids.reshape({-1}));
  if (max_norm) rows = clipped(rows, *max_norm);
  std::vector<std::int64_t> sizes = ids.sizes().vec();
  sizes.insert(sizes.end(), rows.sizes().begin() + 1, rows.sizes().end());
  return rows.reshape(sizes);
}

at::Tensor embedding_lookup_sparse(const Variable& variable, const at::Tensor& ids,
                                   const SparseLookupOptions& options) {
  const Bags bags = bags_of("embedding_lookup_sparse", ids, options);
  COHORT_CHECK(ids.dim() == 2, ErrorCode::invalid_argument,
               "[embedding_lookup_sparse] expected ids [bags, n], got ",
               TensorSpec::of(ids).to_string(), "; safe_embedding_lookup_sparse() takes more axes");
  COHORT_CHECK(!options.default_id, ErrorCode::invalid_argument,
               "[embedding_lookup_sparse] expected no default_id, which empty bags get in "
               "safe_embedding_lookup_sparse() alone");
  const bool is_empty = bags.bags.numel() == 0;
  const std::int64_t count = is_empty ? 0 : bags.bags.max().item<std::int64_t>() + 1;
  return combined(variable, bags, count, options);
}

at::Tensor safe_embedding_lookup_sparse(const Variable& variable, const at::Tensor& ids,
                                        const SparseLookupOptions& options) {
  Bags bags = bags_of("safe_embedding_lookup_sparse", ids, options);
  at::Tensor is_kept = bags.ids.ge(0);
  if (bags.weights.defined() && options.combiner != EmbeddingCombiner::sum)
    is_kept = is_kept.logical_and(bags.weights.gt(0));
  const at::Tensor kept = is_kept.nonzero().reshape({-1});
  bags.ids = bags.ids.index_select(0, kept);
  bags.bags = bags.bags.index_select(0, kept);
  if (bags.weights.defined()) bags.weights = bags.weights.index_select(0, kept);
  std::vector<std::int64_t> sizes = ids.sizes().vec();
  sizes.pop_back();
  const std::int64_t count =
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  at::Tensor rows = combined(variable, bags, count, options);
  if (options.default_id) {
    const at::Tensor id = at::full({1}, *options.default_id, at::kLong);
    const at::Tensor counts = sums_of(at::ones_like(bags.bags), bags.bags, count);
    const at::Tensor missing = embedding_lookup(variable, id, options.max_norm);
    rows = at::where(for_rows(counts.eq(0), rows), missing, rows);
  }
  sizes.insert(sizes.end(), rows.sizes().begin() + 1, rows.sizes().end());
  return rows.reshape(sizes);
}

}  // namespace cohort
