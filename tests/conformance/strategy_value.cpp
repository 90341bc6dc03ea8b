// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy_value.h"

#include <algorithm>
#include <memory>

#include "cohort/strategy/replica_call.h"

namespace cohort::conformance::strategy {
namespace {

void count_components(const Value& value, std::size_t& count) {
  if (value.is_distributed_leaf()) {
    const std::size_t own = value.items.size();
    COHORT_CHECK(count == 0 || count == own, ErrorCode::invalid_argument,
                 "[conformance] expected distributed values of one size, got ", count, " and ", own,
                 " components");
    count = own;
    return;
  }
  for (const Value& item : value.items) count_components(item, count);
  for (const auto& [key, item] : value.entries) count_components(item, count);
}

void add_flavours(const Value& value, Flavours& flavours) {
  if (value.is_container()) {
    for (const Value& item : value.items) add_flavours(item, flavours);
    for (const auto& [key, item] : value.entries) add_flavours(item, flavours);
    return;
  }
  flavours.has_per_replica |= value.kind == Value::Kind::per_replica;
  flavours.has_mirrored |= value.kind == Value::Kind::mirrored;
  flavours.has_plain |= !value.is_distributed_leaf();
}

Value::Kind kind_of(const Nest& nest) {
  switch (nest.kind()) {
    case Nest::Kind::list:
      return Value::Kind::list;
    case Nest::Kind::tuple:
      return Value::Kind::tuple;
    case Nest::Kind::map:
      return Value::Kind::map;
    default:
      return Value::Kind::leaf;
  }
}

// Combines trees of one structure; `combine` makes one value of the leaves at one place.
Value zipped(const std::vector<Nest>& trees,
             const std::function<Value(const std::vector<Nest>&)>& combine) {
  const Nest& first = trees.front();
  if (first.is_leaf()) return combine(trees);
  Value value;
  value.kind = kind_of(first);
  const auto inner = [&](const auto& part_of) {
    std::vector<Nest> parts;
    for (const Nest& tree : trees) parts.push_back(part_of(tree));
    return zipped(parts, combine);
  };
  if (value.kind == Value::Kind::map) {
    for (const auto& [key, item] : first.entries()) {
      value.entries.emplace(key,
                            inner([&name = key](const Nest& tree) { return tree.entry(name); }));
    }
  } else {
    for (std::size_t i = 0; i < first.items().size(); ++i) {
      value.items.push_back(inner([&](const Nest& tree) { return tree.items().at(i); }));
    }
  }
  return value;
}

Value distributed(Value::Kind kind, const std::vector<Nest>& components) {
  Value value;
  value.kind = kind;
  for (const Nest& component : components) value.items.push_back(value_of(component));
  return value;
}

}  // namespace

Value Value::of(Nest leaf_value) {
  Value value;
  value.leaf = std::move(leaf_value);
  return value;
}

Value Value::of_json(Json result) {
  Value value;
  value.kind = Kind::plain;
  value.plain = std::move(result);
  return value;
}

Value Value::of_items(Kind kind, std::vector<Value> items) {
  Value value;
  value.kind = kind;
  value.items = std::move(items);
  return value;
}

bool Value::is_container() const {
  return kind == Kind::list || kind == Kind::tuple || kind == Kind::map;
}

const Variable* Value::variable() const {
  if (kind != Kind::leaf || leaf.kind() != Nest::Kind::handle) return nullptr;
  const auto* const held = dynamic_cast<const VariableLeaf*>(leaf.handle().get());
  return held == nullptr ? nullptr : &held->variable();
}

const PerWorkerVariable* Value::per_worker_variable() const {
  if (kind != Kind::leaf || leaf.kind() != Nest::Kind::handle) return nullptr;
  const auto* const held = dynamic_cast<const PerWorkerVariableLeaf*>(leaf.handle().get());
  return held == nullptr ? nullptr : &held->variable();
}

std::size_t num_components(const Value& value) {
  std::size_t count = 0;
  count_components(value, count);
  return count;
}

Value component_of(const Value& value, std::size_t index) {
  return map_leaves(value, [&](const Value& leaf) {
    if (!leaf.is_distributed_leaf()) return leaf;
    COHORT_CHECK(index < leaf.items.size(), ErrorCode::invalid_argument,
                 "[conformance] expected a component below ", leaf.items.size(), ", got ", index);
    return leaf.items[index];
  });
}

Value map_leaves(const Value& value, const std::function<Value(const Value&)>& fn) {
  if (!value.is_container()) return fn(value);
  Value result;
  result.kind = value.kind;
  for (const Value& item : value.items) result.items.push_back(map_leaves(item, fn));
  for (const auto& [key, item] : value.entries) result.entries.emplace(key, map_leaves(item, fn));
  return result;
}

Flavours flavours_of(const Value& value) {
  Flavours flavours;
  add_flavours(value, flavours);
  return flavours;
}

Value value_of(const Nest& nest) {
  return zipped({nest}, [](const std::vector<Nest>& leaves) { return Value::of(leaves.front()); });
}

Nest nest_of(const Value& value) {
  switch (value.kind) {
    case Value::Kind::leaf:
      return value.leaf;
    case Value::Kind::list:
    case Value::Kind::tuple: {
      Nest::Items items;
      for (const Value& item : value.items) items.push_back(nest_of(item));
      return value.kind == Value::Kind::list ? Nest::list(std::move(items))
                                             : Nest::tuple(std::move(items));
    }
    case Value::Kind::map: {
      Nest::Map entries;
      for (const auto& [key, item] : value.entries) entries.emplace(key, nest_of(item));
      return Nest::map(std::move(entries));
    }
    default:
      throw CaseFault("a distributed value or the result of a query cannot be inside of a Nest");
  }
}

PerReplica<Nest> per_replica_of(const Value& value, std::size_t components) {
  const std::size_t own = num_components(value);
  if (own == 0 && components == 0) return PerReplica<Nest>::bare(nest_of(value));
  std::vector<Nest> nests;
  for (std::size_t i = 0; i < (own == 0 ? components : own); ++i) {
    nests.push_back(nest_of(component_of(value, i)));
  }
  const Flavours flavours = flavours_of(value);
  return flavours.has_mirrored && !flavours.is_mixed()
             ? PerReplica<Nest>::mirrored(std::move(nests))
             : PerReplica<Nest>(std::move(nests));
}

PerReplica<at::Tensor> per_replica_tensors_of(const Value& value) {
  if (!value.is_distributed_leaf()) return PerReplica<at::Tensor>::bare(nest_of(value).tensor());
  std::vector<at::Tensor> tensors;
  for (const Value& item : value.items) tensors.push_back(nest_of(item).tensor());
  return value.kind == Value::Kind::mirrored ? PerReplica<at::Tensor>::mirrored(std::move(tensors))
                                             : PerReplica<at::Tensor>(std::move(tensors));
}

namespace {

// Equal small numbers are one object in Python, so that TensorFlow returns one for all replicas.
// In Cohort they are a number of each replica.
bool is_one_number(const std::vector<Nest>& leaves) {
  return std::all_of(leaves.begin(), leaves.end(), [&](const Nest& leaf) {
    const Nest& first = leaves.front();
    if (leaf.kind() != first.kind()) return false;
    if (leaf.kind() == Nest::Kind::integer) return leaf.integer() == first.integer();
    return leaf.kind() == Nest::Kind::real && leaf.real() == first.real();
  });
}

}  // namespace

Value regrouped_value(const PerReplica<Nest>& result, std::string_view call) {
  if (!result.is_wrapped()) return value_of(result.value());
  if (result.is_mirrored()) return wrapped_value(result);
  return zipped(result.local_results(), [&](const std::vector<Nest>& leaves) {
    if (is_one_number(leaves)) return value_of(leaves.front());
    const PerReplica<Nest> leaf = internal::regrouped(leaves, false, call);
    return leaf.is_wrapped() ? distributed(Value::Kind::per_replica, leaves)
                             : value_of(leaf.value());
  });
}

Value wrapped_value(const PerReplica<Nest>& result) {
  if (!result.is_wrapped()) return value_of(result.value());
  const auto kind = result.is_mirrored() ? Value::Kind::mirrored : Value::Kind::per_replica;
  return zipped(result.local_results(),
                [&](const std::vector<Nest>& leaves) { return distributed(kind, leaves); });
}

}  // namespace cohort::conformance::strategy
