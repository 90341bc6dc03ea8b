// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/parameter_store.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "cohort/core/kept_memory.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/rpc/task_errors.h"
#include "cohort/variable/initializer_recipe.h"

namespace cohort {
namespace {

using parameter_server::AppliedPushes;
using parameter_server::StoredTable;
using parameter_server::StoredVariable;

// nullptr for other kinds than apply.
const variable::UpdateRule* rule_of(const rpc::Effect& effect) {
  if (effect.kind != rpc::Effect::Kind::apply) return nullptr;
  COHORT_CHECK(!effect.optimizer.empty(), ErrorCode::invalid_argument,
               "[server.push] expected the name of an optimizer for a step of '", effect.rule,
               "', got none");
  return &optimizer::update_rule_of(effect.rule);
}

at::Tensor initial_value(const rpc::VariableSpec& variable) {
  if (!variable.initial) {
    const auto options = at::TensorOptions(variable.spec.dtype);
    return in_huge_pages(at::empty(*variable.spec.sizes, options)).zero_();
  }
  const auto& [kind, first, second, seed, name, whole, rows] = *variable.initial;
  const Initializer initializer = InitializerRecipe{kind, first, second}.initializer();
  at::Tensor value = rows ? initializer.make_rows(whole, {rows->begin, rows->end}, name, seed)
                          : initializer.make(whole, name, seed);
  COHORT_CHECK(TensorSpec::of(value) == variable.spec, ErrorCode::invalid_argument,
               "[server.create_variables] expected an initial value of ", variable.spec.to_string(),
               ", got ", TensorSpec::of(value).to_string(), " (variable '", variable.name, "')");
  return value;
}

// Throws the error that is being handled, with the remedy if it is a lack of memory. A table that
// is full throws an Error with a remedy of its own.
[[noreturn]] void rethrow_from_store(std::string_view op) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (...) {
  }
  const Error error = current_error();
  if (error.code() != ErrorCode::resource_exhausted) throw;
  throw Error(error.code(),
              "[server." + std::string(op) +
                  "] expected memory for the variables of this server, got none: give it more "
                  "memory, or use more parameter servers, so that each has fewer variables (" +
                  error.message() + ")");
}

}  // namespace

// Fills variables before it locks the table, so that pulls and pushes of others can continue.
void ParameterStore::create(const std::vector<rpc::VariableSpec>& variables) {
  const std::shared_lock pushing(pushing_);  // so that none is erased meanwhile
  Variables fresh;
  for (const rpc::VariableSpec& variable : variables) {
    COHORT_CHECK(variable.spec.is_static() || variable.table, ErrorCode::invalid_argument,
                 "[server.create_variables] expected known sizes, got ", variable.spec.to_string(),
                 " (variable '", variable.name, "')");
    if (has(variable.id)) continue;
    try {
      if (variable.table) {
        fresh[variable.id] = std::make_shared<StoredTable>(variable, hot_rows_);
      } else {
        fresh[variable.id] =
            std::make_shared<StoredVariable>(variable.name, initial_value(variable), hot_rows_);
      }
    } catch (...) {
      rethrow_from_store("create_variables");
    }
  }
  const std::unique_lock lock(mutex_);
  for (const rpc::VariableSpec& variable : variables) {
    const auto found = variables_.find(variable.id);
    if (found == variables_.end()) {
      variables_.insert(fresh.extract(variable.id));
      continue;
    }
    std::visit(
        [&](const auto& stored) {
          COHORT_CHECK(stored->name() == variable.name && stored->spec() == variable.spec,
                       ErrorCode::already_exists, "[server.create_variables] variable ",
                       variable.id, " is '", stored->name(), "' ", stored->spec().to_string(),
                       " already; got '", variable.name, "' ", variable.spec.to_string());
        },
        found->second);
  }
}

bool ParameterStore::has(std::uint64_t id) const {
  const std::shared_lock lock(mutex_);
  return variables_.contains(id);
}

void ParameterStore::expect_placement(std::uint64_t version) {
  std::uint64_t earlier = placement_;
  while (earlier < version && !placement_.compare_exchange_weak(earlier, version)) {
  }
}

void ParameterStore::check_placement(std::uint64_t version) const {
  if (version >= placement_) return;
  internal::throw_error(ErrorCode::aborted, "[server.find_variable] expected version ",
                        placement_.load(), " of the placement of variables, got ", version,
                        ": variables have moved; ask for their new servers");
}

rpc::PullReply ParameterStore::pull(const rpc::PullRequest& request) {
  check_placement(request.placement);
  rpc::PullReply reply;
  reply.values.reserve(request.variables.size());
  std::uint64_t rows = 0;
  for (std::size_t i = 0; i < request.variables.size(); ++i) {
    const bool has_rows = i < request.row_ids.size();
    const auto its_rows =
        has_rows ? static_cast<std::uint64_t>(request.row_ids[i].numel()) : std::uint64_t{0};
    StoredVariable::Version version = std::visit(
        [&](const auto& stored) {
          StoredVariable::Version read =
              has_rows ? stored->rows(request.row_ids[i]) : stored->snapshot();
          if (request.has(i, read.number)) read.value.reset();
          const std::size_t bytes = read.value.defined() ? read.value.nbytes() : 0;
          stored->statistics().pulls.add(bytes, its_rows);
          if (has_rows) stored->statistics().hot.note(request.row_ids[i]);
          return read;
        },
        request.snapshot == 0 ? find(request.variables[i])
                              : find_in(request.snapshot, request.variables[i]));
    rows += its_rows;
    if (version.value.defined()) reply.values.push_back(std::move(version.value));
    if (request.wants_versions) reply.versions.push_back(version.number);
  }
  for (const at::Tensor& value : reply.values) counters_.pulled_bytes += value.nbytes();
  if (rows > 0) counters_.rows.add(rows, Clock::system().now());
  return reply;
}

rpc::PushReply ParameterStore::push(rpc::PushRequest request) {
  const std::optional<rpc::PullRequest> asked = std::exchange(request.pull, std::nullopt);
  rpc::PushReply reply{.was_applied = apply(std::move(request))};
  if (asked) reply.pulled = pull(*asked);
  return reply;
}

// Returns whether it was applied now.
bool ParameterStore::apply(rpc::PushRequest request) {
  if (cut_.is_open()) wait_for_cut(request);
  const std::shared_lock pushing(pushing_);
  check_placement(request.placement);
  const rpc::PushId& id = request.id;
  rpc::check_watermark(request.low_watermark, id.number);
  const bool may_come_again = id.number != 0;
  if (may_come_again &&
      applied_.begin(id, request.low_watermark) != AppliedPushes::Verdict::apply) {
    ++counters_.pushes_dropped;
    return false;
  }
  std::vector<AnyUpdate> updates;
  try {
    updates = prepare(std::move(request.effects));
  } catch (...) {
    if (may_come_again) applied_.forget(id);
    rethrow_from_store("push");
  }
  try {
    for (AnyUpdate& any : updates) {
      std::visit(
          [&](auto& update) {
            count_push(update.stored->statistics(), update.reserve.effect);
            update.stored->apply(std::move(update.reserve));
          },
          any);
    }
  } catch (...) {
    // No update rule throws. If one does, the push counts as applied, because a retry would apply a
    // part of it twice.
    if (may_come_again) applied_.finish(id);
    throw Error(current_error()).during("applying a push, of which a part is now applied");
  }
  if (may_come_again) applied_.finish(id);
  ++counters_.pushes_applied;
  return true;
}

void ParameterStore::count_push(parameter_server::VariableStatistics& statistics,
                                const rpc::Effect& effect) {
  const std::uint64_t bytes = effect.bytes();
  counters_.pushed_bytes += bytes;
  const auto rows =
      effect.row_ids.defined() ? static_cast<std::uint64_t>(effect.row_ids.numel()) : 0;
  statistics.pushes.add(bytes, rows);
  if (rows == 0) return;
  statistics.hot.note(effect.row_ids);
  counters_.rows.add(rows, Clock::system().now());
}

rpc::ExportReply ParameterStore::export_state(const rpc::ExportRequest& request) {
  std::unique_lock alone(pushing_, std::defer_lock);
  if (request.has_applied) alone.lock();
  check_placement(request.placement);
  rpc::ExportReply reply;
  for (const rpc::StateRange& range : request.ranges) {
    reply.states.push_back(std::visit(
        [&](const auto& stored) { return stored->export_state(range, request.has_slots); },
        find(range.variable)));
  }
  if (request.has_applied) reply.applied = applied_.record();
  return reply;
}

void ParameterStore::import_state(const rpc::ImportRequest& request) {
  end_cut(0, "its values were replaced by others, as by a restore");
  const std::unique_lock alone(pushing_);
  check_placement(request.placement);
  std::vector<AnyImport> imports;
  try {
    for (const rpc::StateOfRange& state : request.states) {
      std::visit(
          [&]<class Kind>(const std::shared_ptr<Kind>& stored) {
            imports.push_back(Import<Kind>{stored, stored->prepare_import(state)});
          },
          find(state.range.variable));
    }
    applied_.merge(request.applied);
    for (AnyImport& any : imports)
      std::visit([](auto& import) { import.stored->import_state(std::move(import.step)); }, any);
  } catch (...) {
    rethrow_from_store("import_state");
  }
}

// Freeing large values takes long, so it happens without the locks.
void ParameterStore::erase(const rpc::EraseRequest& request) {
  if (!request.keys.empty()) return erase_rows(request);
  erase_snapshots(request);
  Variables erased;
  const std::unique_lock alone(pushing_);
  const std::unique_lock lock(mutex_);
  for (const std::uint64_t id : request.variables) erased.insert(variables_.extract(id));
}

// A push that was checked before leaves out the rows that are gone when it is applied.
void ParameterStore::erase_rows(const rpc::EraseRequest& request) const {
  for (std::size_t i = 0; i < request.variables.size(); ++i) {
    const Stored stored = find(request.variables[i]);
    const auto* const table = std::get_if<std::shared_ptr<StoredTable>>(&stored);
    COHORT_CHECK(table != nullptr, ErrorCode::invalid_argument,
                 "[server.erase] expected a table, whose rows can be removed, got variable ",
                 request.variables[i]);
    (*table)->erase(request.keys[i]);
  }
}

void ParameterStore::clear() noexcept {
  Variables erased;
  std::unordered_map<std::uint64_t, Variables> snapshots;
  if (cut_.is_open()) cut_.close(0, "the variables were dropped");
  const std::unique_lock alone(pushing_);
  const std::unique_lock lock(mutex_);
  erased.swap(variables_);
  snapshots.swap(snapshots_);
}

std::size_t ParameterStore::num_variables() const {
  const std::shared_lock lock(mutex_);
  std::size_t count = variables_.size();
  for (const auto& [number, values] : snapshots_) count += values.size();
  return count;
}

std::uint64_t ParameterStore::value_bytes() const {
  std::uint64_t bytes = 0;
  const auto add = [&](const Variables& values) {
    for (const auto& [id, stored] : values)
      bytes += std::visit([](const auto& each) { return each->value_bytes(); }, stored);
  };
  const std::shared_lock lock(mutex_);
  add(variables_);
  for (const auto& [number, values] : snapshots_) add(values);
  return bytes;
}

std::vector<ParameterStore::Busy> ParameterStore::busiest(std::size_t count) const {
  std::vector<std::pair<std::uint64_t, Busy>> all;
  {
    const std::shared_lock lock(mutex_);
    for (const auto& [id, stored] : variables_) {
      std::visit(
          [&](const auto& each) {
            parameter_server::VariableStatistics& its = each->statistics();
            all.emplace_back(its.pulls.bytes + its.pushes.bytes, Busy{each->name(), {each, &its}});
          },
          stored);
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& one, const auto& two) {
    return one.first != two.first ? one.first > two.first : one.second.name < two.second.name;
  });
  all.resize(std::min(all.size(), count));
  std::vector<Busy> found;
  for (auto& [bytes, busy] : all) found.push_back(std::move(busy));
  return found;
}

ParameterStore::Stored ParameterStore::find(std::uint64_t id) const {
  const std::shared_lock lock(mutex_);
  const auto found = variables_.find(id);
  if (found == variables_.end()) {
    throw Error(ErrorCode::not_found,
                "[server.find_variable] expected a variable that is here, got one that is not: "
                "this server was restarted since it was created, and has lost its variables",
                ErrorCause::handle_lost);
  }
  return found->second;
}

std::vector<ParameterStore::AnyUpdate> ParameterStore::prepare(
    std::vector<rpc::Effect> effects) const {
  std::vector<AnyUpdate> updates;
  updates.reserve(effects.size());
  for (rpc::Effect& effect : effects) {
    const variable::UpdateRule* const rule = rule_of(effect);
    std::visit(
        [&]<class Kind>(const std::shared_ptr<Kind>& stored) {
          updates.push_back(Update<Kind>{stored, stored->reserve(std::move(effect), rule)});
        },
        find(effect.variable));
  }
  return updates;
}

}  // namespace cohort
