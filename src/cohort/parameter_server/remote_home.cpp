// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/remote_home.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/parameter_server/lost_server.h"
#include "cohort/parameter_server/slices.h"
#include "cohort/variable/eager_step.h"

namespace cohort {
namespace {

using parameter_server::ParameterClient;
using parameter_server::RemoteTable;
using parameter_server::with_remedy;

// The ranges of rows of a slice that have about this many bytes each; one range of all rows for a
// smaller one.
std::vector<rpc::StateRange> ranges_of(const rpc::Slice& slice, TensorSpec spec,
                                       std::uint64_t chunk_bytes) {
  const std::uint64_t id = slice.stored();
  if (!slice.is_whole()) spec.sizes->front() = slice.rows;
  const auto bytes = static_cast<std::uint64_t>(spec.byte_count());
  if (spec.sizes->empty() || bytes <= chunk_bytes) return {{.variable = id}};
  const std::int64_t all = spec.sizes->front();
  const std::uint64_t row_bytes = bytes / static_cast<std::uint64_t>(all);
  const auto rows = static_cast<std::int64_t>(std::max<std::uint64_t>(1, chunk_bytes / row_bytes));
  std::vector<rpc::StateRange> ranges;
  for (std::int64_t first = 0; first < all; first += rows)
    ranges.push_back({id, first, std::min(rows, all - first)});
  return ranges;
}

VariableRecord record_of(const Variable& variable, const rpc::Slice& slice,
                         const rpc::StateRange& range, rpc::StateOfRange state) {
  TensorSpec expected = variable.spec();
  if (!range.is_whole()) {
    expected.sizes->front() = range.rows;
  } else if (!slice.is_whole()) {
    expected.sizes->front() = slice.rows;
  }
  COHORT_CHECK(TensorSpec::of(state.value) == expected && state.range.first_row == range.first_row,
               ErrorCode::data_loss, "[variable.export_state] expected ", expected.to_string(),
               " from row ", range.first_row, ", got ", TensorSpec::of(state.value).to_string(),
               " from row ", state.range.first_row, " (variable '", variable.name(), "')");
  return {.name = variable.name(),
          .spec = variable.spec(),
          .first_row = slice.first_row + state.range.first_row,
          .values = {{std::move(state.value), std::move(state.slots)}}};
}

void expect_no_table(std::span<const Variable> variables, std::string_view call) {
  for (const Variable& variable : variables) {
    COHORT_CHECK(!variable.impl()->is_table(), ErrorCode::unimplemented, "[variable.", call,
                 "] expected a variable, got table '", variable.name(),
                 "', which has rows by key: look keys up, and change them with an optimizer");
  }
}

// How often a variable is read again that was updated between its chunks; then it is read whole.
constexpr int kTriesMax = 3;

}  // namespace

parameter_server::Places RemoteHome::places_of(std::span<const Variable> variables) const {
  std::vector<std::uint64_t> ids;
  for (const Variable& variable : variables) ids.push_back(RemoteVariable::of(variable).id());
  return placement_.find(ids);
}

ParameterClient::Describe RemoteHome::describe(std::span<const Variable> variables,
                                               const std::string& what) {
  return [variables, what](std::span<const std::uint64_t> ids, bool) {
    const std::unordered_set<std::uint64_t> wanted(ids.begin(), ids.end());
    std::vector<Variable> asked;
    for (const Variable& variable : variables)
      if (wanted.contains(RemoteVariable::of(variable).id())) asked.push_back(variable);
    return what + (asked.size() == 1 ? " variable " : " variables ") + names_of(asked);
  };
}

void RemoteHome::exchange(ParameterClient::Exchange exchange, std::span<const Variable> variables,
                          const std::string& what) const {
  VariableTraffic traffic;
  with_remedy([&] { client_.exchange(std::move(exchange), traffic, describe(variables, what)); });
  if (EagerStep* const step = EagerStep::current()) {
    step->traffic().pulled_bytes += traffic.pulled_bytes;
    step->traffic().pushed_bytes += traffic.pushed_bytes;
  }
}

RemoteTable RemoteHome::table(const Variable& variable) const {
  return {client_, places_of({&variable, 1}), variable};
}

std::vector<at::Tensor> RemoteHome::read(std::span<const Variable> variables) const {
  expect_no_table(variables, "read");
  const parameter_server::Places places = places_of(variables);
  parameter_server::PullBatch batch(places.version());
  for (std::size_t i = 0; i < places.parts().size(); ++i) batch.add(places.parts()[i], i);
  std::vector<at::Tensor> parts(places.parts().size());
  exchange({.pulls = batch.take(), .values = parts}, variables, "pull of");
  return joined(variables, places, parts);
}

std::vector<at::Tensor> RemoteHome::joined(std::span<const Variable> variables,
                                           const parameter_server::Places& places,
                                           std::span<at::Tensor> parts) const {
  std::vector<at::Tensor> values(variables.size());
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const Variable& variable = variables[i];
    const auto own = parts.subspan(places.first_part(i), places.of(i).size());
    if (!own.front().defined()) continue;
    values[i] = parameter_server::joined_slices(own);
    COHORT_CHECK(TensorSpec::of(values[i]) == variable.spec(), ErrorCode::data_loss,
                 "[variable.read] expected ", variable.spec().to_string(), ", got ",
                 TensorSpec::of(values[i]).to_string(), " (variable '", variable.name(), "' on ",
                 links_->name_of(places.of(i).front().server), ")");
  }
  return values;
}

at::Tensor RemoteHome::read_rows(const Variable& variable, const at::Tensor& ids) const {
  const parameter_server::Places places = places_of({&variable, 1});
  const auto split = parameter_server::split_rows(places.parts(), ids);
  parameter_server::PullBatch batch(places.version());
  for (std::size_t i = 0; i < split.size(); ++i)
    batch.add_rows(places.parts()[split[i].part], split[i].ids, i);
  std::vector<at::Tensor> rows(split.size());
  exchange({.pulls = batch.take(), .values = rows}, {&variable, 1}, "pull of rows of");
  return parameter_server::joined_rows(split, rows);
}

// One walk over variables of one home.
class RemoteHome::Exporter {
 public:
  Exporter(const RemoteHome& home, std::span<const Variable> variables, const StateWalk& walk,
           std::uint64_t cut, const TakeRecord& take)
      : home_(home), variables_(variables), walk_(walk), cut_(cut), take_(take) {}

  void run() {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      const std::span<const rpc::Slice> slices = places_.of(i);
      if (slices.front().is_by_key()) {
        home_.table(variables_[i]).export_state(walk_, cut_, [&](VariableRecord record) {
          take_(i, std::move(record));
        });
        continue;
      }
      const auto ranges = ranges_of(slices.front(), variables_[i].spec(), walk_.chunk_bytes);
      if (slices.size() > 1 || ranges.size() > 1) {
        for (const rpc::Slice& slice : slices)
          export_in_chunks(i, slice, ranges_of(slice, variables_[i].spec(), walk_.chunk_bytes));
        continue;
      }
      together_.push_back(i);
      bytes += static_cast<std::uint64_t>(variables_[i].spec().byte_count());
      if (bytes < walk_.chunk_bytes) continue;
      export_together();
      bytes = 0;
    }
    export_together();
  }

 private:
  std::vector<rpc::StateOfRange> ask(std::span<const ParameterClient::Range> ranges) const {
    std::vector<rpc::StateOfRange> states;
    with_remedy([&] {
      states = home_.client_.export_state(ranges, {places_.version(), walk_.has_slots, cut_},
                                          describe(variables_, "export of"));
    });
    return states;
  }
  void export_together() {
    std::vector<ParameterClient::Range> ranges;
    for (const std::size_t i : together_) {
      const rpc::Slice& slice = places_.of(i).front();
      ranges.push_back({slice.server, {.variable = slice.stored()}, slice.variable});
    }
    std::vector<rpc::StateOfRange> states = ask(ranges);
    for (std::size_t k = 0; k < together_.size(); ++k) {
      const std::size_t i = together_[k];
      take_(i,
            record_of(variables_[i], places_.of(i).front(), ranges[k].range, std::move(states[k])));
    }
    together_.clear();
  }
  rpc::StateOfRange ask_one(const rpc::Slice& slice, const rpc::StateRange& range) const {
    const ParameterClient::Range one{slice.server, range, slice.variable};
    return std::move(ask({&one, 1})[0]);
  }
  // All chunks must be of one version of the slice, so that the slots fit the value. In a cut they
  // are; otherwise none can be given before all have come.
  void export_in_chunks(std::size_t i, const rpc::Slice& slice,
                        const std::vector<rpc::StateRange>& ranges) const {
    if (cut_ != 0) {
      for (const rpc::StateRange& range : ranges)
        take_(i, record_of(variables_[i], slice, range, ask_one(slice, range)));
      return;
    }
    for (int tries = 0; tries < kTriesMax; ++tries) {
      std::vector<rpc::StateOfRange> states;
      for (const rpc::StateRange& range : ranges) {
        states.push_back(ask_one(slice, range));
        if (states.back().version != states.front().version) break;
      }
      if (states.back().version != states.front().version) continue;
      for (std::size_t k = 0; k < states.size(); ++k)
        take_(i, record_of(variables_[i], slice, ranges[k], std::move(states[k])));
      return;
    }
    const rpc::StateRange whole{.variable = slice.stored()};
    take_(i, record_of(variables_[i], slice, whole, ask_one(slice, whole)));
  }

  const RemoteHome& home_;
  const std::span<const Variable> variables_;
  const StateWalk& walk_;
  const std::uint64_t cut_;
  const TakeRecord& take_;
  const parameter_server::Places places_ = home_.places_of(variables_);
  std::vector<std::size_t> together_;
};

void RemoteHome::export_state(std::span<const Variable> variables, const StateWalk& walk,
                              const TakeRecord& take) const {
  Exporter(*this, variables, walk, /*cut=*/0, take).run();
}

void RemoteHome::export_cut(std::span<const Variable> variables, const StateWalk& walk,
                            std::uint64_t cut, const TakeRecord& take) const {
  Exporter(*this, variables, walk, cut, take).run();
}

void RemoteHome::take_cut(std::span<const Variable> variables,
                          const rpc::CutRequest& request) const {
  std::vector<rpc::MemberId> servers;
  const parameter_server::Places places = places_of(variables);
  for (const rpc::Slice& slice : places.parts()) servers.push_back(slice.server);
  std::ranges::sort(servers);
  servers.erase(std::unique(servers.begin(), servers.end()), servers.end());
  with_remedy([&] { client_.take_cut(servers, request); });
}

void RemoteHome::take_snapshot(std::uint64_t number, std::span<const Variable> variables,
                               std::span<const rpc::MemberId> servers) const {
  const parameter_server::Places places = places_of(variables);
  std::vector<std::pair<rpc::MemberId, rpc::SnapshotRequest>> requests;
  for (const rpc::MemberId server : servers) {
    rpc::SnapshotRequest request{.snapshot = number, .placement = places.version()};
    for (const rpc::Slice& slice : places.parts())
      if (slice.server == server) request.variables.push_back(slice.stored());
    requests.emplace_back(server, std::move(request));
  }
  with_remedy([&] { client_.take_snapshot(std::move(requests)); });
}

void RemoteHome::import_state(const Variable& variable, const VariableRecord& record) {
  if (variable.impl()->is_table()) return table(variable).import_state(record);
  const parameter_server::Places places = places_of({&variable, 1});
  for (const rpc::Slice& slice : places.parts()) {
    for (const rpc::StateRange& range : ranges_of(slice, record.spec, StateWalk().chunk_bytes))
      import_range(variable, record.values[0], slice, range, places.version());
  }
}

void RemoteHome::import_range(const Variable& variable, const VariableRecord::Value& value,
                              const rpc::Slice& slice, const rpc::StateRange& range,
                              std::uint64_t version) {
  const bool is_whole = slice.is_whole() && range.is_whole();
  const std::int64_t rows = range.is_whole() ? slice.rows : range.rows;
  const auto rows_of = [&](const at::Tensor& tensor) {
    const at::Tensor plain = tensor.detach();
    const bool is_taken_whole = is_whole || tensor.dim() == 0;
    const at::Tensor part =
        is_taken_whole ? plain : plain.narrow(0, slice.first_row + range.first_row, rows);
    return part.cpu().contiguous();
  };
  rpc::StateOfRange state{.range = range, .value = rows_of(value.tensor), .slots = value.slots};
  for (internal::OptimizerSlots& slots : state.slots)
    for (at::Tensor& tensor : slots.tensors) tensor = rows_of(tensor);
  rpc::ImportRequest request{.placement = version};
  request.states.push_back(std::move(state));
  with_remedy([&] {
    client_.import_state(slice.server, std::move(request), slice.variable,
                         describe({&variable, 1}, "import of"));
  });
}

void RemoteHome::push(std::span<const RemoteUpdate> updates, const std::string& what) const {
  std::vector<Variable> variables;
  for (const RemoteUpdate& update : updates) variables.push_back(update.variable);
  const parameter_server::Places places = places_of(variables);
  parameter_server::PushBatch batch;
  for (std::size_t i = 0; i < updates.size(); ++i) batch.add(places.of(i), updates[i].effect);
  exchange({.pushes = batch.take(places.version())}, variables, what);
}

void RemoteHome::write(std::span<const VariableWrite> writes) {
  std::vector<RemoteUpdate> updates;
  for (const VariableWrite& write : writes) {
    expect_no_table({&write.variable, 1}, "assign");
    rpc::Effect effect = write.effect();
    effect.tensors[0] = effect.tensors[0].detach().contiguous();
    if (effect.row_ids.defined()) effect.row_ids = effect.row_ids.to(at::kLong).contiguous();
    updates.push_back({write.variable, std::move(effect)});
  }
  update(std::move(updates), "assign to");
}

void RemoteHome::apply(const SlotKey& key, std::span<const Update> updates,
                       std::span<const double> hyper) {
  std::vector<RemoteUpdate> remote;
  for (const auto& [variable, gradient, is_temporary] : updates) {
    const std::span<const double> own = key.hyper_of(variable.impl().get(), hyper);
    rpc::Effect effect =
        internal::apply_effect(key.owner(), {own.begin(), own.end()}, gradient.detach());
    internal::separate_rows(effect);
    effect.tensors[0] = effect.tensors[0].contiguous();
    remote.push_back({variable, std::move(effect)});
  }
  update(std::move(remote), "'" + std::string(key.rule.name()) + "' step of");
}

// Assigns the values that the step has written in place into the stand-ins since they last equalled
// the servers' values.
std::vector<RemoteHome::RemoteUpdate> RemoteHome::written_by(const EagerStep& step,
                                                             std::span<const Variable> variables) {
  std::vector<RemoteUpdate> updates;
  for (const Variable& variable : variables) {
    if (!step.has_written(*variable.impl())) continue;
    COHORT_CHECK(!variable.is_trainable(), ErrorCode::invalid_argument,
                 "[variable.write_back] expected variable '", variable.name(),
                 "', which lives on a server, to be updated there, got a step that writes in place "
                 "into its copy; use assign/assign_add or an optimizer");
    updates.push_back(
        {variable, internal::write_effect(rpc::Effect::Kind::assign, variable.impl()->copy())});
  }
  return updates;
}

void RemoteHome::update(std::vector<RemoteUpdate> updates, const std::string& what) const {
  EagerStep* const step = EagerStep::current();
  if (step == nullptr) return push(updates, what);
  std::vector<Variable> variables;  // with stand-ins that have values
  std::vector<at::Tensor> stand_ins;
  for (const RemoteUpdate& update : updates) {
    if (update.variable.impl()->is_table()) continue;
    variables.push_back(update.variable);
    stand_ins.push_back(update.variable.tensor());
  }
  // The writes of the step come first, so that these values are updated.
  std::vector<RemoteUpdate> all = written_by(*step, variables);
  std::move(updates.begin(), updates.end(), std::back_inserter(all));
  push(all, what);
  if (variables.empty()) return;
  const std::vector<at::Tensor> values = read(variables);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    stand_ins[i].copy_(values[i]);  // autograd then refuses a graph that saved the old value
    step->note(*variables[i].impl(), values[i]);
  }
}

void RemoteHome::write_back(std::span<const Variable> variables) const {
  EagerStep* const step = EagerStep::current();
  if (step == nullptr) return;
  const std::vector<RemoteUpdate> updates = written_by(*step, variables);
  if (updates.empty()) return;
  push(updates, "assign to");
  for (const auto& [variable, effect] : updates) step->note(*variable.impl(), effect.tensors[0]);
}

}  // namespace cohort
