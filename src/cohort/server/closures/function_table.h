// SPDX-License-Identifier: Apache-2.0
// The functions that a worker can run: their programs, and what these read from which parameter
// server.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/function/prepared_program.h"
#include "cohort/parameter_server/parameter_client.h"
#include "cohort/parameter_server/placement_table.h"
#include "cohort/rpc/control.h"

namespace cohort::server {

// A program with the numbers of its variables. Thread-safe; nothing of it changes but what it
// remembers.
class WorkerProgram {
 public:
  // Where the program's variables are, and how those that it reads at its start are pulled.
  struct Places {
    parameter_server::Places variables;
    std::vector<parameter_server::Pull> pulls;
  };
  // By name.
  using Ids = std::unordered_map<std::string_view, std::uint64_t>;

  // `function` is for messages.
  WorkerProgram(std::shared_ptr<const function::PreparedProgram> program, const Ids& ids,
                const std::string& function);

  const function::PreparedProgram& program() const { return *program_; }
  std::size_t num_variables() const { return ids_.size(); }
  // Remembers them until the table has another version.
  std::shared_ptr<const Places> places(const parameter_server::PlacementTable& table) const;
  // Adds these variables of the program to the batch; the positions are those of their parts.
  // Returns the pulls of the batch.
  std::vector<parameter_server::Pull> pulls_of(const Places& places,
                                               std::span<const std::size_t> variables,
                                               parameter_server::PullBatch batch) const;
  // The names of the variables with these numbers, for messages: "'w', 'b' and 3 more".
  std::string names_of(std::span<const std::uint64_t> ids) const;
  // Whether the program was traced for such arguments and elements. Inputs after those of the
  // program are ignored: only later traces have captured them.
  bool fits(std::span<const at::Tensor> inputs,
            std::span<const std::vector<at::Tensor>> draws) const;

 private:
  const std::shared_ptr<const function::PreparedProgram> program_;
  std::vector<std::uint64_t> ids_;            // of the program's variables
  std::unordered_set<std::uint64_t> merged_;  // those of which an effect needs the version
  mutable Mutex mutex_;
  mutable std::shared_ptr<const Places> places_ COHORT_GUARDED_BY(mutex_);
};

// Immutable in the table, except for `was_short`. If the coordinator sends more programs, another
// object, which shares the programs of this one, replaces it.
struct WorkerFunction {
  using Registered = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

  std::string name;
  Registered registered;  // if set, it runs in place of the programs
  // Empty for calls with a resource that no worker could make: they end with its error.
  std::vector<std::shared_ptr<const WorkerProgram>> programs;
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
  void clear();

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<const WorkerFunction>> functions_
      COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::server
