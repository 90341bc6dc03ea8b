// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/remote_table.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

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
                                                const ParameterClient::Export& how,
                                                const char* what) const {
  std::vector<rpc::StateOfRange> states;
  with_remedy([&] { states = client_.export_state(ranges, how, describe(what)); });
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
  for (const rpc::StateOfRange& state :
       ask(nothing, {.placement = places_.version(), .has_slots = false}, "size of")) {
    const rpc::TableUse& use = state.table->use;
    sum.rows += use.rows;
    sum.capacity += use.capacity;
    sum.bytes += use.bytes;
    sum.counted += use.counted;
    sum.row_bytes = std::max(sum.row_bytes, use.row_bytes);
  }
  return sum;
}

// One walk over a table.
class RemoteTable::Exporter {
 public:
  Exporter(const RemoteTable& table, const StateWalk& walk, std::uint64_t cut,
           const std::function<void(VariableRecord record)>& take)
      : table_(table), walk_(walk), cut_(cut), take_(take) {}

  void run() {
    std::vector<std::uint64_t> counted;
    const std::span<const rpc::Slice> slices = table_.places_.parts();
    for (const rpc::Slice& slice : slices) counted.push_back(export_rows(slice));
    for (std::size_t i = 0; i < counted.size(); ++i)
      if (counted[i] > 0) export_counts(slices[i], counted[i]);
  }

 private:
  rpc::StateOfRange ask_one(const rpc::Slice& slice, const rpc::StateRange& range,
                            bool has_slots) const {
    const ParameterClient::Range one{slice.server, range, slice.variable};
    return std::move(
        table_.ask({&one, 1}, {table_.places_.version(), has_slots, cut_}, "export of")[0]);
  }
  VariableRecord record_of(std::int64_t first, rpc::StateOfRange state) const {
    return {.name = table_.variable_.name(),
            .spec = table_.variable_.spec(),
            .first_row = next_row_ + first,
            .values = {{std::move(state.value), std::move(state.slots)}},
            .keys = std::move(state.table->keys),
            .is_of_counts = state.range.is_of_counts};
  }
  // Returns how many keys have counts.
  std::uint64_t export_rows(const rpc::Slice& slice) {
    TensorSpec row = table_.variable_.spec();
    row.sizes->front() = 1;
    const auto rows =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(walk_.chunk_bytes) / row.byte_count());
    std::uint64_t counted = 0;
    std::int64_t end = 1;
    for (std::int64_t first = 0; first < end; first += rows) {
      rpc::StateOfRange state = ask_one(slice, {slice.stored(), first, rows}, walk_.has_slots);
      end = std::max<std::int64_t>(1, static_cast<std::int64_t>(state.table->rows_end));
      counted = state.table->use.counted;
      take_(record_of(first, std::move(state)));
    }
    next_row_ += end;
    return counted;
  }
  void export_counts(const rpc::Slice& slice, std::uint64_t counted) {
    constexpr std::uint64_t kBytes = 2 * sizeof(std::int64_t);  // of a key and its count
    std::int64_t end = 1, parts = 1;
    for (std::int64_t first = 0; first < end; first += parts) {
      // The first reply says how many parts there are; they have about equally many counts.
      if (first > 0) {
        const std::uint64_t part_bytes = counted * kBytes / static_cast<std::uint64_t>(end);
        parts = static_cast<std::int64_t>(
            std::max<std::uint64_t>(1, walk_.chunk_bytes / std::max<std::uint64_t>(1, part_bytes)));
        parts = std::min(parts, end - first);
      }
      rpc::StateOfRange state =
          ask_one(slice, {slice.stored(), first, parts, /*is_of_counts=*/true}, false);
      end = static_cast<std::int64_t>(state.table->rows_end);
      state.range.is_of_counts = true;
      take_(record_of(first, std::move(state)));
    }
    next_row_ += end;
  }

  const RemoteTable& table_;
  const StateWalk& walk_;
  const std::uint64_t cut_;
  const std::function<void(VariableRecord record)>& take_;
  std::int64_t next_row_ = 0;  // counts on, so that only the first record of all begins at row 0
};

void RemoteTable::export_state(const StateWalk& walk, std::uint64_t cut,
                               const std::function<void(VariableRecord record)>& take) const {
  Exporter(*this, walk, cut, take).run();
}

// Every server gets a part, also one without keys, since the first one removes what was there.
void RemoteTable::import_state(const VariableRecord& record) const {
  COHORT_CHECK(record.keys.defined() && record.keys.dim() == 1, ErrorCode::invalid_argument,
               "[variable.import_state] expected rows with keys int64[n] for table '",
               variable_.name(), "', got a record without keys");
  const at::Tensor& value = record.values.at(0).tensor;
  COHORT_CHECK(value.dim() > 0 && value.size(0) == record.keys.numel(), ErrorCode::invalid_argument,
               "[variable.import_state] expected ", record.keys.numel(),
               " rows, as there are keys, for table '", variable_.name(), "', got ",
               TensorSpec::of(value).to_string());
  const at::Tensor none = at::empty({0}, at::TensorOptions(at::kLong));
  const std::vector<RowsOfPart> split =
      split_rows(places_.parts(), record.keys.to(at::kLong).contiguous());
  for (std::size_t s = 0; s < places_.parts().size(); ++s) {
    const rpc::Slice& slice = places_.parts()[s];
    const auto found = std::find_if(split.begin(), split.end(),
                                    [s](const RowsOfPart& each) { return each.part == s; });
    const RowsOfPart own = found == split.end() ? RowsOfPart{s, none, none} : *found;
    const auto rows_of = [&](const at::Tensor& tensor) {
      const bool is_taken_whole = tensor.dim() == 0 || !own.places.defined();
      const at::Tensor plain = tensor.detach().cpu();
      return is_taken_whole ? plain : variable::rows_at(plain, own.places).contiguous();
    };
    rpc::StateOfRange state{
        .range = {slice.stored(), record.first_row, own.ids.numel(), record.is_of_counts},
        .value = rows_of(value),
        .slots = record.values[0].slots};
    for (internal::OptimizerSlots& slots : state.slots)
      for (at::Tensor& tensor : slots.tensors) tensor = rows_of(tensor);
    state.table = {.keys = own.ids};
    rpc::ImportRequest request{.placement = places_.version()};
    request.states.push_back(std::move(state));
    with_remedy([&] {
      client_.import_state(slice.server, std::move(request), slice.variable, describe("import of"));
    });
  }
}

void RemoteTable::erase(const at::Tensor& keys) const {
  std::vector<std::pair<rpc::MemberId, rpc::EraseRequest>> requests;
  for (const RowsOfPart& own : split_rows(places_.parts(), keys)) {
    const rpc::Slice& slice = places_.parts()[own.part];
    requests.emplace_back(slice.server, rpc::EraseRequest{{slice.stored()}, {own.ids}});
  }
  with_remedy([&] {
    client_.erase_rows(std::move(requests), places_.parts().front().variable,
                       describe("erasure in"));
  });
}

}  // namespace cohort::parameter_server
