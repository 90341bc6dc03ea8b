// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/function_table.h"

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/core/spelling.h"
#include "cohort/function/registry.h"

namespace cohort::server {
namespace {

bool specs_match(const std::vector<TensorSpec>& specs, std::span<const at::Tensor> tensors) {
  if (specs.size() != tensors.size()) return false;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (tensors[i].scalar_type() != specs[i].dtype ||
        tensors[i].sizes() != at::IntArrayRef(*specs[i].sizes)) {
      return false;
    }
  }
  return true;
}

}  // namespace

WorkerProgram::WorkerProgram(std::shared_ptr<const function::PreparedProgram> program,
                             const Ids& ids, const std::string& function)
    : program_(std::move(program)) {
  for (const auto& variable : program_->info().variables) {
    const auto id = ids.find(variable.name);
    COHORT_CHECK(id != ids.end(), ErrorCode::invalid_argument,
                 "[server.register_function] function '", function, "' uses variable '",
                 variable.name, "', whose number was not given");
    ids_.push_back(id->second);
    if (variable.is_merged) merged_.insert(id->second);
  }
}

std::shared_ptr<const WorkerProgram::Places> WorkerProgram::places(
    const parameter_server::PlacementTable& table) const {
  const Lock lock(mutex_);
  if (places_ && places_->variables.version() == table.version()) return places_;
  auto places = std::make_shared<Places>(Places{table.find(ids_), {}});
  std::vector<std::size_t> read;
  const auto& variables = program_->info().variables;
  for (std::size_t i = 0; i < variables.size(); ++i)
    if (variables[i].is_read && !variables[i].is_handle_only) read.push_back(i);
  places->pulls = pulls_of(*places, read, parameter_server::PullBatch(places->variables.version()));
  places_ = places;
  return places_;
}

std::vector<parameter_server::Pull> WorkerProgram::pulls_of(
    const Places& places, std::span<const std::size_t> variables,
    parameter_server::PullBatch batch) const {
  for (const std::size_t variable : variables) {
    const auto parts = places.variables.of(variable);
    const std::size_t first = places.variables.first_part(variable);
    for (std::size_t i = 0; i < parts.size(); ++i) batch.add(parts[i], first + i);
  }
  std::vector<parameter_server::Pull> pulls = batch.take();
  for (parameter_server::Pull& pull : pulls) {
    pull.request.wants_versions =
        std::any_of(pull.variables.begin(), pull.variables.end(),
                    [&](std::uint64_t id) { return merged_.contains(id); });
  }
  return pulls;
}

std::string WorkerProgram::names_of(std::span<const std::uint64_t> ids) const {
  const std::unordered_set<std::uint64_t> wanted(ids.begin(), ids.end());
  QuotedNames names;
  for (std::size_t i = 0; i < ids_.size(); ++i)
    if (wanted.contains(ids_[i])) names.add(program_->info().variables[i].name);
  return names.text();
}

bool WorkerProgram::fits(std::span<const at::Tensor> inputs,
                         std::span<const std::vector<at::Tensor>> draws) const {
  const function::ProgramInfo& info = program_->info();
  if (inputs.size() < info.inputs.size() || info.draws.size() != draws.size()) return false;
  // The programs of a function differ by their draws.
  for (std::size_t i = 0; i < draws.size(); ++i) {
    if (!specs_match(info.draws[i].fields, draws[i])) return false;
  }
  return specs_match(info.inputs, inputs.first(info.inputs.size()));
}

WorkerFunction::WorkerFunction(const rpc::FunctionBody& body) : name(body.name) {
  if (!body.registered_name.empty()) {
    registered = function::registered_function(body.registered_name);
    return;
  }
  add(body);
}

WorkerFunction::WorkerFunction(const rpc::FunctionBody& body, const WorkerFunction& known)
    : name(known.name), draws(known.draws), was_short(known.was_short.load()) {
  if (known.programs.size() < body.programs_before) {
    throw Error(ErrorCode::not_found,
                "[server.register_function] expected the first " +
                    std::to_string(body.programs_before) + " programs of '" + body.name +
                    "' here, got " + std::to_string(known.programs.size()) +
                    "; send the whole function",
                ErrorCause::function_missing);
  }
  programs.assign(known.programs.begin(), known.programs.begin() + body.programs_before);
  add(body);
}

void WorkerFunction::add(const rpc::FunctionBody& body) {
  WorkerProgram::Ids ids;
  for (const rpc::FunctionBody::Variable& variable : body.variables)
    ids.emplace(variable.name, variable.id);
  for (const Bytes& bytes : body.programs) {
    programs.push_back(
        std::make_shared<const WorkerProgram>(function::PreparedProgram::decode(bytes), ids, name));
    std::vector<std::int64_t> order;
    for (const auto& draw : programs.back()->program().info().draws) order.push_back(draw.resource);
    if (programs.size() == 1) draws = order;
    COHORT_CHECK(
        order == draws, ErrorCode::invalid_argument, "[server.register_function] function '", name,
        "' draws from its iterators in another order for another element; draw unconditionally");
  }
  is_self_contained = !programs.empty() && draws.empty() &&
                      std::all_of(programs.begin(), programs.end(), [](const auto& program) {
                        return program->num_variables() == 0;
                      });
}

void FunctionTable::put(const rpc::FunctionBody& body) {
  auto made = body.programs_before == 0
                  ? std::make_shared<const WorkerFunction>(body)
                  : std::make_shared<const WorkerFunction>(body, *find(body.id));
  const Lock lock(mutex_);
  functions_[body.id] = std::move(made);
}

std::shared_ptr<const WorkerFunction> FunctionTable::find(std::uint32_t id) const {
  const Lock lock(mutex_);
  const auto found = functions_.find(id);
  if (found == functions_.end()) {
    throw Error(ErrorCode::not_found,
                "[server.find_function] expected a function that the coordinator has sent, got one "
                "that is not here; perhaps the task was restarted: connect again and send its "
                "functions",
                ErrorCause::function_missing);
  }
  return found->second;
}

void FunctionTable::clear() {
  std::unordered_map<std::uint32_t, std::shared_ptr<const WorkerFunction>> dropped;
  const Lock lock(mutex_);
  dropped.swap(functions_);
}

bool FunctionTable::is_brief(std::uint32_t id) const {
  const Lock lock(mutex_);
  const auto found = functions_.find(id);
  return found != functions_.end() && found->second->is_self_contained && found->second->was_short;
}

}  // namespace cohort::server
