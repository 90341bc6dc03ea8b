// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy_expressions.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <functional>

#include "cohort/core/error.h"
#include "cohort/data/iterator.h"
#include "tests/conformance/strategy_tensors.h"

namespace cohort::conformance::strategy {
namespace {

// --- operators ----------------------------------------------------------------------------------

bool is_host_number(const Value& value) {
  return value.kind == Value::Kind::leaf &&
         (value.leaf.kind() == Nest::Kind::integer || value.leaf.kind() == Nest::Kind::real);
}

at::Tensor quotient(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_floating_point() || b.is_floating_point()) return a.div(b);
  // TensorFlow's true division: narrow integers become float32, others float64.
  const bool is_narrow = a.scalar_type() != at::kInt && a.scalar_type() != at::kLong;
  const at::ScalarType dtype = is_narrow ? at::kFloat : at::kDouble;
  return a.to(dtype).div(b.to(dtype));
}

using Operator = at::Tensor (*)(const at::Tensor& a, const at::Tensor& b);
const std::map<std::string, Operator>& operators() {
  static const std::map<std::string, Operator> all = {
      {"add", [](const at::Tensor& a, const at::Tensor& b) { return a.add(b); }},
      {"sub", [](const at::Tensor& a, const at::Tensor& b) { return a.sub(b); }},
      {"mul", [](const at::Tensor& a, const at::Tensor& b) { return a.mul(b); }},
      {"div", quotient},
      {"matmul", [](const at::Tensor& a, const at::Tensor& b) { return at::matmul(a, b); }},
      {"eq", [](const at::Tensor& a, const at::Tensor& b) { return a.eq(b); }},
      {"gt", [](const at::Tensor& a, const at::Tensor& b) { return a.gt(b); }},
      {"lt", [](const at::Tensor& a, const at::Tensor& b) { return a.lt(b); }},
  };
  return all;
}

// A host constant next to a tensor takes the tensor's dtype.
at::Tensor operand(StrategyCase& test, const Value& value, const Value& other) {
  const at::Tensor tensor = tensor_from(test, value);
  if (!is_host_number(value) || is_host_number(other)) return tensor;
  return tensor.to(tensor_from(test, other).scalar_type());
}

Value apply(StrategyCase& test, Operator op, const Value& left, const Value& right) {
  const at::Tensor a = operand(test, left, right);
  const at::Tensor b = operand(test, right, left);
  COHORT_CHECK(a.scalar_type() == b.scalar_type(), ErrorCode::invalid_argument,
               "[conformance] expected operands of one dtype, as TensorFlow does, got ",
               short_name_of(a.scalar_type()), " and ", short_name_of(b.scalar_type()));
  at::Tensor result = op(a, b);
  if (!is_host_number(left) || !is_host_number(right)) return Value::of(std::move(result));
  if (result.scalar_type() == at::kBool) return Value::of(result.item<bool>());
  return result.is_floating_point() ? Value::of(result.item<double>())
                                    : Value::of(result.item<std::int64_t>());
}

Value sum_of(StrategyCase& test, const Value& value) {
  if (value.kind == Value::Kind::list || value.kind == Value::Kind::tuple) {
    if (value.items.empty()) return Value::of(std::int64_t{0});
    Value total = value.items.front();
    for (std::size_t i = 1; i < value.items.size(); ++i) {
      total = apply(test, operators().at("add"), total, value.items[i]);
    }
    return total;
  }
  const at::Tensor tensor = tensor_from(test, value);
  return Value::of(tensor.sum(tensor.scalar_type()));
}

// --- tensors ------------------------------------------------------------------------------------

at::ScalarType dtype_in(const Json& spec) {
  return scalar_type_of(member_or<std::string>(spec, "t", "f32"));
}

std::vector<std::int64_t> sizes_in(const Json& spec, const char* key) {
  return member(spec, key).get<std::vector<std::int64_t>>();
}

at::Tensor slices_from(StrategyCase& test, Frame& frame, const Json& spec) {
  const auto part = [&](const char* key) {
    return tensor_from(test, evaluate(test, frame, member(spec, key)));
  };
  return sparse_rows({part("indices"), part("values")}, sizes_in(spec, "shape"));
}

at::Tensor sparse_from(StrategyCase& test, Frame& frame, const Json& spec) {
  const auto part = [&](const char* key) {
    return tensor_from(test, evaluate(test, frame, member(spec, key)));
  };
  const at::Tensor shape = part("shape");
  const std::vector<std::int64_t> sizes(shape.data_ptr<std::int64_t>(),
                                        shape.data_ptr<std::int64_t>() + shape.numel());
  return at::sparse_coo_tensor(part("indices").t(), part("values"), sizes);
}

// A new tensor for each replica.
Value number_as_tensor(std::int64_t number, const Json& dtype) {
  return Value::of(at::scalar_tensor(number, at::TensorOptions(at::kLong))
                       .to(scalar_type_of(dtype.get<std::string>())));
}

// --- parts of values ----------------------------------------------------------------------------

Value entry_of(const Value& value, const Json& key) {
  if (key.is_string()) {
    const auto found = value.entries.find(key.get<std::string>());
    if (found == value.entries.end()) throw CaseFault("no entry " + key.dump());
    return found->second;
  }
  const auto index = key.get<std::size_t>();
  if (index >= value.items.size()) throw CaseFault("no entry " + key.dump());
  return value.items[index];
}

// --- the table ----------------------------------------------------------------------------------

struct Expression {
  StrategyCase& test;
  Frame& frame;

  Value of(const Json& inner) const { return evaluate(test, frame, inner); }
  std::vector<Value> each_of(const Json& inner) const {
    std::vector<Value> values;
    for (const Json& item : inner) values.push_back(of(item));
    return values;
  }
  at::Tensor tensor(const Json& inner) const { return tensor_from(test, of(inner)); }
};
using Form = std::function<Value(const Expression& e, const Json& argument)>;

std::size_t own_index(const Frame& frame) {
  if (frame.component()) return *frame.component();
  return static_cast<std::size_t>(current_replica().replica_id_in_sync_group());
}

const Json& picked(const Json& choices, std::size_t index) {
  if (index >= choices.size())
    throw CaseFault("nothing to pick for replica " + std::to_string(index));
  return choices[index];
}

// The next element of an iterator that a scheduled function has as an argument.
Nest next_of(const Value& value) {
  if (value.kind != Value::Kind::leaf) throw CaseFault("the next element of no iterator");
  return function::Argument<Iterator&>::from(value.leaf).get_next();
}

Value map_of(const Expression& e, const Json& argument) {
  Value value;
  value.kind = Value::Kind::map;
  for (const auto& [key, item] : argument.items()) value.entries.emplace(key, e.of(item));
  return value;
}

Form items_of(Value::Kind kind) {
  return [kind](const Expression& e, const Json& argument) {
    return Value::of_items(kind, e.each_of(argument));
  };
}

void add_operators(std::map<std::string, Form>& forms) {
  forms["next"] = [](const Expression& e, const Json& a) { return value_of(next_of(e.of(a))); };
  for (const auto& [name, op] : operators()) {
    forms[name] = [op = op](const Expression& e, const Json& a) {
      return apply(e.test, op, e.of(a.at(0)), e.of(a.at(1)));
    };
  }
}

std::map<std::string, Form> all_forms() {
  std::map<std::string, Form> forms = {
      {"int", [](auto&, const Json& a) { return Value::of(a.get<std::int64_t>()); }},
      {"float", [](auto&, const Json& a) { return Value::of(a.get<double>()); }},
      {"ref", [](const Expression& e, const Json& a) { return e.frame.find(a); }},
      {"read",
       [](const Expression& e, const Json& a) {
         const Value value = e.frame.find(a);
         if (value.variable() == nullptr) throw CaseFault("no variable " + a.dump());
         return Value::of(value.variable()->read());
       }},
      {"rid",
       [](auto&, const Json& a) {
         return number_as_tensor(current_replica().replica_id_in_sync_group(), a);
       }},
      {"nrep",
       [](auto&, const Json& a) {
         return number_as_tensor(get_strategy().num_replicas_in_sync(), a);
       }},
      {"pick",
       [](const Expression& e, const Json& a) { return e.of(picked(a, own_index(e.frame))); }},
      {"pick_worker",
       [](const Expression& e, const Json& a) { return e.of(picked(a, e.test.worker())); }},
      {"sum", [](const Expression& e, const Json& a) { return sum_of(e.test, e.of(a)); }},
      {"square",
       [](const Expression& e, const Json& a) { return Value::of(e.tensor(a).square()); }},
      {"cast",
       [](const Expression& e, const Json& a) {
         return Value::of(e.tensor(a.at(0)).to(scalar_type_of(a.at(1))));
       }},
      {"densify",
       [](const Expression& e, const Json& a) {
         const at::Tensor tensor = e.tensor(a);
         return Value::of(tensor.is_sparse() ? tensor.to_dense() : tensor);
       }},
      {"list", items_of(Value::Kind::list)},
      {"tuple", items_of(Value::Kind::tuple)},
      {"per_replica", items_of(Value::Kind::per_replica)},
      {"mirrored", items_of(Value::Kind::mirrored)},
      {"map", map_of},
      {"get", [](const Expression& e, const Json& a) { return entry_of(e.of(a.at(0)), a.at(1)); }},
      {"slices", [](const Expression& e,
                    const Json& a) { return Value::of(slices_from(e.test, e.frame, a)); }},
      {"sparse", [](const Expression& e,
                    const Json& a) { return Value::of(sparse_from(e.test, e.frame, a)); }},
      {"local_results",
       [](const Expression& e, const Json& a) {
         Strategy& strategy = has_strategy() ? get_strategy() : e.test.strategy("S");
         return local_results_of(e.test, strategy, e.of(a));
       }},
      {"ones",
       [](auto&, const Json& a) { return Value::of(at::ones(sizes_in(a, "s"), dtype_in(a))); }},
      {"zeros",
       [](auto&, const Json& a) { return Value::of(at::zeros(sizes_in(a, "s"), dtype_in(a))); }},
      {"range",
       [](auto&, const Json& a) {
         return Value::of(at::arange(member(a, "n").get<std::int64_t>(), dtype_in(a)));
       }},
      {"eye",
       [](auto&, const Json& a) {
         return Value::of(at::eye(member(a, "n").get<std::int64_t>(), dtype_in(a)));
       }},
  };
  add_operators(forms);
  return forms;
}

}  // namespace

const ReplicaContext& current_replica() {
  const ReplicaContext* const context = get_replica_context();
  COHORT_CHECK(context != nullptr, ErrorCode::failed_precondition,
               "[conformance] expected to be in a replica context, got cross-replica context");
  return *context;
}

namespace {

// The context of this thread, if it is a replica of the variable's strategy; else nullptr.
const ReplicaContext* replica_of(StrategyCase& test, const Variable& variable) {
  const ReplicaContext* const context = get_replica_context();
  const bool is_own = context != nullptr && &context->strategy() == &test.strategy_of(variable);
  return is_own ? context : nullptr;
}

}  // namespace

at::Tensor converted(StrategyCase& test, const Variable& variable) {
  const bool is_sharded = !variable.impl()->shards().empty();
  return replica_of(test, variable) != nullptr && !is_sharded ? variable.tensor() : variable.read();
}

at::Tensor operand_of(StrategyCase& test, const Variable& variable) {
  const ReplicaContext* const replica = replica_of(test, variable);
  const bool is_sharded = !variable.impl()->shards().empty();
  if (replica == nullptr || is_sharded) return variable.read();
  const std::vector<Variable> components = test.components_of(variable);
  const auto own = static_cast<std::size_t>(replica->local_replica_id());
  return components.at(components.size() == 1 ? 0 : own).tensor();
}

at::Tensor tensor_from(StrategyCase& test, const Value& value) {
  if (const Variable* const variable = value.variable()) return operand_of(test, *variable);
  if (value.kind == Value::Kind::mirrored) return tensor_from(test, value.items.at(0));
  if (value.kind != Value::Kind::leaf) refuse_type("a list or distributed value as a tensor");
  switch (value.leaf.kind()) {
    case Nest::Kind::tensor:
      return value.leaf.tensor();
    case Nest::Kind::integer:
      return at::scalar_tensor(value.leaf.integer(), at::TensorOptions(at::kInt));
    case Nest::Kind::real:
      return at::scalar_tensor(value.leaf.real(), at::TensorOptions(at::kFloat));
    case Nest::Kind::boolean:
      return at::scalar_tensor(value.leaf.boolean(), at::TensorOptions(at::kBool));
    case Nest::Kind::text:
      return StringTensor(value.leaf.text()).tensor();
    default:
      refuse_type("a value of kind " + std::string(name_of(value.leaf.kind())) + " as a tensor");
  }
}

Value with_values(StrategyCase& test, const Value& value) {
  return map_leaves(value, [&](const Value& leaf) {
    const Variable* const variable = leaf.variable();
    return variable == nullptr ? leaf : Value::of(converted(test, *variable));
  });
}

Value with_number_tensors(StrategyCase& test, const Value& value) {
  return map_leaves(value, [&](const Value& leaf) {
    Value result = leaf;
    for (Value& item : result.items) item = with_number_tensors(test, item);
    return is_host_number(leaf) ? Value::of(tensor_from(test, leaf)) : result;
  });
}

Value local_results_of(StrategyCase& test, Strategy& strategy, const Value& value) {
  std::vector<Value> results;
  if (const Variable* const variable = value.variable()) {
    for (const Variable& each : strategy.local_results(*variable)) {
      results.push_back(test.value_of(each));
    }
    return Value::of_items(Value::Kind::tuple, std::move(results));
  }
  const PerReplica<Nest> all = per_replica_of(value);
  const std::vector<Nest> components =
      all.is_wrapped() ? strategy.local_results(all) : strategy.local_results(all.value());
  for (const Nest& component : components) results.push_back(value_of(component));
  return Value::of_items(Value::Kind::tuple, std::move(results));
}

Value evaluate(StrategyCase& test, Frame& frame, const Json& expression) {
  static const std::map<std::string, Form> forms = all_forms();
  if (expression.is_null()) return {};
  if (expression.is_boolean()) return Value::of(expression.get<bool>());
  if (expression.is_string()) return Value::of(expression.get<std::string>());
  if (is_tensor_json(expression)) return Value::of(test.constant(expression));
  const auto form = expression.is_object() && expression.size() == 1
                        ? forms.find(expression.begin().key())
                        : forms.end();
  if (form == forms.end()) throw CaseFault("unknown expression " + brief(expression, 120));
  return form->second({test, frame}, *expression.begin());
}

Json components_as_json(StrategyCase& test, const Variable& variable) {
  Json components = Json::array();
  for (const Variable& component : test.components_of(variable)) {
    components.push_back(write_tensor(component.read()));
  }
  return components;
}

Json json_of_value(StrategyCase& test, const Frame& frame, const Value& value) {
  const auto items = [&] {
    Json all = Json::array();
    for (const Value& item : value.items) all.push_back(json_of_value(test, frame, item));
    return all;
  };
  switch (value.kind) {
    case Value::Kind::plain:
      return value.plain;
    case Value::Kind::list:
      return {{"list", items()}};
    case Value::Kind::tuple:
      return {{"tuple", items()}};
    case Value::Kind::per_replica:
      return {{"per_replica", items()}};
    case Value::Kind::mirrored:
      return {{"mirrored", items()}};
    case Value::Kind::map: {
      Json entries = Json::object();
      for (const auto& [key, item] : value.entries) entries[key] = json_of_value(test, frame, item);
      return {{"map", entries}};
    }
    case Value::Kind::leaf:
      break;
  }
  if (const Variable* const variable = value.variable()) {
    return {{"variable", components_as_json(test, *variable)},
            {"names", frame.names_of(*variable)}};
  }
  switch (value.leaf.kind()) {
    case Nest::Kind::tensor: {
      Json json = write_tensor(value.leaf.tensor());
      if (value.is_of_variable) json["of_variable"] = true;
      return json;
    }
    case Nest::Kind::integer:
      return {{"int", value.leaf.integer()}};
    case Nest::Kind::real:
      return {{"float", value.leaf.real()}};
    case Nest::Kind::boolean:
      return value.leaf.boolean();
    case Nest::Kind::text:
      return value.leaf.text();
    default:
      return nullptr;
  }
}

}  // namespace cohort::conformance::strategy
