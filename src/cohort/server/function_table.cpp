// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/function_table.h"

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/function/registry.h"

namespace cohort::server {
namespace {

const rpc::FunctionBody::Placement& place_of(const std::string& variable,
                                             const rpc::FunctionBody& body) {
  const auto found =
      std::find_if(body.placements.begin(), body.placements.end(),
                   [&](const auto& placement) { return placement.variable == variable; });
  COHORT_CHECK(found != body.placements.end(), ErrorCode::invalid_argument,
               "[server.register_function] function '", body.name, "' uses variable '", variable,
               "', whose parameter server was not named");
  return *found;
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
                             const rpc::FunctionBody& body)
    : program(std::move(prepared)) {
  const auto& variables = program->info().variables;
  std::vector<std::int64_t> read;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    places.push_back(place_of(variables[i].name, body));
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
  if (inputs.size() < info.inputs.size() || info.draws.size() != draws.size() ||
      !specs_match(info.inputs, inputs.first(info.inputs.size()))) {
    return false;
  }
  for (std::size_t i = 0; i < draws.size(); ++i) {
    if (!specs_match(info.draws[i].fields, draws[i])) return false;
  }
  return true;
}

WorkerFunction::WorkerFunction(const rpc::FunctionBody& body) : name(body.name) {
  if (!body.registered_name.empty()) {
    registered = function::registered_function(body.registered_name);
    return;
  }
  COHORT_CHECK(!body.programs.empty(), ErrorCode::invalid_argument,
               "[server.register_function] expected a program of function '", name, "', got none");
  for (const Bytes& bytes : body.programs) {
    programs.emplace_back(function::PreparedProgram::decode(bytes), body);
    std::vector<std::int64_t> order;
    for (const auto& draw : programs.back().program->info().draws) order.push_back(draw.resource);
    if (programs.size() == 1) draws = order;
    COHORT_CHECK(
        order == draws, ErrorCode::invalid_argument, "[server.register_function] function '", name,
        "' draws from its iterators in another order for another element; draw unconditionally");
  }
  is_self_contained = draws.empty() && std::all_of(programs.begin(), programs.end(),
                                                   [](const PlacedProgram& program) {
                                                     return program.places.empty();
                                                   });
}

void FunctionTable::put(const rpc::FunctionBody& body) {
  auto made = std::make_shared<const WorkerFunction>(body);
  const Lock lock(mutex_);
  functions_[body.id] = std::move(made);
}

std::shared_ptr<const WorkerFunction> FunctionTable::find(std::uint32_t id) const {
  const Lock lock(mutex_);
  const auto found = functions_.find(id);
  if (found == functions_.end()) {
    throw Error(ErrorCode::not_found,
                "[server.find_function] expected a function that the coordinator has sent, got "
                "number " +
                    std::to_string(id) +
                    ", which is not here; perhaps the task was restarted: connect again and send "
                    "its functions",
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
