// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/function_table.h"

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/function/registry.h"

namespace cohort::server {
namespace {

const rpc::FunctionBody::Placement& place_of(const std::string& variable,
                                             const PlacedProgram::Placements& placements,
                                             const std::string& function) {
  const auto found = placements.find(variable);
  COHORT_CHECK(found != placements.end(), ErrorCode::invalid_argument,
               "[server.register_function] function '", function, "' uses variable '", variable,
               "', whose parameter server was not named");
  return *found->second;
}

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

PlacedProgram::PlacedProgram(std::shared_ptr<const function::PreparedProgram> prepared,
                             const Placements& placements, const std::string& function)
    : program(std::move(prepared)) {
  const auto& variables = program->info().variables;
  std::vector<std::int64_t> read;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    places.push_back(place_of(variables[i].name, placements, function));
    if (variables[i].is_read && !variables[i].is_handle_only)
      read.push_back(static_cast<std::int64_t>(i));
  }
  pulls = pulls_of(read);
}

std::vector<PlacedProgram::Pull> PlacedProgram::pulls_of(
    std::span<const std::int64_t> variables) const {
  std::vector<Pull> made;
  for (const std::int64_t variable : variables) {
    const auto position = static_cast<std::size_t>(variable);
    const auto& place = places.at(position);
    auto pull =
        std::find_if(made.begin(), made.end(), [&](const Pull& p) { return p.ps == place.ps; });
    if (pull == made.end()) {
      made.push_back({.ps = place.ps, .ids = {}, .positions = {}});
      pull = std::prev(made.end());
    }
    pull->ids.push_back(place.id);
    pull->positions.push_back(position);
    pull->wants_versions = pull->wants_versions || program->info().variables[position].is_merged;
  }
  return made;
}

bool PlacedProgram::fits(std::span<const at::Tensor> inputs,
                         std::span<const std::vector<at::Tensor>> draws) const {
  const function::ProgramInfo& info = program->info();
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
  COHORT_CHECK(!body.programs.empty(), ErrorCode::invalid_argument,
               "[server.register_function] expected a program of function '", name, "', got none");
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
  PlacedProgram::Placements placements;
  for (const auto& each : body.placements) placements.emplace(each.variable, &each);
  for (const Bytes& bytes : body.programs) {
    programs.push_back(std::make_shared<const PlacedProgram>(
        function::PreparedProgram::decode(bytes), placements, name));
    std::vector<std::int64_t> order;
    for (const auto& draw : programs.back()->program->info().draws) order.push_back(draw.resource);
    if (programs.size() == 1) draws = order;
    COHORT_CHECK(
        order == draws, ErrorCode::invalid_argument, "[server.register_function] function '", name,
        "' draws from its iterators in another order for another element; draw unconditionally");
  }
  is_self_contained =
      draws.empty() && std::all_of(programs.begin(), programs.end(),
                                   [](const auto& program) { return program->places.empty(); });
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

bool FunctionTable::is_brief(std::uint32_t id) const {
  const Lock lock(mutex_);
  const auto found = functions_.find(id);
  return found != functions_.end() && found->second->is_self_contained && found->second->was_short;
}

}  // namespace cohort::server
