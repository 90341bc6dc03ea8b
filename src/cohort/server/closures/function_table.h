// SPDX-License-Identifier: Apache-2.0
// The functions that a worker can run: their programs, and the parameter server of each variable.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/function/prepared_program.h"
#include "cohort/rpc/control.h"

namespace cohort::server {

// A program, and the pulls that it needs: one for each parameter server. Immutable.
struct PlacedProgram {
  struct Pull {
    std::uint32_t ps = 0;
    std::vector<std::uint64_t> ids;      // the ids of the variables on that server
    std::vector<std::size_t> positions;  // their positions among the program's variables
    bool wants_versions = false;
  };
  std::shared_ptr<const function::PreparedProgram> program;
  std::vector<rpc::FunctionBody::Placement> places;  // one for each of the program's variables
  std::vector<Pull> pulls;

  // By the names of the variables.
  using Placements = std::unordered_map<std::string_view, const rpc::FunctionBody::Placement*>;
  // `function` is for messages.
  PlacedProgram(std::shared_ptr<const function::PreparedProgram> prepared,
                const Placements& placements, const std::string& function);
  // The pulls for these variables of the program.
  std::vector<Pull> pulls_of(std::span<const std::int64_t> variables) const;
  // Whether the program was traced for such arguments and elements. Inputs after those of the
  // program are ignored: only later traces have captured them.
  bool fits(std::span<const at::Tensor> inputs,
            std::span<const std::vector<at::Tensor>> draws) const;
};

// Immutable in the table, except for `was_short`. If the coordinator sends more programs, another
// object, which shares the programs of this one, replaces it.
struct WorkerFunction {
  using Registered = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

  std::string name;
  Registered registered;  // if set, it runs in place of the programs
  std::vector<std::shared_ptr<const PlacedProgram>> programs;
  std::vector<std::int64_t> draws;  // resource arguments in draw order; the same in every program
  // Whether the programs use neither variables nor data, so that the arguments alone decide how
  // long they take.
  bool is_self_contained = false;
  mutable std::atomic<bool> was_short = false;  // whether the last run was short

  explicit WorkerFunction(const rpc::FunctionBody& body);
  // Adds the programs of `body` to those of `known` that come before them.
  WorkerFunction(const rpc::FunctionBody& body, const WorkerFunction& known);

 private:
  void add(const rpc::FunctionBody& body);
};

// Thread-safe.
class FunctionTable {
 public:
  // Throws function_missing if programs that come before those of the body are not here.
  void put(const rpc::FunctionBody& body);
  // Throws function_missing if there is no function with this id.
  std::shared_ptr<const WorkerFunction> find(std::uint32_t id) const;
  // Whether the function is self-contained and its last run was short.
  bool is_brief(std::uint32_t id) const;

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<const WorkerFunction>> functions_
      COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::server
