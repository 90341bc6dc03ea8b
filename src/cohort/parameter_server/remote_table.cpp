// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/remote_table.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/parameter_server/lost_server.h"
#include "cohort/parameter_server/slices.h"
#include "cohort/variable/eager_step.h"

namespace cohort::parameter_server {

ParameterClient::Describe RemoteTable::describe(const char* what) const {
  return [this, what](std::span<const std::uint64_t>, bool) {
    return std::string(what) + " table '" + variable_.name() + "'";
  };
}

at::Tensor RemoteTable::look_up(const at::Tensor& keys) const {
  const auto split = split_rows(places_.parts(), keys);
  PullBatch batch(places_.version());
  for (std::size_t i = 0; i < split.size(); ++i)
    batch.add_rows(places_.parts()[split[i].part], split[i].ids, i);
  std::vector<at::Tensor> rows(split.size());
  const std::vector<Pull> pulls = batch.take();
  VariableTraffic traffic;
  with_remedy(
      [&] { client_.exchange({.pulls = pulls, .values = rows}, traffic, describe("lookup in")); });
  if (EagerStep* const step = EagerStep::current())
    step->traffic().pulled_bytes += traffic.pulled_bytes;
  TensorSpec expected = variable_.spec();
  for (std::size_t i = 0; i < split.size(); ++i) {
    expected.sizes->front() = split[i].ids.numel();
    COHORT_CHECK(TensorSpec::of(rows[i]) == expected, ErrorCode::data_loss,
                 "[table.lookup] expected ", expected.to_string(), ", got ",
                 TensorSpec::of(rows[i]).to_string(), " (table '", variable_.name(), "')");
  }
  return joined_rows(split, rows);
}

std::vector<rpc::StateOfRange> RemoteTable::ask(std::span<const ParameterClient::Range> ranges,
                                                bool has_slots, const char* what) const {
  std::vector<rpc::StateOfRange> states;
  with_remedy(
      [&] { states = client_.export_state(ranges, places_.version(), has_slots, describe(what)); });
  for (const rpc::StateOfRange& state : states) {
    COHORT_CHECK(state.table, ErrorCode::data_loss,
                 "[variable.export_state] expected rows with keys, got rows without (table '",
                 variable_.name(), "')");
  }
  return states;
}

rpc::TableUse RemoteTable::use() const {
  std::vector<ParameterClient::Range> nothing;
  for (const rpc::Slice& slice : places_.parts())
    nothing.push_back({slice.server, {slice.stored(), 0, 0}, slice.variable});
  rpc::TableUse sum;
  for (const rpc::StateOfRange& state : ask(nothing, /*has_slots=*/false, "size of")) {
    const rpc::TableUse& use = state.table->use;
    sum.rows += use.rows;
    sum.capacity += use.capacity;
    sum.bytes += use.bytes;
    sum.row_bytes = std::max(sum.row_bytes, use.row_bytes);
  }
  return sum;
}

void RemoteTable::export_rows(const StateWalk& walk,
                              const std::function<void(VariableRecord record)>& take) const {
  TensorSpec row = variable_.spec();
  row.sizes->front() = 1;
  const auto rows =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(walk.chunk_bytes) / row.byte_count());
  std::int64_t first_of_slice = 0;
  for (const rpc::Slice& slice : places_.parts()) {
    std::int64_t end = 1;
    for (std::int64_t first = 0; first < end; first += rows) {
      const ParameterClient::Range range{
          slice.server, {slice.stored(), first, rows}, slice.variable};
      rpc::StateOfRange state = std::move(ask({&range, 1}, walk.has_slots, "export of")[0]);
      end = static_cast<std::int64_t>(state.table->rows_end);
      take({.name = variable_.name(),
            .spec = variable_.spec(),
            .first_row = first_of_slice + first,
            .values = {{std::move(state.value), std::move(state.slots)}},
            .keys = std::move(state.table->keys)});
    }
    first_of_slice += std::max<std::int64_t>(1, end);
  }
}

// Every server gets a part, also one without keys, since the first one removes what was there.
void RemoteTable::import_rows(const VariableRecord& record) const {
  COHORT_CHECK(record.keys.defined() && record.keys.dim() == 1, ErrorCode::invalid_argument,
               "[variable.import_state] expected rows with keys int64[n] for table '",
               variable_.name(), "', got a record without keys");
  const at::Tensor keys = record.keys.to(at::kLong).contiguous();
  std::vector<std::vector<std::int64_t>> of_slice(places_.parts().size());
  for (std::int64_t i = 0; i < keys.numel(); ++i)
    of_slice[slice_of_key(keys.data_ptr<std::int64_t>()[i], of_slice.size())].push_back(i);
  for (std::size_t s = 0; s < of_slice.size(); ++s) {
    const rpc::Slice& slice = places_.parts()[s];
    const at::Tensor rows = at::tensor(of_slice[s], at::TensorOptions(at::kLong));
    const auto rows_of = [&](const at::Tensor& tensor) {
      return tensor.dim() == 0 ? tensor : tensor.detach().cpu().index_select(0, rows);
    };
    rpc::StateOfRange state{.range = {slice.stored(), record.first_row, rows.numel()},
                            .value = rows_of(record.values.at(0).tensor),
                            .slots = record.values[0].slots};
    for (internal::OptimizerSlots& slots : state.slots)
      for (at::Tensor& tensor : slots.tensors) tensor = rows_of(tensor);
    state.table = {.keys = keys.index_select(0, rows)};
    rpc::ImportRequest request{.placement = places_.version()};
    request.states.push_back(std::move(state));
    with_remedy([&] {
      client_.import_state(slice.server, std::move(request), slice.variable, describe("import of"));
    });
  }
}

}  // namespace cohort::parameter_server
