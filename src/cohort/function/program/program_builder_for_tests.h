// SPDX-License-Identifier: Apache-2.0
// Programs written by hand, for tests and benchmarks.
//
//   ProgramBuilder p;
//   const int x = p.input({2, 3});
//   p.output(p.op("aten::add.Tensor", {value(x), value(x)}));
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <utility>
#include <vector>

#include "cohort/function/program/program.h"

namespace cohort::function {

inline Arg argument(Arg::Kind kind, c10::IValue constant = {}) {
  Arg arg;
  arg.kind = kind;
  arg.constant = std::move(constant);
  return arg;
}
inline Arg none() { return {}; }
inline Arg value(int id) {
  Arg arg = argument(Arg::Kind::value);
  arg.id = id;
  return arg;
}
inline Arg values(std::vector<int> ids) {
  Arg arg = argument(Arg::Kind::values);
  arg.ids = std::move(ids);
  return arg;
}
inline Arg integer(std::int64_t number) { return argument(Arg::Kind::integer, number); }
inline Arg real(double number) { return argument(Arg::Kind::real, number); }
inline Arg boolean(bool is_true) {
  return argument(is_true ? Arg::Kind::boolean_true : Arg::Kind::boolean_false);
}
inline Arg text(std::string content) { return argument(Arg::Kind::text, std::move(content)); }
inline Arg integers(std::vector<std::int64_t> numbers) {
  return argument(Arg::Kind::integers, numbers);
}

// Thread-compatible.
class ProgramBuilder {
 public:
  int input(std::vector<std::int64_t> sizes, at::ScalarType dtype = at::kFloat) {
    program_.inputs.push_back({next(), {dtype, std::move(sizes)}});
    return program_.inputs.back().id;
  }
  int variable(std::string name, std::vector<std::int64_t> sizes) {
    program_.variables.push_back({next(), std::move(name), {at::kFloat, std::move(sizes)}});
    return program_.variables.back().id;
  }
  int constant(at::Tensor content, bool is_wrapped_number = false) {
    program_.constants.push_back({next(), std::move(content), is_wrapped_number});
    return program_.constants.back().id;
  }
  // An op with one new result. `name` with its overload, as "aten::add.Tensor".
  int op(const std::string& name, std::vector<Arg> args) {
    add(name, std::move(args)).outs.push_back({false, {next()}});
    return program_.value_count - 1;
  }
  // An op whose one result is the value `id`, which exists.
  void in_place(const std::string& name, int id, std::vector<Arg> args) {
    args.insert(args.begin(), value(id));
    add(name, std::move(args)).outs.push_back({false, {id}});
  }
  // An op whose one result is a list of `count` tensors.
  std::vector<int> list_op(const std::string& name, std::vector<Arg> args, std::size_t count) {
    Op& made = add(name, std::move(args));
    made.outs.push_back({true, {}});
    for (std::size_t i = 0; i < count; ++i) made.outs[0].ids.push_back(next());
    return made.outs[0].ids;
  }
  void effect(const std::string& name, std::vector<Arg> args) {
    add(name, std::move(args)).flags = Op::effect;
  }
  std::vector<int> draw(std::int64_t resource, std::vector<TensorSpec> fields) {
    const std::size_t count = fields.size();
    program_.draws.push_back({std::move(fields)});
    return list_op("cohort::iterator_next", {integer(resource)}, count);
  }
  void output(int id) { program_.outputs.push_back(id); }

  Program& program() { return program_; }

 private:
  int next() { return program_.value_count++; }
  Op& add(const std::string& name, std::vector<Arg> args) {
    Op& made = program_.ops.emplace_back();
    const std::size_t dot = name.find('.');
    made.name = name.substr(0, dot);
    if (dot != std::string::npos) made.overload = name.substr(dot + 1);
    made.args = std::move(args);
    return made;
  }

  Program program_;
};

}  // namespace cohort::function
