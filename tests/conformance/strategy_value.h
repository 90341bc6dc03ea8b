// SPDX-License-Identifier: Apache-2.0
// The values of a strategy case (FORMAT.md, 3 and 4): trees of tensors, host constants and
// variables, whose leaves may be distributed. The library's PerReplica<Nest> has one tree for each
// replica instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/nest.h"
#include "cohort/input/per_replica.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/variable/variable.h"
#include "tests/conformance/json.h"

namespace cohort::conformance::strategy {

// A variable as a leaf of a Nest. The case has one for each variable, so that replicas which return
// a variable return the same object.
class VariableLeaf final : public Handle {
 public:
  explicit VariableLeaf(Variable variable) : variable_(std::move(variable)) {}
  std::string_view handle_kind() const override { return "variable"; }
  const Variable& variable() const { return variable_; }

 private:
  Variable variable_;
};

// The same of a variable with a copy for each worker.
class PerWorkerVariableLeaf final : public Handle {
 public:
  explicit PerWorkerVariableLeaf(PerWorkerVariable variable) : variable_(std::move(variable)) {}
  std::string_view handle_kind() const override { return "per-worker variable"; }
  const PerWorkerVariable& variable() const { return variable_; }

 private:
  PerWorkerVariable variable_;
};

// A value type; copies share tensors.
struct Value {
  enum class Kind : std::uint8_t { leaf, list, tuple, map, per_replica, mirrored, plain };

  Kind kind = Kind::leaf;
  Nest leaf = {};                 // of Kind::leaf; null, unless something else
  std::vector<Value> items = {};  // of a list or tuple; the components of a distributed value
  std::map<std::string, Value> entries = {};  // of a map
  std::vector<std::string> devices = {};      // of a result that is on certain devices
  Json plain = {};                            // of Kind::plain: the result of a query
  bool is_of_variable = false;                // a tensor for which TensorFlow returns the variable

  static Value of(Nest leaf_value);
  static Value of_json(Json result);
  static Value of_items(Kind kind, std::vector<Value> items);

  bool is_distributed_leaf() const { return kind == Kind::per_replica || kind == Kind::mirrored; }
  bool is_null() const { return kind == Kind::leaf && leaf.is_null(); }
  bool is_tensor() const { return kind == Kind::leaf && leaf.is_tensor(); }
  bool is_container() const;
  // nullptr for anything but a variable.
  const Variable* variable() const;
  const PerWorkerVariable* per_worker_variable() const;
};

// How many components the distributed leaves have; 0 without such leaves.
std::size_t num_components(const Value& value);
// The value with each distributed leaf replaced by its component.
Value component_of(const Value& value, std::size_t index);
// The value with each leaf, also a distributed one, replaced by fn(leaf).
Value map_leaves(const Value& value, const std::function<Value(const Value&)>& fn);
// Which kinds of leaves a value has: several cannot be one PerReplica.
struct Flavours {
  bool has_plain = false;
  bool has_per_replica = false;
  bool has_mirrored = false;
  bool is_mixed() const { return (has_plain + has_per_replica + has_mirrored) > 1; }
};
Flavours flavours_of(const Value& value);

Value value_of(const Nest& nest);
// Throws a CaseFault for a value that a Nest cannot hold: a distributed one.
Nest nest_of(const Value& value);
// With `components` copies of a value that is not distributed; with 0 such a value is bare.
PerReplica<Nest> per_replica_of(const Value& value, std::size_t components = 0);
// A distributed value of tensors alone.
PerReplica<at::Tensor> per_replica_tensors_of(const Value& value);

// The results of `call` for all replicas. The library says of each leaf whether it is one object.
Value regrouped_value(const PerReplica<Nest>& result, std::string_view call);
// The same without asking: each leaf has the components of `result`.
Value wrapped_value(const PerReplica<Nest>& result);
template <class T>
Value value_of(const Mirrored<T>& result) {
  std::vector<Nest> copies(result.local_results().begin(), result.local_results().end());
  Value value = result.is_mirrored() ? wrapped_value(PerReplica<Nest>::mirrored(std::move(copies)))
                                     : value_of(copies.front());
  value.devices = result.devices();
  return value;
}

}  // namespace cohort::conformance::strategy
