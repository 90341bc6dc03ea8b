// SPDX-License-Identifier: Apache-2.0
// One op of a pipeline. Values that depend on the InputContext are already replaced.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/data/dataset_options.h"
#include "tests/conformance/case_state.h"
#include "tests/conformance/json.h"

namespace cohort::conformance {

// Replaces {"ctx": …} and {"by_pipeline": […]} at any depth.
Json resolved(const Json& json, const InputContext& context);

// Thread-compatible.
class Op {
 public:
  Op(const Json& fields, std::shared_ptr<CaseState> state, const InputContext& context);

  const std::string& name() const { return name_; }
  bool has(const char* key) const;
  // Returns null if the field is missing.
  const Json& json(const char* key) const;
  // Throws a CaseFault if the field is missing or not a T.
  template <class T>
  T get(const char* key) const {
    if (!has(key)) fail(key);
    return convert<T>(key);
  }
  template <class T>
  T get_or(const char* key, T otherwise) const {
    return has(key) ? convert<T>(key) : std::move(otherwise);
  }
  template <class T>
  std::optional<T> maybe(const char* key) const {
    return has(key) ? std::optional<T>(convert<T>(key)) : std::nullopt;
  }
  // A degree of parallelism. A missing field is 0 for the library; an explicit 0 is an error, as in
  // TensorFlow.
  std::int64_t parallel(const char* key) const;
  // One name, or a list of names, as paths in the case's directory.
  std::vector<std::string> paths(const char* key) const;
  // Throws a CaseFault if there is any other field.
  void allow_only(const std::vector<std::string>& keys) const;

  const std::shared_ptr<CaseState>& state() const { return state_; }
  const InputContext& context() const { return context_; }

 private:
  template <class T>
  T convert(const char* key) const {
    try {
      return fields_.at(key).get<T>();
    } catch (const Json::exception&) {
      fail(key);
    }
  }
  [[noreturn]] void fail(const char* key) const;

  Json fields_;
  std::string name_;
  std::shared_ptr<CaseState> state_;
  InputContext context_;
};

}  // namespace cohort::conformance
