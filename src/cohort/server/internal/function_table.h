// SPDX-License-Identifier: Apache-2.0
// The functions a worker can run: programs with the place of each of their variables.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/function/prepared_program.h"
#include "cohort/rpc/control.h"

namespace cohort::server {

// A program and its traffic plan: one pull and one push a parameter server. Immutable.
struct PlacedProgram {
  struct Pull {
    std::uint32_t ps = 0;
    std::vector<std::uint64_t> ids;      // of variables on that server
    std::vector<std::size_t> positions;  // of the program's variables, in the same order
    bool wants_versions = false;
  };
  std::shared_ptr<const function::PreparedProgram> program;
  std::vector<rpc::FunctionBody::Placement> places;  // of each of the program's variables
  std::vector<Pull> pulls;

  PlacedProgram(std::shared_ptr<const function::PreparedProgram> prepared,
                const rpc::FunctionBody& body);
  // Of these variables of the program.
  std::vector<Pull> pulls_of(std::span<const std::int64_t> variables) const;
  // It was traced for these arguments and elements. Inputs that it does not have follow its own:
  // what only later traces captured.
  bool fits(std::span<const at::Tensor> inputs,
            std::span<const std::vector<at::Tensor>> draws) const;
};

// Immutable once in the table, but for what was learnt of it; a body with more programs replaces
// it.
struct WorkerFunction {
  using Registered = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

  std::string name;
  Registered registered;  // runs in place of programs
  std::vector<PlacedProgram> programs;
  std::vector<std::int64_t> draws;  // resource arguments in draw order; the same in every program
  // Programs that use neither variables nor data: how long they take depends on the arguments
  // alone.
  bool is_self_contained = false;
  mutable std::atomic<bool> was_short = false;  // when it last ran

  explicit WorkerFunction(const rpc::FunctionBody& body);
};

// Thread-safe.
class FunctionTable {
 public:
  void put(const rpc::FunctionBody& body);
  // function_missing when it was never registered here.
  std::shared_ptr<const WorkerFunction> find(std::uint32_t id) const;
  // It is self-contained and was short the last time.
  bool is_brief(std::uint32_t id) const;

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<const WorkerFunction>> functions_
      COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::server
