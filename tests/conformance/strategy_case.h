// SPDX-License-Identifier: Apache-2.0
// The state of a strategy case while it runs: its strategies, names and what it has emitted.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "tests/conformance/case_directory.h"
#include "tests/conformance/json.h"
#include "tests/conformance/strategy_cluster.h"
#include "tests/conformance/strategy_value.h"

namespace cohort::conformance::strategy {

// The exception of a `raise` step of kind UserError: code of the user, which the library must pass
// on unchanged.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws invalid_argument for something that TensorFlow refuses when it runs, and C++ when it
// compiles: an argument of a type that the function does not take.
[[noreturn]] void refuse_type(const std::string& what);

// A context that an `enter` step has entered. The destructor leaves it too.
class OpenContext {
 public:
  virtual ~OpenContext() = default;
  // Leaves the context. If it throws, the context is still entered.
  virtual void exit() {}
};

// The names of the top level or of one call of a body, which also sees outer names. Used by one
// thread, but those of inner frames may look up names at the same time.
class Frame {
 public:
  explicit Frame(Frame* outer = nullptr) : outer_(outer) {}
  ~Frame();
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  void bind(const std::string& name, Value value);
  // Throws a CaseFault for an unknown name.
  Value find(const std::string& name) const;
  // The names of a variable, for comparison with {"ref": name}.
  std::vector<std::string> names_of(const Variable& variable) const;
  Frame& top() { return outer_ == nullptr ? *this : outer_->top(); }

  // Number of the component, in the body of an update.
  std::optional<std::size_t> component() const;
  void set_component(std::optional<std::size_t> number) { component_ = number; }
  // In the body of run() or a merge, the component of an outer update does not count.
  void forget_component() { is_update_over_ = true; }

  void enter(const std::string& name, std::unique_ptr<OpenContext> context);
  // Leaves the newest context of this name.
  void exit(const std::string& name);
  // The strategy of a scope that was entered before, for `again`.
  std::map<std::string, std::string>& scopes() { return scopes_; }

 private:
  Frame* outer_;
  mutable std::mutex mutex_;
  std::map<std::string, Value> values_;
  std::optional<std::size_t> component_;
  bool is_update_over_ = false;
  std::map<std::string, std::string> scopes_;
  std::vector<std::pair<std::string, std::unique_ptr<OpenContext>>> open_;
};

// Where a case runs: alone, or as one of several workers.
struct WorkerPlace {
  const ClusterResolver* resolver = nullptr;  // nullptr: there is one worker
  std::size_t index = 0;
  int count = 1;
  GroupBackend backend = GroupBackend::automatic;
  std::string program = "/proc/self/exe";  // cohort_conformance, for the servers of a cluster
};

// One case. Thread-safe, where it says so.
class StrategyCase {
 public:
  explicit StrategyCase(const Json& content) : StrategyCase(content, WorkerPlace()) {}
  StrategyCase(const Json& content, const WorkerPlace& place);
  ~StrategyCase();
  StrategyCase(const StrategyCase&) = delete;
  StrategyCase& operator=(const StrategyCase&) = delete;

  // The index of this worker.
  std::size_t worker() const { return place_.index; }
  int workers() const { return place_.count; }
  // The cluster of S. Throws a CaseFault if S is no strategy of parameter servers.
  CaseCluster& cluster();
  bool has_cluster() const { return !clusters_.empty(); }
  // Makes a strategy as the case describes it.
  void add_strategy(const std::string& name, const Json& spec);
  // Thread-safe. Throw a CaseFault for an unknown one.
  Strategy& strategy(const std::string& name);
  std::string name_of(const Strategy& strategy);

  // Creates a variable where the current context keeps variables. Thread-safe.
  Variable create_variable(const std::string& name, const at::Tensor& initial_value,
                           const VariableOptions& options);
  // `make`: creates it under a name in the current strategy.
  Variable create_variable(const std::string& name, const VariableOptions& options,
                           const std::function<Variable(Strategy&, const std::string&)>& make);
  // The strategy that made the variable, and the name under which the case created it, which the
  // library's name may extend to make it unique. Thread-safe.
  Strategy& strategy_of(const Variable& variable);
  std::string given_name_of(const Variable& variable);
  VariableOptions options_of(const Variable& variable);  // with which the case created it
  std::vector<Variable> components_of(const Variable& variable);
  // The variable as a value: the same leaf at every call. Thread-safe.
  Value value_of(const Variable& variable);

  // Makes the tensors of a function's JSON, which are constants of its program: a trace takes them
  // from outside.
  void keep_constants(const Json& json);
  // The tensor that this JSON describes: the kept one, or another one at each call.
  at::Tensor constant(const Json& json) const;

  // Collects a value under a label and the place of this thread. Thread-safe.
  void emit(const std::string& label, const Frame& frame, Json value);
  void emit_context(const std::string& label, Json value);
  Json take_emits();

  // A copy of a replica context, kept after its run. Thread-safe.
  void keep_context(const std::string& name, const ReplicaContext& context);
  ReplicaContext kept_context(const std::string& name);

  // Sets an environment variable until the end of the case.
  void set_environment(const std::string& name, const std::optional<std::string>& value);
  std::string path_of(const std::string& file) const { return directory_.path_of(file); }
  // The state that a group of steps keeps between its steps: the resolvers, the queue.
  template <class T>
  T& kept() {
    std::shared_ptr<void>& place = kept_[&typeid(T)];
    if (place == nullptr) place = std::make_shared<T>();
    return *static_cast<T*>(place.get());
  }

 private:
  struct Origin {
    Strategy* strategy;
    std::string name;
    VariableOptions options;
    std::shared_ptr<VariableLeaf> leaf;
  };
  Origin& origin_of(const Variable& variable);
  std::unique_ptr<Strategy> make_strategy(const std::string& name, const Json& spec);

  const WorkerPlace place_;
  CaseDirectory directory_{Json::array()};
  // The clusters of the strategies of parameter servers, by their names.
  std::map<std::string, std::shared_ptr<CaseCluster>> clusters_;
  std::recursive_mutex mutex_;  // of the members below, up to the empty line
  std::map<std::string, Strategy*> strategies_;
  std::vector<std::unique_ptr<Strategy>> made_;
  std::map<const VariableImpl*, Origin> origins_;
  std::map<std::string, ReplicaContext> contexts_;
  Json emits_ = Json::object();

  std::map<Json, at::Tensor> constants_;
  std::map<std::string, std::optional<std::string>> environment_;
  std::map<const std::type_info*, std::shared_ptr<void>> kept_;
};

// Where code on this thread runs: "r<k>", "x" or "u<k>" (FORMAT.md, 2).
std::string place_of(const Frame& frame);
// How a strategy of parameter servers divides variables; empty if not at all.
Partitioner partitioner_in(const Json& strategy);  // strategy_partitioners.cpp
// "cpu:1" as the library reads it.
std::string device_text(const std::string& text);

}  // namespace cohort::conformance::strategy
