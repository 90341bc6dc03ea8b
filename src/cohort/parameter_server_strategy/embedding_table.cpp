// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/_unique.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <farmhash.h>

#include <limits>

#include "cohort/core/error.h"
#include "cohort/function/trace.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/parameter_server_strategy/server_variables.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/variable/eager_step.h"
#include "cohort/variable/initializer_recipe.h"

namespace cohort {
namespace {

std::shared_ptr<RemoteHome> home_of(const Variable& table) {
  return std::static_pointer_cast<RemoteHome>(table.impl()->home());
}

void check_keys(std::string_view call, const at::Tensor& keys, const std::string& table) {
  COHORT_CHECK(keys.defined() && keys.scalar_type() == at::kLong && keys.layout() == at::kStrided &&
                   keys.is_cpu(),
               ErrorCode::invalid_argument, "[", call, "] expected keys of int64 on the CPU, got ",
               keys.defined() ? TensorSpec::of(keys).to_string() : "an undefined tensor",
               " (table '", table, "'); use to(torch::kLong), and embedding_key() for strings");
}

// The rows that a trace computes with. They differ between keys, so that a step which reads them on
// the host is noticed.
at::Tensor example_rows(const Variable& table, const at::Tensor& keys) {
  at::Tensor rows =
      at::empty({keys.numel(), table.spec().sizes->back()}, at::TensorOptions(table.spec().dtype));
  InitializerRecipe::fill_rows(
      Initializer::random_uniform(-0.1, 0.1), rows,
      {keys.data_ptr<std::int64_t>(), static_cast<std::size_t>(keys.numel())}, table.name(), 0);
  return rows;
}

at::Tensor traced_lookup(function::Trace& trace, const Variable& table, const at::Tensor& keys) {
  const function::Trace::LookedUp lookup =
      trace.look_up(table.tensor(), keys,
                    [&](const at::Tensor& distinct) { return example_rows(table, distinct); });
  return at::embedding(lookup.rows, lookup.places);
}

}  // namespace

std::int64_t embedding_key(std::string_view text) {
  const auto key = static_cast<std::int64_t>(util::Fingerprint64(text.data(), text.size()));
  return key == internal::kNoRow ? key + 1 : key;
}

at::Tensor EmbeddingTable::lookup(const at::Tensor& keys) const {
  check_keys("table.lookup", keys, name());
  if (function::Trace* const trace = function::Trace::current())
    return traced_lookup(*trace, variable_, keys);
  const auto [distinct, places] =
      at::_unique(keys.reshape({-1}), /*sorted=*/true, /*return_inverse=*/true);
  at::Tensor rows = home_of(variable_)->table(variable_).look_up(distinct);
  EagerStep* const step = EagerStep::current();
  if (step != nullptr && c10::GradMode::is_enabled()) {
    rows.requires_grad_(true);
    step->lookups_of(*variable_.impl()).push_back({rows, distinct});
  }
  return at::embedding(rows, places.view(keys.sizes()));
}

void EmbeddingTable::erase(const at::Tensor& keys) const {
  COHORT_CHECK(
      function::Trace::current() == nullptr && EagerStep::current() == nullptr,
      ErrorCode::failed_precondition,
      "[table.erase] expected a call outside of run() and of steps, got one inside (table '",
      name(), "'); make it between two steps");
  check_keys("table.erase", keys, name());
  home_of(variable_)->table(variable_).erase(keys.reshape({-1}).contiguous());
}

EmbeddingTableMemory EmbeddingTable::memory() const {
  const rpc::TableUse use = home_of(variable_)->table(variable_).use();
  return {.rows = static_cast<std::int64_t>(use.rows),
          .row_bytes = static_cast<std::int64_t>(use.row_bytes),
          .bytes = static_cast<std::int64_t>(use.bytes)};
}

EmbeddingTable ParameterServerStrategy::embedding_table(std::string name,
                                                        const EmbeddingTableOptions& options) {
  detail::check_can_create(*this, name);
  const bool is_real = options.dtype == at::kFloat || options.dtype == at::kDouble;
  COHORT_CHECK(options.dim > 0 && is_real, ErrorCode::invalid_argument,
               "[strategy.embedding_table] expected rows of at least one float32 or float64, got ",
               options.dim, " of ", dtype_name(options.dtype), " (table '", name,
               "'); set EmbeddingTableOptions::dim");
  COHORT_CHECK(
      options.capacity >= 0 && options.min_count >= 1 &&
          options.min_count <= std::numeric_limits<std::int32_t>::max(),
      ErrorCode::invalid_argument,
      "[strategy.embedding_table] expected a capacity of at least 0 and a min_count from 1 "
      "to 2147483647, got ",
      options.capacity, " and ", options.min_count, " (table '", name, "')");
  COHORT_CHECK(options.capacity > 0 || options.eviction == TableEviction::none,
               ErrorCode::invalid_argument,
               "[strategy.embedding_table] expected a capacity for a table with an eviction, got 0 "
               "(table '",
               name, "')");
  const Variable made = home_->create_table(std::move(name), options);
  home_->creation_watches().announce(made);
  return EmbeddingTable(made);
}

}  // namespace cohort
